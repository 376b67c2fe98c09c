"""Optimizers' steps as pure functions, so that each prompt of a batch takes the step of an optimizer of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class AdamState(NamedTuple):
    """Steps taken, and the running means of the gradient and of its square."""

    steps: int
    mean: Tensor
    square: Tensor


def adamw(
    parameter: Tensor, gradient: Tensor, state: AdamState | None, *, lr: float, weight_decay: float
) -> tuple[Tensor, AdamState]:
    """One step with decoupled weight decay; coordinates are independent, so leading dimensions are a batch."""
    first, second = BETAS
    steps = state.steps + 1 if state else 1
    mean = (1 - first) * gradient + (first * state.mean if state else 0)
    square = (1 - second) * gradient.square() + (second * state.square if state else 0)
    spread = (square / (1 - second**steps)).sqrt() + EPSILON
    stepped = parameter * (1 - lr * weight_decay) - lr * (mean / (1 - first**steps)) / spread
    return stepped, AdamState(steps, mean, square)


def sgd(parameter: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> Tensor:
    """One step without momentum; here weight decay is the same decoupled or not."""
    return parameter * (1 - lr * weight_decay) - lr * gradient


def unit(gradient: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Divided by its length; zero stays zero. The largest entry becomes 1 first, as squares of tiny ones vanish.

    >>> unit(torch.tensor([[3e-30, 4e-30], [0, 0]]), dim=(-1,))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    largest = gradient.abs().amax(dim, keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
    scaled = gradient / largest
    length: Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled / length.clamp(min=1)
