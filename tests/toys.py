"""Rows of one's own in the catalogue, for as long as a test needs them, and a method whose state evolves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import MethodRow, MetricRow


@contextmanager
def registered(*rows: MethodRow | MetricRow) -> Iterator[None]:
    """The rows are in the catalogue, and taken out again."""
    for row in rows:
        catalogue.add(row)
    try:
        yield
    finally:
        for row in rows:
            catalogue.remove(row)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The text features, and what has been seen of the stream."""

    features: Tensor  # (K, D)
    total: Tensor  # (D,) of plain views
    count: Tensor  # ()


class RunningMean:
    """Zero-shot on plain views from which the mean of all samples so far is taken: order decides every number."""

    def __init__(self, **unread: object) -> None:
        """There is nothing to set."""

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Seen:
        features = model.texts.features(context)
        return Seen(features=features, total=torch.zeros_like(features[0]), count=torch.zeros(()))

    def predict(self, model: TextModel, state: Seen, views: Tensor) -> tuple[Tensor, Seen]:
        rows = []
        for view in views[:, 0]:
            state = replace(state, total=state.total + view, count=state.count + 1)
            rows.append(model.logit_scale * state.features @ (view - state.total / state.count))
        return torch.stack(rows), state

    def pack(self, state: Seen) -> Mapping[str, Tensor]:
        return {"total": state.total, "count": state.count}

    def unpack(self, state: Seen, tensors: Mapping[str, Tensor]) -> Seen:
        return replace(state, **tensors)


RUNNING_MEAN = MethodRow(
    name="running_mean", title="zero-shot without the mean", build=RunningMean, views=1, learns=False, stateful=True,
    reads=(),
)  # fmt: skip


def margin(predictions: Predictions) -> float:
    """The mean distance of the two largest logits."""
    largest = np.sort(predictions.columns["logits"], axis=1)
    return float((largest[:, -1] - largest[:, -2]).mean())


def metric_row(name: str = "margin", compute: Any = margin, columns: tuple[str, ...] = ("logits",)) -> MetricRow:
    return MetricRow(name=name, title="", goal="max", heading=name, decimals=2, compute=compute, columns=columns)
