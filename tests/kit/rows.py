"""Rows that tests add to the catalogue for a while: a stateful method, and a metric of a column."""

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
    """Add rows to the catalogue, and remove them at the end."""
    for row in rows:
        catalogue.add(row)
    try:
        yield
    finally:
        for row in rows:
            catalogue.remove(row)


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """The text features, and the sum and number of the samples so far."""

    features: Tensor  # (K, D)
    total: Tensor  # (D,) of plain views
    count: Tensor  # ()


class RunningMean:
    """Zero-shot prediction on plain views minus the mean of all samples so far: every number depends on their order."""

    def __init__(self, **unread: object) -> None:
        """Accept and ignore all settings."""

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> StreamState:
        features = model.texts.features(context)
        return StreamState(features=features, total=torch.zeros_like(features[0]), count=torch.zeros(()))

    def predict(self, model: TextModel, state: StreamState, views: Tensor) -> tuple[Tensor, StreamState]:
        rows = []
        for view in views[:, 0]:
            state = replace(state, total=state.total + view, count=state.count + 1)
            rows.append(model.logit_scale * state.features @ (view - state.total / state.count))
        return torch.stack(rows), state

    def pack(self, state: StreamState) -> Mapping[str, Tensor]:
        return {"total": state.total, "count": state.count}

    def unpack(self, state: StreamState, tensors: Mapping[str, Tensor]) -> StreamState:
        return replace(state, **tensors)


RUNNING_MEAN = MethodRow(
    name="running_mean", title="zero-shot without the mean", build=RunningMean, views=1, learns=False, stateful=True,
    reads=(),
)  # fmt: skip


def margin(predictions: Predictions) -> float:
    """Return the mean distance of the two largest logits."""
    largest = np.sort(predictions.columns["logits"], axis=1)
    return float((largest[:, -1] - largest[:, -2]).mean())


def metric_row(name: str = "margin", compute: Any = margin, columns: tuple[str, ...] = ("logits",)) -> MetricRow:
    return MetricRow(name=name, title="", goal="max", heading=name, decimals=2, compute=compute, columns=columns)
