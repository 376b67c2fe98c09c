"""The loss of a training step, which compares pictures with captions through both towers.

Every step compares a batch of pictures, cropped and jittered, with captions of the same step:

1. one caption per name (80), per colour (12) and per texture (13), in random templates, so that every class is a
   negative at every step;
2. "{colour} {shape}" captions of objects in the batch;
3. captions that combine several facts, each a positive for every picture of which it is true.

Shapes: N pictures in the batch, L tokens of a caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.tiny.model import IMAGE_MEAN, IMAGE_SIZE, IMAGE_STD
from fpp_sweep.tiny.rendering import COLOUR_NAMES, TEXTURE_NAMES
from fpp_sweep.tiny.shapes import SHAPE_NAMES
from tools.train_tiny.captions import (
    FACTS,
    UNSTATED,
    agrees,
    caption,
    encode,
    encode_picture,
    fill_template,
    split_words,
)
from tools.train_tiny.pictures import NAMES, Description, is_held_out
from tools.train_tiny.recipe import Recipe
from tools.train_tiny.weights import vocabulary_ids

if TYPE_CHECKING:
    from open_clip import CLIP

SHORT, LONG = 16, 28  # tokens of a caption; two fixed lengths, because memory grows with every new shape
PAIRS = tuple([pair for pair in product(COLOUR_NAMES, SHAPE_NAMES) if not is_held_out(pair[1], pair[0])])
COLOUR_PHRASES = tuple([f"{colour} thing" for colour in COLOUR_NAMES])
TEXTURE_PHRASES = tuple([f"{texture} texture" for texture in TEXTURE_NAMES])
# fact, phrases of its captions, weight in the loss
GROUPS = (("name", NAMES, 1.0), ("colour", COLOUR_PHRASES, 0.5), ("texture", TEXTURE_PHRASES, 1.0))
PAIR_WEIGHT, FREE_WEIGHT = 0.5, 0.25


class Lexicon:
    """An encoder of captions as rows of the trained embedding, which has only the words of the captions."""

    def __init__(self) -> None:
        # start-up time: open_clip takes seconds to import
        from open_clip import SimpleTokenizer

        tokenizer = SimpleTokenizer()
        self.row_of = {token: row for row, token in enumerate(vocabulary_ids())}
        self.start = self.row_of[tokenizer.sot_token_id]
        self.end = self.row_of[tokenizer.eot_token_id]  # the highest row, as CLIP's pooling expects
        self.word = cache(lambda word: [self.row_of[token] for token in tokenizer.encode(word)])

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """Return rows (texts, L), padded with zeros after the end token, where they are masked."""
        rows = torch.zeros(len(texts), length, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            tokens = [self.start]
            for word in split_words(text):
                tokens += self.word(word)
            tokens.append(self.end)
            if len(tokens) > length:
                raise ValueError(f"caption of {len(tokens)} tokens, at most {length}: {text!r}")
            row[: len(tokens)] = torch.tensor(tokens)
        return rows


def text_features(model: CLIP, tokens: Tensor) -> Tensor:
    """Return unit features of tokens (rows, L); attention is causal, so tokens after the end of text may be missing."""
    length = tokens.shape[1]
    hidden = model.token_embedding(tokens) + model.positional_embedding[:length]
    hidden = model.transformer(hidden, attn_mask=model.attn_mask[:length, :length])
    ends = hidden[torch.arange(len(tokens)), tokens.argmax(dim=-1)]
    return F.normalize(model.ln_final(ends) @ model.text_projection, dim=-1)


def image_features(model: CLIP, pixels: Tensor) -> Tensor:
    return F.normalize(model.encode_image(pixels), dim=-1)


# augmentation


def to_unit(pictures: NDArray[np.uint8]) -> Tensor:
    """Bytes (N, H, W, 3) -> pixels (N, 3, H, W) in 0..1."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255


def resize(pixels: Tensor) -> Tensor:
    return F.interpolate(pixels, (IMAGE_SIZE, IMAGE_SIZE), mode="bicubic", antialias=True).clamp(0, 1)


def standardise(pixels: Tensor) -> Tensor:
    mean = torch.tensor(IMAGE_MEAN).view(3, 1, 1)
    std = torch.tensor(IMAGE_STD).view(3, 1, 1)
    return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)


