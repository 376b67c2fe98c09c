"""Readers of the measured numbers of the released FPP and MaPLe code; README.md beside this file describes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent
HEADS = 2
VOCABULARY = 49408


@dataclass(frozen=True)
class Golden:
    """A file of golden numbers: arrays under their stored names, the settings of the runs, and a text tower."""

    settings: dict[str, Any]
    arrays: dict[str, Tensor]
    weights: dict[str, Tensor]  # in OpenAI's naming, float32; rows of unused tokens are zero

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def logit_scale(self) -> float:
        return float(self.weights["logit_scale"].exp())


def read(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the arrays of `name.npz` and the settings in `name.json`."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored}
    return arrays, json.loads((FOLDER / f"{name}.json").read_text())


@cache
def load(name: str = "tta_fpp_small") -> Golden:
    """Load all golden numbers of a pair of files that includes a tower."""
    arrays, settings = read(name)
    weights = {}
    for key, value in arrays.items():
        if key.startswith("weights/") and "token_embedding" not in key:
            weights[key.removeprefix("weights/")] = value.float()
    rows = arrays["weights/token_embedding.rows"].float()
    token_table = torch.zeros(VOCABULARY, rows.shape[1])
    token_table[arrays["weights/token_embedding.ids"]] = rows
    weights["token_embedding.weight"] = token_table
    return Golden(settings, arrays, weights)


@cache
def load_steps() -> Golden:
    """Load the numbers of two steps, sharpness-aware steps and sharpness, on the same tower and class names."""
    arrays, settings = read("two_step_sam_small")
    return Golden(settings, arrays, load().weights)
