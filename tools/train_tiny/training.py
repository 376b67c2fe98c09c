"""How the embedded CLIP is trained from scratch; `train` is the command.

A pool of pictures is drawn once. Every step compares a batch of them, cropped and jittered, with captions of the same
step, through both towers and one learned logit scale:

1. one caption per name (80), per colour (12) and per texture (13), in random templates, so that every class is a
   negative at every step;
2. "{colour} {shape}" captions of objects in the batch;
3. captions that combine several facts, each a positive for every picture that it is true of.

AdamW; warm-up and cosine by step (`Recipe.rate_at`). Every draw comes from (seed, step), so a run that is killed
and resumed, or repeated with the same number of threads, gives the same bits.
"""

from __future__ import annotations

import math
import platform
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fpp_sweep.spec.files import written_whole
from fpp_sweep.tiny import model as tiny_model
from fpp_sweep.tiny.captions import FACTS, UNSTATED, agrees, caption, encode, encode_picture, fill_template, split_words
from fpp_sweep.tiny.pictures import COLOUR_NAMES, NAMES, SHAPE_NAMES, TEXTURE_NAMES, Description, is_held_out
from fpp_sweep.tiny.rendering import generator
from tools.train_tiny.pool import description, draw_pool
from tools.train_tiny.recipe import Recipe

if TYPE_CHECKING:
    from open_clip import CLIP

SHORT, LONG = 16, 28  # tokens; two fixed lengths, because memory grows with every new shape
PAIRS = tuple((colour, shape) for colour, shape in product(COLOUR_NAMES, SHAPE_NAMES) if not is_held_out(shape, colour))
GROUPS = (  # fact, its captions' phrases, weight in the loss
    ("name", NAMES, 1.0),
    ("colour", tuple(f"{colour} thing" for colour in COLOUR_NAMES), 0.5),
    ("texture", tuple(f"{texture} texture" for texture in TEXTURE_NAMES), 1.0),
)


