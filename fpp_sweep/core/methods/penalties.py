"""Penalties on the text features that methods add to the entropy: functions of unit features (*B, K, D) -> (*B,).

To add one, write a function here and name it in a row of `fpp_sweep.spec.catalogue`, which also has its weight.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Penalty = Callable[[Tensor], Tensor]  # (*B, K, D) -> (*B,)


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