def crops(pixels: Tensor, flippable: NDArray[np.bool_], rng: np.random.Generator) -> Tensor:
    """Return random views: area 0.45 to 1, small changes of aspect and angle, half of them mirrored."""
    n = len(pixels)
    side, aspect = np.sqrt(rng.uniform(0.45, 1, n)), np.exp(rng.uniform(-0.12, 0.12, n))
    width, height = np.minimum(side * aspect, 1), np.minimum(side / aspect, 1)
    x, y = (1 - width) * rng.uniform(-1, 1, n), (1 - height) * rng.uniform(-1, 1, n)
    angle = rng.normal(0, 0.1, n)
    mirror = np.where(flippable & (rng.random(n) < 0.5), -1, 1)
    cosine, sine = np.cos(angle), np.sin(angle)
    transform = np.stack([width * cosine * mirror, -height * sine, x, width * sine * mirror, height * cosine, y], 1)
    shape = [n, 3, IMAGE_SIZE, IMAGE_SIZE]
    grid = F.affine_grid(torch.from_numpy(transform).float().view(n, 2, 3), shape, align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def colour_jitter(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Change contrast, brightness and white balance of half of the views."""
    n = len(pixels)
    strength = torch.from_numpy(rng.random(n) < 0.5).float().view(n, 1, 1, 1)

    def draw(spread: float, channels: int) -> Tensor:
        drawn = rng.uniform(-spread, spread, (n, channels, 1, 1))
        return strength * torch.from_numpy(drawn).float()

    middle = pixels.mean(dim=(1, 2, 3), keepdim=True)
    contrasted = middle + (pixels - middle) * (1 + draw(0.25, 1))
    return (contrasted * (1 + draw(0.07, 3)) + draw(0.08, 1)).clamp(0, 1)


def augment(pictures: NDArray[np.uint8], flippable: NDArray[np.bool_], rng: np.random.Generator) -> Tensor:
    """Resize a third of the batch as in evaluation, and crop the rest at random."""
    pixels, whole = to_unit(pictures), len(pictures) // 3
    views = [resize(pixels[:whole]), crops(pixels[whole:], flippable[whole:], rng)]
    return standardise(colour_jitter(torch.cat(views), rng))


def may_flip(description: Description) -> bool:
    """Return whether a mirror image shows the same: a mirrored glyph is another glyph, and left becomes right."""
    return description.kind != "glyph" and description.position not in ("left", "right")


# losses


def choose_pairs(batch: Sequence[Description], count: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return `count` different colour-shape pairs, pairs of the batch first."""
    in_batch = {(description.colour, description.name) for description in batch if description.kind == "object"}
    shuffled = [PAIRS[index] for index in rng.permutation(len(PAIRS))]
    return sorted(shuffled, key=lambda pair: pair not in in_batch)[:count]


def matching_loss(logits: Tensor, fits: Tensor) -> Tensor:
    """Return the contrastive loss in both directions for logits (pictures, captions).

    A picture may have several matching captions (`fits`), and a caption several matching pictures.
    """
    captioned = fits.sum(dim=1) > 0
    by_picture, by_caption = logits[captioned].log_softmax(1), logits.log_softmax(0)
    share = fits[captioned] / fits[captioned].sum(dim=1, keepdim=True)
    forward = (share * by_picture).sum(dim=1).mean()
    backward = (fits / fits.sum(dim=0, keepdim=True) * by_caption).sum(dim=0).mean()
    return -(forward + backward)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean over pictures that have a target; zero if none has."""
    stated = (target != UNSTATED).sum().clamp(min=1)
    return F.cross_entropy(logits, target, ignore_index=UNSTATED, reduction="sum") / stated


def step_loss(
    model: CLIP,
    lexicon: Lexicon,
    pictures: NDArray[np.uint8],
    descriptions: Sequence[Description],
    recipe: Recipe,
    rng: np.random.Generator,
) -> dict[str, Tensor]:
    """Return the weighted losses of one batch by name; their sum is minimised."""
    pairs = choose_pairs(descriptions, recipe.pairs, rng)
    phrases: list[str] = []
    for _, group, _ in GROUPS:
        phrases += group
    phrases += [f"{colour} {shape}" for colour, shape in pairs]
    short = [fill_template(phrase, rng, recipe.canonical) for phrase in phrases]
    free = [caption(description, rng) for description in descriptions[: recipe.captions]]

    facts = np.stack([encode_picture(description) for description in descriptions])  # (N, facts)
    flippable = np.array([may_flip(description) for description in descriptions])
    # `augment` does not crop the first pictures of a batch and `free` captions describe them: shuffle
    order = rng.permutation(len(descriptions))
    facts = facts[order]
    images = image_features(model, augment(pictures[order], flippable[order], rng))
    texts = torch.cat(
        [
            text_features(model, lexicon.encode(short, SHORT)),
            text_features(model, lexicon.encode([text for text, _ in free], LONG)),
        ]
    )
    logits = model.logit_scale.exp() * images @ texts.T  # (N, captions)
    return _losses(logits, facts, pairs, [stated for _, stated in free])


def _losses(
    logits: Tensor,
    facts: NDArray[np.int64],
    pairs: Sequence[tuple[str, str]],
    free: Sequence[dict[str, str | int | None]],
) -> dict[str, Tensor]:
    """Return the weighted losses of logits whose columns are the captions of GROUPS, of pairs, and free ones."""
    losses: dict[str, Tensor] = {}
    start = 0
    for fact, group, weight in GROUPS:
        target = facts[:, FACTS.index(fact)].copy()
        if fact == "texture":
            target -= 1  # the first value, plain, means no texture and becomes UNSTATED
        scores = logits[:, start : start + len(group)]
        losses[fact] = weight * cross_entropy(scores, torch.from_numpy(target))
        start += len(group)
    codes = [encode({"kind": "object", "colour": colour, "name": shape}) for colour, shape in pairs]
    fits = agrees(np.stack(codes), facts)
    target = np.where(fits.any(axis=1), fits.argmax(axis=1), UNSTATED)
    scores = logits[:, start : start + len(pairs)]
    losses["pair"] = PAIR_WEIGHT * cross_entropy(scores, torch.from_numpy(target))
    fits = agrees(np.stack([encode(stated) for stated in free]), facts)
    free_logits = logits[:, start + len(pairs) :]
    losses["free"] = FREE_WEIGHT * matching_loss(free_logits, torch.from_numpy(fits).float())
    return losses
