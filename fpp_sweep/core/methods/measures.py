"""How sharp the entropy is at a sample's adapted prompt; no source says with which numbers (docs/methods.md)."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fpp_sweep.core.compute.memory import halving
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import gradient_of, gradients_at
from fpp_sweep.core.methods.tpt import averaged_entropy, select
from fpp_sweep.core.optim import unit
from fpp_sweep.spec.config import MeasureConfig


@torch.no_grad()
def measured(
    model: TextModel,
    initial: Tensor,
    contexts: Tensor,
    views: Tensor,
    share: float,
    config: MeasureConfig,
    columns: Collection[str],
) -> dict[str, Tensor]:
    """Those of the columns that are measured, (B,) each, at contexts (B, n, W) that were adapted from `initial` (n, W).

    With L the entropy of the averaged prediction of a sample's selected views, g its gradient at the adapted theta:
    sharpness L(theta + rho g / ||g||) - L(theta), product <theta, g>.
    """
    kept = select(views, model.logits(views, model.features(initial)), share)

    def of_features(features: Tensor, rows: Tensor) -> Tensor:
        if config.views == "adapted":
            kept[rows] = select(views[rows], model.logits(views[rows], features), share)
        return gradient_of(lambda text: averaged_entropy(model.logits(kept[rows], text)), features)

    gradients, features = gradients_at(model, contexts, of_features)
    found = {"product": (contexts * gradients).sum((-2, -1))}
    if "sharpness" in columns:
        worst = contexts + config.rho * unit(gradients, dim=(-1,) if config.norm == "token" else (-2, -1))
        there = halving(model.features, worst, model.texts.rows_at_once())
        after, before = (averaged_entropy(model.logits(kept, text)) for text in (there, features))
        found["sharpness"] = after - before
    return {name: values for name, values in found.items() if name in columns}
