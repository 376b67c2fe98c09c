"""A small random CLIP for tests: real parts, no files, milliseconds to build."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.text.tower import TextTower
from tests.reference.naive import random_weights

# one token each, so that "a photo of a" is four positions as with CLIP's tokenizer
WORDS = ("a", "photo", "of", "the", "an", "picture", "drawing", "small", "blurry", "x")


class WordTokenizer:
    """A few words whole, the rest in pairs of letters: lengths vary, beginnings are shared, names never collide.

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
        words = re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower())
        return [self._ids.get(piece, self._ids["?"]) for word in words for piece in _pieces(word)]


def _pieces(word: str) -> list[str]:
    return [word] if word in WORDS else re.findall("..?", word)


class SmallVisual(nn.Module):
    """Pixels to D numbers through one layer of patches and two matrices."""

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
    """A CLIP with random weights, the same for the same arguments."""
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
