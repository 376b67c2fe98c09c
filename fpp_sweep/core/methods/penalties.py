"""The regularisers that C-TPT and O-TPT add to the entropy: functions of unit text features (*B, K, D)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Penalty = Callable[[Tensor], Tensor]  # (*B, K, D) -> (*B,)


def dispersion(text: Tensor) -> Tensor:
    """C-TPT: minus the mean distance of the text features from their centroid."""
    distances: Tensor = (text - text.mean(-2, keepdim=True)).norm(dim=-1)
    return -distances.mean(-1)


def orthogonality(text: Tensor) -> Tensor:
    """O-TPT: mean over classes of |row of T T'| - 1.

    Equal, with its gradient, to the released Householder form, which builds K x K x K numbers.
    """
    rows: Tensor = (text @ text.transpose(-1, -2)).norm(dim=-1)
    return (rows - 1).mean(-1)


def squared_orthogonality(text: Tensor) -> Tensor:
    """O-TPT as it is written: the squared norm of T T' - 1, which grows with the square of the number of classes."""
    products = text @ text.transpose(-1, -2)
    return (products - torch.eye(text.shape[-2], device=text.device)).square().sum((-2, -1))
