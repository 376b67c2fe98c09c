"""A reader of the measured numbers of DynaPrompt's released code; README.md beside this file describes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.golden import FOLDER

STARTS = (0, 10, 20, 30)  # the files store the offsets before these samples
EXACT = ("init_slot", "entropy_order", "difference_order", "rank_of_init", "candidates", "selected", "views")
# largest allowed differences; the measurement of the numbers states them
NEAR = {"entropy": 1e-4, "difference": 2e-3, "loss": 1e-4, "offset_sum": 2e-3, "logits": 2e-3, "probs": 1e-4}


@dataclass(frozen=True)
class Stream:
    """A case: a buffer of slots that adapted to a stream of 40 samples."""

    name: str
    settings: dict[str, Any]
    arrays: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def rule(self) -> str:
        """The rule by which the stream selects slots."""
        if self.name.startswith("described_"):
            return "described"
        if self.name.startswith("fixed_"):
            return "corrected"
        return "released"

    def buffer(self, start: int) -> tuple[Tensor, list[int], list[int]]:
        """Return offsets, order and use before a sample."""
        order = self["order_before"][start].tolist()
        use = self["use_before"][start].tolist()
        return self[f"offsets_before.{start}"].clone(), order, use

    def spans(self) -> list[range]:
        """Return ranges of samples, each of which a test can run from the offsets that are stored before it.

        Later samples need a stored start where gradients get so small that rounding errors reach the offsets.
        """
        first_span = range(self.settings["free_run_samples"])
        spans = [first_span]
        for start in STARTS:
            if start not in first_span:
                spans.append(range(start, min(start + 10, len(self["probs"]))))
        return spans


@cache
def views() -> Tensor:
    """Return the views (40, 64, D) of all samples, which are not of unit norm."""
    return _arrays()["views"].float()


@cache
def streams() -> dict[str, Stream]:
    """Return all cases by name."""
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
