"""Measured numbers of DynaPrompt's released code, sample by sample; see README.md beside this file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.golden import FOLDER

STARTS = (0, 10, 20, 30)  # samples before which the offsets are stored
EXACT = ("init_slot", "entropy_order", "difference_order", "rank_of_init", "candidates", "selected", "views")
# largest differences, as the source of the numbers allows them
NEAR = {"entropy": 1e-4, "difference": 2e-3, "loss": 1e-4, "offset_sum": 2e-3, "logits": 2e-3, "probs": 1e-4}


@dataclass(frozen=True)
class Stream:
    """One case: a buffer that took 40 samples."""

    name: str
    settings: dict[str, Any]
    arrays: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def rule(self) -> str:
        return {"described": "described", "fixed": "corrected"}.get(self.name.partition("_")[0], "released")

    def buffer(self, start: int) -> tuple[Tensor, list[int], list[int]]:
        """Offsets, order and use before a sample."""
        order, use = (self[f"{name}_before"][start].tolist() for name in ("order", "use"))
        return self[f"offsets_before.{start}"].clone(), order, use

    def spans(self) -> list[range]:
        """Samples that can be run on from a stored start; gradients of the described rule get very small."""
        free = range(self.settings["free_run_samples"])
        late = [range(start, min(start + 10, len(self["probs"]))) for start in STARTS if start not in free]
        return [free, *late]


@cache
def views() -> Tensor:
    """(40, 64, D), not of unit norm."""
    return _arrays()["views"].float()


@cache
def streams() -> dict[str, Stream]:
    settings = json.loads((FOLDER / "dynaprompt_small.json").read_text())
    cases = {}
    for case in settings["cases"]:
        prefix = f"{case['name']}/"
        arrays = {name.removeprefix(prefix): value for name, value in _arrays().items() if name.startswith(prefix)}
        cases[case["name"]] = Stream(case["name"], case, arrays)
    return cases


@cache
def _arrays() -> dict[str, Tensor]:
    with np.load(FOLDER / "dynaprompt_small.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored}
