"""Texts for any text tower: CLIP's in its fast form, or another one of open_clip."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.core.text.packing import Packing
from fpp_sweep.core.text.padded import PaddedTexts, PaddedTower, RowTokenizer, row_features
from fpp_sweep.core.text.tower import TextTower, Tokenizer
from fpp_sweep.spec.errors import InputError

Texts = ClassTexts | PaddedTexts
Tower = TextTower | PaddedTower
AnyTokenizer = Tokenizer | RowTokenizer


def class_texts(tower: Tower, tokenizer: AnyTokenizer, names: Sequence[str], *, after: str = "") -> Texts:
    """Return the texts '<context> name.'; underscores become spaces, and `after` are words before the name."""
    if isinstance(tower, PaddedTower):
        assert isinstance(tokenizer, RowTokenizer), "the tower's own"
        return PaddedTexts.of_names(tower, tokenizer, names, after=after)
    assert not isinstance(tokenizer, RowTokenizer), "the tower's own"
    return ClassTexts.of_names(tower, tokenizer, names, after=after)


def gaussian_texts(tower: Tower, tokenizer: AnyTokenizer, classes: int, generator: torch.Generator) -> Texts:
    """Return texts without names: two random tokens with the mean and spread of the whole token table."""
    if isinstance(tower, PaddedTower):
        assert isinstance(tokenizer, RowTokenizer), "the tower's own"
        return PaddedTexts.of_gaussians(tower, tokenizer, classes, generator)
    assert not isinstance(tokenizer, RowTokenizer), "the tower's own"
    return ClassTexts.of_gaussians(tower, tokenizer, classes, generator)


@torch.no_grad()
def ensemble_features(tower: Tower, tokenizer: AnyTokenizer, texts_by_class: Sequence[Sequence[str]]) -> Tensor:
    """Return the unit mean (K, D) of the unit features of each class's texts.

    The first texts of all classes go through the tower together, then the second ones, and so on: texts of one template
    share their beginnings.
    """
    sums = torch.zeros(len(texts_by_class), tower.feature_size, device=tower.device)
    for index in range(max(map(len, texts_by_class))):
        classes = [number for number, texts in enumerate(texts_by_class) if index < len(texts)]
        texts = [texts_by_class[number][index] for number in classes]
        sums[classes] += text_features(tower, tokenizer, texts)
    return F.normalize(sums, dim=-1)


def require_room(tower: Tower, token_ids: Sequence[int], text: str) -> None:
    """Raise InputError if a text does not fit between SOS and EOT."""
    needed = len(token_ids) + 2
    if needed > tower.positions:
        raise InputError(f"text {text[:60]!r} needs {needed} tokens, but the model has {tower.positions}; shorten it")


def text_features(tower: Tower, tokenizer: AnyTokenizer, texts: Sequence[str]) -> Tensor:
    """Return the unit features (N, D) of whole texts, between SOS and EOT."""
    for text in texts:
        require_room(tower, tokenizer.encode(text), text)
    if isinstance(tower, PaddedTower):
        assert isinstance(tokenizer, RowTokenizer), "the tower's own"
        return row_features(tower, tokenizer, texts)
    assert not isinstance(tokenizer, RowTokenizer), "the tower's own"
    token_ids = [[*tokenizer.encode(text), tokenizer.eot] for text in texts]
    packing = Packing.of(token_ids)
    nodes = tower.token_embedding[packing.values_at_nodes(token_ids).to(tower.device)]
    sos = tower.token_embedding[tokenizer.sos]
    return tower.features(sos[None, None], nodes[None], packing.to(tower.device))[0]
