"""The golden text tower and class texts in the form of the engine."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import torch

from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.core.text.tower import TextTower
from tests.golden import HEADS, Golden, load


class StoredTokens:
    """A tokenizer that returns the stored token ids of the class texts in order, instead of encoding the texts."""

    sos, eot = 49406, 49407

    def __init__(self, golden: Golden) -> None:
        self._rows = iter(golden["tta/tokens"].tolist())

    def encode(self, text: str) -> list[int]:
        row: list[int] = next(self._rows)
        return row[5 : row.index(self.eot)]  # without SOS and the four tokens of "a photo of a"


def text_model(dtype: torch.dtype = torch.float32) -> TextModel:
    """Return the golden tower and class texts as the engine's text model, which computes in `dtype`."""
    golden = load()
    # The package has no setting for this type: it always computes in float32.
    with patch("fpp_sweep.core.text.tower._single", lambda weight, bias: (weight.to(dtype), bias.to(dtype))):
        tower = TextTower.from_state(golden.weights, heads=HEADS, activation="quick_gelu")
    tower = replace(
        tower,
        token_embedding=tower.token_embedding.to(dtype),
        positional_embedding=tower.positional_embedding.to(dtype),
    )
    texts = ClassTexts.of_names(tower, StoredTokens(golden), golden.settings["classnames"])
    return TextModel(texts=texts, logit_scale=golden.logit_scale)
