"""Optimizer steps as pure functions: a batch of prompts takes one step, each prompt with its own optimizer state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BETAS = (0.9, 0.999)  # torch's defaults, as in the released code of TPT and FPP
EPSILON = 1e-8


class AdamState(NamedTuple):
    """Number of steps taken, and running means of the gradient and of its square."""

    steps: int
    mean: Tensor
    square: Tensor


def adamw(
    parameter: Tensor, gradient: Tensor, state: AdamState | None, *, lr: float, weight_decay: float
) -> tuple[Tensor, AdamState]:
    """Take one AdamW step (Loshchilov and Hutter, 2019) and return the new parameter and state.

    `state` is None before the first step. Coordinates are independent, so leading dimensions are a batch.
    """
    beta1, beta2 = BETAS
    steps = 1
    mean = (1 - beta1) * gradient
    square = (1 - beta2) * gradient.square()
    if state is not None:
        steps = state.steps + 1
        mean = mean + beta1 * state.mean
        square = square + beta2 * state.square
    unbiased_mean = mean / (1 - beta1**steps)
    denominator = (square / (1 - beta2**steps)).sqrt() + EPSILON
    decayed = parameter * (1 - lr * weight_decay)
    return decayed - lr * unbiased_mean / denominator, AdamState(steps, mean, square)


def sgd(parameter: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> Tensor:
    """Take one SGD step without momentum, for which decoupled and ordinary weight decay are equal."""
    return parameter * (1 - lr * weight_decay) - lr * gradient


def unit(gradient: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Return a gradient divided by its Euclidean norm over `dim`; zero stays zero.

    The largest entry is scaled to 1 first, because squares of tiny entries underflow.

    >>> unit(torch.tensor([[3e-30, 4e-30], [0, 0]]), dim=(-1,))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    largest = gradient.abs().amax(dim, keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
    scaled = gradient / largest
    norm: Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled / norm.clamp(min=1)
