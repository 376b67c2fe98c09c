"""Small CLIPs with random weights: built from real components in memory, and in the file formats of checkpoints."""

from __future__ import annotations

import hashlib
import re
import string
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.text.tower import TextTower
from tests.reference.naive import random_weights

# Words of one token each, so that "a photo of a" has four tokens as with CLIP's tokenizer.
WORDS = ("a", "photo", "of", "the", "an", "picture", "drawing", "small", "blurry", "x")


class WordTokenizer:
    """A tokenizer of a few whole words and pairs of letters.

    Texts have different lengths, some share their first tokens, and two names never have equal tokens.

    >>> WordTokenizer().encode("a photo") == [1, 2]
    True
    """

    def __init__(self) -> None:
        letters = string.ascii_lowercase + string.digits
        pairs = (first + second for first in letters for second in letters)
        pieces = dict.fromkeys(["", *WORDS, *letters, *string.punctuation, *pairs])  # 0: padding
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self.sos = len(self._ids)
        self.eot = self.sos + 1
        self.vocabulary = self.eot + 1

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower()):
            for piece in _pieces(word):
                ids.append(self._ids.get(piece, self._ids["?"]))
        return ids


def _pieces(word: str) -> list[str]:
    if word in WORDS:
        return [word]
    return re.findall("..?", word)


class SmallVisual(nn.Module):
    """An image tower: one layer of patches and two matrices."""

    def __init__(self, size: int, embed_dim: int, hidden: int = 32) -> None:
        super().__init__()
        patch = max(1, size // 4)
        self.patches = nn.Conv2d(3, hidden, kernel_size=patch, stride=patch)
        self.mix = nn.Linear(hidden * (size // patch) ** 2, hidden)
        self.project = nn.Linear(hidden, embed_dim, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = torch.tanh(self.patches(pixels)).flatten(start_dim=1)
        features: Tensor = self.project(torch.tanh(self.mix(hidden)))
        return features


def random_clip(
    *, width: int = 32, heads: int = 2, layers: int = 2, embed_dim: int = 16, size: int = 16, seed: int = 0
) -> Clip:
    """Return a CLIP with random weights, the same for the same arguments; it takes milliseconds to build."""
    tokenizer = WordTokenizer()
    weights = random_weights(
        width=width, layers=layers, embed_dim=embed_dim, vocabulary=tokenizer.vocabulary, seed=seed
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        visual = SmallVisual(size, embed_dim).eval().requires_grad_(False)
    image_digest = _digest([visual.state_dict()])
    return Clip(
        name=f"random-{seed}",
        visual=visual,
        text=TextTower.from_state(weights, heads=heads, activation="quick_gelu"),
        tokenizer=tokenizer,
        logit_scale=float(weights["logit_scale"].exp()),
        preprocess=Preprocess(size=size),
        embedding_scale=1.0,
        image_digest=image_digest,
        digest=_digest([visual.state_dict(), weights]),
    )


def _digest(states: Iterable[Mapping[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for state in states:
        for name, value in sorted(state.items()):
            digest.update(name.encode())
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


# ------------------------------------------------------------ checkpoint formats

SMALL_SETTINGS: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "layers": 2, "width": 64, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 2},
}
OPENAI_SETTINGS = {"input_resolution": 32, "context_length": 77, "vocab_size": 49408}


def small_clip(*, seed: int = 0, **settings: Any) -> Any:
    """Return a CLIP of open_clip with random weights; `settings` replace those of SMALL_SETTINGS."""
    from open_clip.model import CLIP

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CLIP(**{**SMALL_SETTINGS, **settings}).eval()


def half_precision_clip(*, seed: int = 0, quick_gelu: bool = True) -> Any:
    """Return a CLIP stored as OpenAI's and open_clip's fp16 models are: matrices in half precision, the rest single."""
    from open_clip.model import convert_weights_to_fp16

    model = small_clip(seed=seed, quick_gelu=quick_gelu, cast_dtype=torch.float16)
    convert_weights_to_fp16(model)
    return model


def save_openai_archive(path: Path, *, seed: int = 0, quick_gelu: bool = True) -> dict[str, torch.Tensor]:
    """Save a traced archive with OpenAI's three settings among its buffers; return the tensors that it holds."""
    model = half_precision_clip(seed=seed) if quick_gelu else small_clip(seed=seed)
    for name, value in OPENAI_SETTINGS.items():
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(value))
    image, text = torch.ones(1, 3, 32, 32, dtype=model.visual.conv1.weight.dtype), torch.zeros(1, 77, dtype=torch.int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated, but OpenAI's archives were made with it
        inputs = {"forward": (image, text), "encode_image": (image,), "encode_text": (text,)}
        traced = torch.jit.trace_module(model, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, path)
        state: dict[str, torch.Tensor] = torch.jit.load(path).state_dict()  # type: ignore[no-untyped-call]
    return state


def small_vit(**settings: Any) -> Clip:
    """Return a random CLIP as workers hold one: open_clip's ViT and a text tower of three blocks each."""
    from fpp_sweep.core.models.clip import BpeTokenizer, make_clip  # imports open_clip

    vision, text = {**SMALL_SETTINGS["vision_cfg"], "layers": 3}, {**SMALL_SETTINGS["text_cfg"], "layers": 3}
    model = small_clip(vision_cfg=vision, text_cfg=text, quick_gelu=True, **settings)
    return make_clip(
        name="small-vit",
        model=model,
        settings={"vision_cfg": vision, "text_cfg": text},
        tokenizer=BpeTokenizer(),
        preprocess=Preprocess(size=vision["image_size"]),
    )


def save_maple(
    path: Path, *, width: int = 64, outside: int = 64, tokens: int = 2, depth: int = 3, seed: int = 0, **changes: Any
) -> Path:
    """Save a checkpoint in MaPLe's layout; `changes` replace tensors of its prompt learner, None removes one.

    In the names of `changes`, two underscores stand for a dot.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, half: bool = False) -> torch.Tensor:
        value = 0.2 * torch.randn(shape, generator=generator)
        return value.half() if half else value

    learner: dict[str, torch.Tensor | None] = {
        "ctx": normal(tokens, width, half=True),
        "token_prefix": torch.zeros(3, 1, width).half(),
        "token_suffix": torch.zeros(3, 76 - tokens, width).half(),
        "proj.weight": normal(outside, width, half=True),
        "proj.bias": normal(outside, half=True),
    }
    for index in range(depth - 1):
        learner[f"compound_prompts_text.{index}"] = normal(tokens, width)
        learner[f"compound_prompt_projections.{index}.weight"] = normal(outside, width)
        learner[f"compound_prompt_projections.{index}.bias"] = normal(outside)
    learner |= {name.replace("__", "."): value for name, value in changes.items()}
    state = {f"prompt_learner.{name}": value for name, value in learner.items() if value is not None}
    state |= {"logit_scale": torch.tensor(4.6), "image_encoder.ln_post.weight": torch.ones(outside)}
    torch.save({"state_dict": state, "epoch": 2, "optimizer": {}, "scheduler": {}, "val_result": None}, path)
    return path
