"""Class vectors of an ensemble: the mean of the text features of all texts of a class, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.text.packing import Packing
from fpp_sweep.core.text.tower import TextTower, Tokenizer
from fpp_sweep.spec.errors import InputError


@torch.no_grad()
def ensemble_features(tower: TextTower, tokenizer: Tokenizer, texts_by_class: Sequence[Sequence[str]]) -> Tensor:
    """Return the unit mean (K, D) of the unit features of each class's texts.

    The first texts of all classes go through the tower together, then the second ones, and so on: texts of one template
    share their beginnings.
    """
    sums = tower.projection[0].new_zeros(len(texts_by_class), tower.feature_size)
    for index in range(max(map(len, texts_by_class))):
        classes = [number for number, texts in enumerate(texts_by_class) if index < len(texts)]
        texts = [texts_by_class[number][index] for number in classes]
        sums[classes] += text_features(tower, tokenizer, texts)
    return F.normalize(sums, dim=-1)


def require_room(tower: TextTower, token_ids: Sequence[int], text: str) -> None:
    """Raise InputError if a text does not fit between SOS and EOT."""
    needed = len(token_ids) + 2
    if needed > tower.positions:
        raise InputError(f"text {text[:60]!r} needs {needed} tokens, but the model has {tower.positions}; shorten it")


def text_features(tower: TextTower, tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return the unit features (N, D) of whole texts, between SOS and EOT."""
    token_ids = []
    for text in texts:
        ids = tokenizer.encode(text)
        require_room(tower, ids, text)
        token_ids.append([*ids, tokenizer.eot])
    packing = Packing.of(token_ids)
    nodes = tower.token_embedding[packing.values_at_nodes(token_ids).to(tower.device)]
    sos = tower.token_embedding[tokenizer.sos]
    return tower.features(sos[None, None], nodes[None], packing.to(tower.device))[0]
