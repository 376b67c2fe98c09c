"""Sharpness of the entropy at a sample's adapted prompt.

The paper gives no numbers that define it; docs/methods.md has the choices made here.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fpp_sweep.core.compute import run_in_batches
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import gradient_of, gradients_at
from fpp_sweep.core.methods.tpt import confident_views, marginal_entropy
from fpp_sweep.core.optim import unit
from fpp_sweep.spec.config import MeasureConfig


@torch.no_grad()
def measure_sharpness(
    model: TextModel,
    initial: Tensor,
    contexts: Tensor,
    views: Tensor,
    fraction: float,
    config: MeasureConfig,
    columns: Collection[str],
) -> dict[str, Tensor]:
    """Return the requested columns, (B,) each, at contexts theta (B, n, W) that were adapted from `initial` (n, W).

    L is the entropy of the mean prediction of a sample's confident views, a `fraction` of all, and g its gradient:

    - sharpness: L(theta + rho g / ||g||) - L(theta)
    - product: <theta, g>
    """
    initial_logits = model.logits(views, model.features(initial))
    confident = confident_views(views, initial_logits, fraction)  # (B, S, D)

    def feature_gradient(features: Tensor, rows: Tensor) -> Tensor:
        if config.views == "adapted":  # L is on these views everywhere, so replace those selected at `initial`
            logits = model.logits(views[rows], features)
            confident[rows] = confident_views(views[rows], logits, fraction)
        return gradient_of(lambda text: marginal_entropy(model.logits(confident[rows], text)), features)

    gradients, features = gradients_at(model, contexts, feature_gradient)
    values: dict[str, Tensor] = {}
    if "product" in columns:
        values["product"] = (contexts * gradients).sum((-2, -1))
    if "sharpness" in columns:
        dim: tuple[int, ...] = (-2, -1)
        if config.norm == "token":
            dim = (-1,)
        perturbed = contexts + config.rho * unit(gradients, dim=dim)
        perturbed_features = run_in_batches(model.features, perturbed, model.texts.contexts_per_batch())
        after = marginal_entropy(model.logits(confident, perturbed_features))
        before = marginal_entropy(model.logits(confident, features))
        values["sharpness"] = after - before
    return values