class Lexicon:
    """Captions to rows of the compact embedding that is trained: only the words of the world."""

    def __init__(self) -> None:
        from open_clip import SimpleTokenizer

        tokenizer = SimpleTokenizer()
        ids = tiny_model.vocabulary_ids()
        self.row_of = {token: row for row, token in enumerate(ids)}
        self.start = self.row_of[tokenizer.sot_token_id]
        self.end = self.row_of[tokenizer.eot_token_id]  # the highest row, as CLIP's pooling expects
        self.word = cache(lambda word: [self.row_of[token] for token in tokenizer.encode(word)])

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """(texts, length), padded with zeros behind the end token, where they are masked."""
        rows = torch.zeros(len(texts), length, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            words = [token for word in split_words(text) for token in self.word(word)]
            tokens = [self.start, *words, self.end]
            if len(tokens) > length:
                raise ValueError(f"caption of {len(tokens)} tokens, at most {length}: {text!r}")
            row[: len(tokens)] = torch.tensor(tokens)
        return rows


def text_features(model: CLIP, tokens: Tensor) -> Tensor:
    """Unit-norm features of (rows, length) tokens.

    Attention is causal, so tokens after the end of text can be left out.
    """
    length = tokens.shape[1]
    hidden = model.token_embedding(tokens) + model.positional_embedding[:length]
    hidden = model.transformer(hidden, attn_mask=model.attn_mask[:length, :length])
    ends = hidden[torch.arange(len(tokens)), tokens.argmax(dim=-1)]
    return F.normalize(model.ln_final(ends) @ model.text_projection, dim=-1)


def image_features(model: CLIP, pixels: Tensor) -> Tensor:
    return F.normalize(model.encode_image(pixels), dim=-1)


def to_unit(pictures: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255


def resize(pixels: Tensor) -> Tensor:
    size = (tiny_model.IMAGE_SIZE, tiny_model.IMAGE_SIZE)
    return F.interpolate(pixels, size, mode="bicubic", antialias=True).clamp(0, 1)


def standardise(pixels: Tensor) -> Tensor:
    mean = torch.tensor(tiny_model.IMAGE_MEAN).view(3, 1, 1)
    std = torch.tensor(tiny_model.IMAGE_STD).view(3, 1, 1)
    return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)


def crops(pixels: Tensor, flippable: NDArray[np.bool_], rng: np.random.Generator) -> Tensor:
    """Random views: area 0.45 to 1, small changes of aspect and angle, half of them mirrored."""
    n = len(pixels)
    side, aspect = np.sqrt(rng.uniform(0.45, 1, n)), np.exp(rng.uniform(-0.12, 0.12, n))
    width, height = np.minimum(side * aspect, 1), np.minimum(side / aspect, 1)
    x, y = (1 - width) * rng.uniform(-1, 1, n), (1 - height) * rng.uniform(-1, 1, n)
    angle = rng.normal(0, 0.1, n)
    mirror = np.where(flippable & (rng.random(n) < 0.5), -1, 1)
    cosine, sine = np.cos(angle), np.sin(angle)
    transform = np.stack([width * cosine * mirror, -height * sine, x, width * sine * mirror, height * cosine, y], 1)
    shape = (n, 3, tiny_model.IMAGE_SIZE, tiny_model.IMAGE_SIZE)
    grid = F.affine_grid(torch.from_numpy(transform).float().view(n, 2, 3), list(shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def colour_jitter(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Contrast, brightness and white balance, on half of the views."""
    n = len(pixels)
    strength = torch.from_numpy(rng.random(n) < 0.5).float().view(n, 1, 1, 1)

    def draw(spread: float, channels: int) -> Tensor:
        drawn = rng.uniform(-spread, spread, (n, channels, 1, 1))
        return strength * torch.from_numpy(drawn).float()

    middle = pixels.mean(dim=(1, 2, 3), keepdim=True)
    contrasted = middle + (pixels - middle) * (1 + draw(0.25, 1))
    return (contrasted * (1 + draw(0.07, 3)) + draw(0.08, 1)).clamp(0, 1)


def augment(pictures: NDArray[np.uint8], flippable: NDArray[np.bool_], rng: np.random.Generator) -> Tensor:
    """A third of the batch resized as in evaluation, the rest as random crops."""
    pixels, whole = to_unit(pictures), len(pictures) // 3
    views = [resize(pixels[:whole]), crops(pixels[whole:], flippable[whole:], rng)]
    return standardise(colour_jitter(torch.cat(views), rng))


def may_flip(shown: Description) -> bool:
    """A mirrored glyph is another glyph, and left becomes right."""
    return shown.kind != "glyph" and shown.position not in ("left", "right")


def pairs_of(batch: Sequence[Description], count: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """`count` different colour-shape pairs, those in the batch first."""
    shown = {(d.colour, d.name) for d in batch if d.kind == "object"}
    shuffled = [PAIRS[index] for index in rng.permutation(len(PAIRS))]
    return sorted(shuffled, key=lambda pair: pair not in shown)[:count]


def matching_loss(logits: Tensor, fits: Tensor) -> Tensor:
    """Contrastive loss in both directions, where a picture may have several matching captions and vice versa."""
    captioned = fits.sum(dim=1) > 0
    by_picture, by_caption = logits[captioned].log_softmax(1), logits.log_softmax(0)
    share = fits[captioned] / fits[captioned].sum(dim=1, keepdim=True)
    forward = (share * by_picture).sum(dim=1).mean()
    backward = (fits / fits.sum(dim=0, keepdim=True) * by_caption).sum(dim=0).mean()
    return -(forward + backward)


def step_loss(
    model: CLIP,
    lexicon: Lexicon,
    pictures: NDArray[np.uint8],
    shown: Sequence[Description],
    recipe: Recipe,
    rng: np.random.Generator,
) -> dict[str, Tensor]:
    """The weighted losses of one batch by name; the sum is minimised."""
    facts = np.stack([encode_picture(d) for d in shown])
    phrases = [phrase for _, group, _ in GROUPS for phrase in group]
    pairs = pairs_of(shown, recipe.pairs, rng)
    phrases += [f"{colour} {shape}" for colour, shape in pairs]
    short = [fill_template(phrase, rng, recipe.canonical) for phrase in phrases]
    free = [caption(d, rng) for d in shown[: recipe.captions]]

    flippable = np.array([may_flip(d) for d in shown])
    # `augment` does not crop the first pictures of a batch and `free` captions describe them: shuffle
    order = rng.permutation(len(shown))
    images = image_features(model, augment(pictures[order], flippable[order], rng))
    facts = facts[order]
    texts = [
        text_features(model, lexicon.encode(short, SHORT)),
        text_features(model, lexicon.encode([text for text, _ in free], LONG)),
    ]
    logits = model.logit_scale.exp() * images @ torch.cat(texts).T

    losses, start = {}, 0
    for fact, group, weight in GROUPS:
        target = facts[:, FACTS.index(fact)].copy()
        if fact == "texture":
            target -= 1  # plain, the first value, is no texture and becomes UNSTATED
        scores = logits[:, start : start + len(group)]
        losses[fact] = weight * cross_entropy(scores, torch.from_numpy(target))
        start += len(group)
    codes = np.stack([encode({"kind": "object", "colour": c, "name": s}) for c, s in pairs])
    fits = agrees(codes, facts)
    target = np.where(fits.any(axis=1), fits.argmax(axis=1), UNSTATED)
    scores = logits[:, start : start + len(pairs)]
    losses["pair"] = 0.5 * cross_entropy(scores, torch.from_numpy(target))
    fits = agrees(np.stack([encode(stated) for _, stated in free]), facts)
    losses["free"] = 0.25 * matching_loss(logits[:, start + len(pairs) :], torch.from_numpy(fits).float())
    return losses


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over pictures that have a target; zero if none has."""
    stated = (target != UNSTATED).sum().clamp(min=1)
    return F.cross_entropy(logits, target, ignore_index=UNSTATED, reduction="sum") / stated


def start_model(lexicon: Lexicon, seed: int) -> CLIP:
    """A fresh model with an embedding of the vocabulary only: 6 million unused weights would slow each step."""
    torch.manual_seed(seed)
    model = tiny_model.build()
    compact = nn.Embedding(len(lexicon.row_of), tiny_model.WIDTH)
    nn.init.normal_(compact.weight, std=tiny_model.UNTRAINED_STD)
    model.token_embedding = compact
    model.visual.to(memory_format=torch.channels_last)
    return model.train()


def make_optimizer(model: CLIP, recipe: Recipe) -> torch.optim.AdamW:
    """Weight decay on matrices and kernels only: not on embeddings, norms, biases or the scale."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if parameter.ndim >= 2 and "embedding" not in name else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)


def with_full_embedding(trained: CLIP) -> CLIP:
    """The same model with CLIP's whole token table around the trained rows."""
    model = tiny_model.build()
    state = trained.state_dict()
    table = model.token_embedding.weight.detach().clone()
    table[list(tiny_model.vocabulary_ids())] = state[tiny_model.EMBEDDING]
    model.load_state_dict({**state, tiny_model.EMBEDDING: table})
    return model.eval()


def batch_indices(recipe: Recipe, step: int) -> NDArray[np.int64]:
    """Epochs over the pool, each in a random order of its own, without an incomplete last batch."""
    epoch, position = divmod(step, recipe.pool // recipe.batch)
    order = generator("train", recipe.seed, "epoch", epoch).permutation(recipe.pool)
    return order[position * recipe.batch : (position + 1) * recipe.batch]


def peak_megabytes() -> float:
    """Peak memory of this process (ru_maxrss is in KiB on Linux, in bytes on macOS)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


class Progress:
    """Prints smoothed losses, speed and memory every `every` steps."""

    def __init__(self, recipe: Recipe, first: int, every: int) -> None:
        self.recipe, self.first, self.every = recipe, first, every
        self.begun, self.cpu = time.monotonic(), time.process_time()
        self.smoothed: dict[str, float] = {}

    def report(self, done: int, losses: dict[str, Tensor], scale: float) -> None:
        for name, loss in losses.items():
            self.smoothed[name] = 0.95 * self.smoothed.get(name, loss.item()) + 0.05 * loss.item()
        if done % self.every and done != self.recipe.last:
            return
        images = (done - self.first) * self.recipe.batch
        print(
            f"{done}/{self.recipe.last} ",
            *(f"{name} {value:.2f}" for name, value in self.smoothed.items()),
            f" scale {scale:.1f}",
            f" {images / (time.monotonic() - self.begun):.0f} images/s",
            f" cpu {(time.process_time() - self.cpu):.0f} s",
            f" peak {peak_megabytes():.0f} MB",
            flush=True,
        )


def save_checkpoint(path: Path, recipe: Recipe, done: int, model: CLIP, optimizer: torch.optim.Optimizer) -> None:
    content = {"recipe": asdict(recipe), "step": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with written_whole(path) as partial:
        torch.save(content, partial)


def load_checkpoint(path: Path, recipe: Recipe, model: CLIP, optimizer: torch.optim.Optimizer) -> int:
    """Restore both in place; returns the number of steps taken."""
    saved = torch.load(path, weights_only=True)
    if not recipe.is_like(Recipe(**saved["recipe"]), saved["step"]):
        raise ValueError(f"{path}: made by another recipe, {saved['recipe']}")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def read_pool(path: Path, recipe: Recipe, workers: int) -> NDArray[np.uint8]:
    """Draw the pool into `path` and map it into memory."""
    begun = time.monotonic()
    drawn = sum(draw_pool(path, recipe.seed, recipe.pool, workers))
    print(f"pool: {drawn} pictures in {time.monotonic() - begun:.0f} s", flush=True)
    pictures: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    return pictures


def train(recipe: Recipe, checkpoint: Path, resume: bool, workers: int, every: int = 50) -> CLIP:
    """The trained model; `checkpoint` is rewritten regularly; `resume` continues from it."""
    lexicon = Lexicon()
    model = start_model(lexicon, recipe.seed)
    optimizer = make_optimizer(model, recipe)
    first = 0
    if resume and checkpoint.exists():
        first = load_checkpoint(checkpoint, recipe, model, optimizer)
    if first == recipe.last:
        return model

    with tempfile.TemporaryDirectory(prefix="fpp_sweep_tiny_") as folder:
        pictures = read_pool(Path(folder) / "pool.npy", recipe, workers)
        shown = [description(recipe.seed, index) for index in range(recipe.pool)]
        progress = Progress(recipe, first, every)
        for step in range(first, recipe.last):
            rng = generator("train", recipe.seed, "step", step)
            batch = batch_indices(recipe, step)
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(step)
            losses = step_loss(model, lexicon, pictures[batch], [shown[i] for i in batch], recipe, rng)
            optimizer.zero_grad()
            torch.stack(list(losses.values())).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))  # CLIP's own limit

            done = step + 1
            progress.report(done, losses, model.logit_scale.exp().item())
            if done % (5 * every) == 0 or done == recipe.last:
                save_checkpoint(checkpoint, recipe, done, model, optimizer)
    return model
