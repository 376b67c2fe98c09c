"""Measured numbers of the released FPP and MaPLe code, and how to read them; see README.md beside this file."""

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
    """The numbers, arrays as tensors under their stored names, and the runs' settings."""

    settings: dict[str, Any]
    arrays: dict[str, Tensor]
    weights: dict[str, Tensor]  # in OpenAI's naming, float32; rows of unused tokens are zero

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def logit_scale(self) -> float:
        return float(self.weights["logit_scale"].exp())


def read(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays of a file, and the settings beside it."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored}
    return arrays, json.loads((FOLDER / f"{name}.json").read_text())


@cache
def load(name: str = "tta_fpp_small") -> Golden:
    """Load all golden numbers of a pair of files that includes a tower."""
    arrays, settings = read(name)
    prefix = "weights/"
    weights = {
        name.removeprefix(prefix): value.float()
        for name, value in arrays.items()
        if name.startswith(prefix) and "token_embedding" not in name
    }
    rows = arrays["weights/token_embedding.rows"].float()
    table = torch.zeros(VOCABULARY, rows.shape[1])
    table[arrays["weights/token_embedding.ids"]] = rows
    weights["token_embedding.weight"] = table
    return Golden(settings, arrays, weights)


@cache
def load_steps() -> Golden:
    """Load the numbers of two steps, sharpness-aware steps and sharpness, on the same tower and class names."""
    arrays, settings = read("two_step_sam_small")
    return Golden(settings, arrays, load().weights)
