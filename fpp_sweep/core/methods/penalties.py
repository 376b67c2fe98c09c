"""Penalties on the text features that methods add to the entropy: functions of unit features (*B, K, D) -> (*B,).

To add one, write a function here and name it in a row of `fpp_sweep/spec/catalogue.toml`, which also has its weight.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fpp_sweep.spec.config import AdaptConfig

Penalty = Callable[[Tensor], Tensor]  # (*B, K, D) -> (*B,)

DEFAULT_DELTA = AdaptConfig().huber_delta
MAX_NEAREST_COSINE = 0.99999  # tau of A-TPT; beyond it the derivative of arccos grows without bound


def dispersion(text: Tensor) -> Tensor:
    """C-TPT (Yoon et al., 2024): minus the mean distance of the text features from their centroid."""
    centroid = text.mean(-2, keepdim=True)  # (*B, 1, D)
    distances: Tensor = (text - centroid).norm(dim=-1)  # (*B, K)
    return -distances.mean(-1)


def orthogonality(text: Tensor) -> Tensor:
    """O-TPT as released: the mean over classes of |row of T T'| - 1.

    Value and gradient equal the released Householder form, which builds K x K x K numbers.
    """
    products = text @ text.transpose(-1, -2)  # T T' (*B, K, K)
    row_norms: Tensor = products.norm(dim=-1)  # (*B, K)
    return (row_norms - 1).mean(-1)


def squared_orthogonality(text: Tensor) -> Tensor:
    """O-TPT as its paper writes it: |T T' - 1|^2, which grows with the square of the number of classes."""
    products = text @ text.transpose(-1, -2)  # T T' (*B, K, K)
    identity = torch.eye(text.shape[-2], device=text.device)
    return (products - identity).square().sum((-2, -1))


def mean_nearest_angle(text: Tensor) -> Tensor:
    """A-TPT (Ahamed et al., 2026): the mean over classes of the angle to the nearest other class, in radians.

    Cosines beyond `MAX_NEAREST_COSINE` are clamped, which also stops the gradient of classes with equal names.
    """
    cosines = text @ text.transpose(-1, -2)
    itself = torch.eye(text.shape[-2], dtype=torch.bool, device=text.device)
    # among two equally near classes, `max` gives the gradient to the first alone, as the released code on a CPU
    nearest = cosines.masked_fill(itself, -torch.inf).max(-1).values
    return nearest.clamp(-MAX_NEAREST_COSINE, MAX_NEAREST_COSINE).arccos().mean(-1)


def negative_mean_nearest_angle(text: Tensor) -> Tensor:
    """A-TPT as described: minus the mean nearest angle, so that a step makes the angles grow."""
    return -mean_nearest_angle(text)


def pairwise_huber(text: Tensor, delta: float = DEFAULT_DELTA) -> Tensor:
    """SoC: the mean over pairs of classes of h(cosine), h(x) = x^2 / 2 up to delta and linear above."""
    cosines = text @ text.transpose(-1, -2)
    linear = delta * (cosines - delta / 2)
    values = torch.where(cosines <= delta, cosines.square() / 2, linear)
    classes = text.shape[-2]
    pairs = max(1, classes * (classes - 1) // 2)
    above_diagonal = torch.ones(classes, classes, dtype=torch.bool, device=text.device).triu(1)
    return (values * above_diagonal).sum((-2, -1)) / pairs
