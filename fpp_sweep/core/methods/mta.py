"""MTA (Zanella and Ben Ayed, 2024): a robust mean shift finds the mode of a sample's views, which is then classified.

The mode and a weight for each view (its "inlierness") are estimated in turn. No gradient and no state.

Shapes: B samples, V views, K classes, D feature dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute import without_autocast
from fpp_sweep.core.methods.base import Classifier, FrozenPrompt, TextModel, cosine_logits

NEIGHBOUR_FRACTION = 0.3  # share of the other views that sets the bandwidth of a view; released
ROUNDS = 5  # updates of weights and mode in turn; the released program does not converge, so the number matters
INNER_STEPS = 5  # at most, for the weights and for the mode in each round; released
TOLERANCE = 1e-6  # a step shorter than this is the last one; released


class Modes(NamedTuple):
    """The result of the mean shift for B samples."""

    mode: Tensor  # (B, D) unit norm
    weights: Tensor  # (B, V) sum to one
    squared_bandwidth: Tensor  # (B, V)


@dataclass(frozen=True, slots=True)
class MeanShift:
    """MTA's mean shift with its two released constants."""

    affinity_weight: float = 4.0  # lambda_q: how much views with equal predictions raise each other's weights
    temperature: float = 0.2  # lambda_y: of the softmax over views

    def modes(self, views: Tensor, probabilities: Tensor) -> Modes:
        """Return the modes of samples with unit views (B, V, D) that predict `probabilities` (B, V, K)."""
        affinities = probabilities @ probabilities.transpose(1, 2)  # (B, V, V)
        squared_bandwidth = squared_bandwidths(views)
        weights = views.new_full(views.shape[:2], 1 / views.shape[1])
        mode = views[:, 0]
        for _ in range(ROUNDS):
            weights = self._update_weights(weights, kernel(views, mode, squared_bandwidth), affinities)
            mode = _update_mode(mode, weights, views, squared_bandwidth)
        return Modes(mode, weights, squared_bandwidth)

    def _update_weights(self, weights: Tensor, density: Tensor, affinities: Tensor) -> Tensor:
        """Return the weights (B, V) after some fixed-point steps at a fixed mode."""

        def update(weights: Tensor) -> Tensor:
            agreement = (affinities @ weights[..., None])[..., 0]
            return ((density + self.affinity_weight * agreement) / self.temperature).softmax(-1)

        return _fixed_point(weights, update)


def _update_mode(mode: Tensor, weights: Tensor, views: Tensor, squared_bandwidth: Tensor) -> Tensor:
    """Return the mode (B, D) after some mean-shift steps with fixed weights; the kernel moves with the mode."""

    def update(mode: Tensor) -> Tensor:
        density = kernel(views, mode, squared_bandwidth)
        return F.normalize(((weights * density)[:, None] @ views)[:, 0], dim=-1)

    return _fixed_point(mode, update)


def _fixed_point(values: Tensor, update: Callable[[Tensor], Tensor]) -> Tensor:
    """Update the rows of values (B, N) until a step is short; a row that has stopped stays."""
    moving = torch.ones(len(values), 1, dtype=torch.bool, device=values.device)
    for _ in range(INNER_STEPS):
        updated = torch.where(moving, update(values), values)
        moving = moving & ((updated - values).norm(dim=-1, keepdim=True) >= TOLERANCE)
        values = updated
    return values


def kernel(views: Tensor, mode: Tensor, squared_bandwidth: Tensor) -> Tensor:
    """Return the Gaussian kernel (B, V) of each view at the mode (B, D).

    It is one where a view's bandwidth is zero, because its neighbours equal it; the released program gives NaN.
    """
    squared_distance = (views - mode[:, None]).square().sum(-1)
    density = (-squared_distance / (2 * squared_bandwidth)).exp()
    return torch.where(squared_bandwidth > 0, density, torch.ones_like(density))


def squared_bandwidths(views: Tensor) -> Tensor:
    """Return half the mean squared distance (B, V) of each view from its nearest other views."""
    neighbours = max(1, int(NEIGHBOUR_FRACTION * (views.shape[1] - 1)))
    squared_distances = (2 - 2 * views @ views.transpose(1, 2)).clamp(min=0)
    other_distances = squared_distances.sort(dim=-1).values[..., 1:]  # without the view itself
    return 0.5 * other_distances[..., :neighbours].mean(-1)


class Mta(FrozenPrompt):
    """MTA: the logits of the mode of a sample's views; the released constants are fixed."""

    @torch.no_grad()
    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        logits = state.logits(views)
        if views.shape[1] == 1:
            return logits[:, 0], state
        with without_autocast(views):
            mode = MeanShift().modes(views, logits.softmax(-1)).mode
        return cosine_logits(mode[:, None], state.features, state.logit_scale)[:, 0], state
