"""AdamW as a pure function, so that each prompt of a batch takes the step of an optimizer of its own."""

from __future__ import annotations

from typing import NamedTuple

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
