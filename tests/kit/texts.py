"""Class texts in two forms: for the naive reference (77 padded ids) and for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.core.text.tower import Activation, TextTower
from tests.kit.models import WordTokenizer
from tests.reference.naive import NaiveText, prompt_features, random_views, random_weights

CLASSES = ("forest", "sea or lake", "annual crop land", "b-52", "dog", "ox", "industrial buildings")
PROMPT = "a photo of a"
# arguments of `twins` that resemble a MaPLe checkpoint: two context tokens and words after them
MAPLE: dict[str, Any] = {"layers": 4, "prompt": "a photo", "after": "of a"}


@dataclass(frozen=True)
class Twins:
    """A random text tower with a list of classes, in the form of the naive reference and in the form of the engine."""

    naive: NaiveText
    token_ids: Tensor  # (K, 77)
    texts: ClassTexts
    context: Tensor  # (n, W) of PROMPT
    logit_scale: float = 100.0

    @property
    def model(self) -> TextModel:
        return TextModel(texts=self.texts, logit_scale=self.logit_scale)

    def views(self, samples: int, views: int, seed: int = 0) -> Tensor:
        features = prompt_features(self.naive, self.token_ids, self.context)
        return random_views(features, samples=samples, views=views, logit_scale=self.logit_scale, seed=seed)


def twins(
    *,
    width: int = 32,
    heads: int = 2,
    layers: int = 2,
    embed_dim: int = 16,
    classes: Sequence[str] = CLASSES,
    prompt: str = PROMPT,
    after: str = "",
    activation: Activation = "quick_gelu",
    seed: int = 0,
) -> Twins:
    """Build a random text tower and its class texts in both forms."""
    tokenizer = WordTokenizer()
    weights = random_weights(
        width=width, layers=layers, embed_dim=embed_dim, vocabulary=tokenizer.vocabulary, seed=seed
    )
    tower = TextTower.from_state(weights, heads=heads, activation=activation)
    context = tower.token_embedding[torch.tensor(tokenizer.encode(prompt))]
    return Twins(
        naive=NaiveText(weights, heads, quick_gelu=activation == "quick_gelu"),
        token_ids=padded_ids(tokenizer, [f"{prompt} {after} {name}." for name in classes]),
        texts=ClassTexts.of_names(tower, tokenizer, classes, after=after),
        context=context,
    )


def padded_ids(tokenizer: WordTokenizer, texts: Sequence[str]) -> Tensor:
    """Return token ids (K, 77), padded with zeros, as CLIP's tokenizer does."""
    ids = torch.zeros(len(texts), 77, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        tokens = [tokenizer.sos, *tokenizer.encode(text), tokenizer.eot]
        row[: len(tokens)] = torch.tensor(tokens)
    return ids
