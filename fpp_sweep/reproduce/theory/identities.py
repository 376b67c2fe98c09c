"""Losses in the form of the paper or of the released code, and in the form that they reduce to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.fpp import cosine, draw_noise, draw_start, pretrain
from fpp_sweep.core.methods.penalties import orthogonality
from fpp_sweep.core.optim import AdamState, adamw
from fpp_sweep.core.text.classes import ClassTexts, Noise
from fpp_sweep.spec.config import FppConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The largest difference of values, and of gradients relative to the largest entry."""

    value: float
    gradient: float


def householder(text: Tensor) -> Tensor:
    """O-TPT as released: each row of T T' is reflected onto its own axis, and the distance to 1 there is taken."""
    gram = text @ text.T
    identity = torch.eye(len(gram), dtype=gram.dtype)
    axes = F.normalize(gram - gram.norm(dim=-1)[:, None] * identity, dim=-1)
    reflections = identity - 2 * axes[:, :, None] * axes[:, None, :]  # (K, K, K)
    reflected = (reflections @ gram[:, :, None])[:, :, 0]
    distances: Tensor = (reflected - identity).norm(dim=-1)
    return distances.mean()


def householder_gap(classes: int, size: int, draws: int, generator: torch.Generator) -> Gap:
    """The released form of O-TPT against one line, in float64, on random unit rows."""
    gaps = []
    for _ in range(draws):
        rows = torch.randn(classes, size, generator=generator, dtype=torch.float64)
        text = F.normalize(rows + 0.5 * rows[0], dim=-1)
        long, short = (with_gradient(loss, text) for loss in (householder, orthogonality))
        scale = long[1].abs().max()
        gaps.append(((long[0] - short[0]).abs(), (long[1] - short[1]).abs().max() / scale))
    value, gradient = (torch.stack(part).max() for part in zip(*gaps, strict=True))
    return Gap(value=float(value), gradient=float(gradient))


def with_gradient(loss: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """A loss and its gradient."""
    point = point.detach().clone().requires_grad_()
    value = loss(point)
    (gradient,) = torch.autograd.grad(value, point)
    return value.detach(), gradient


def distillation(texts: ClassTexts, target: Tensor, noise: Noise, weight: float) -> Callable[[Tensor], Tensor]:
    """FPP's released loss as one inner product: 2 - mean over classes of <f, 2 f0 + weight * mean noisy f>."""

    def loss(context: Tensor) -> Tensor:
        with torch.no_grad():
            pull = 2 * target + weight * texts.noisy_features(context, noise).mean(0)
        return 2 - (texts.features(context) * pull).sum(-1).mean()

    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationGap:
    """Pretraining against the same steps on `distillation`."""

    loss: float  # largest difference over the steps
    features: float  # largest difference at the end


def distillation_gap(
    texts: ClassTexts, predefined: Tensor, config: FppConfig, weight: float, generator: torch.Generator
) -> DistillationGap:
    """Run pretraining twice on the same start and noise: as the package does, and by the one inner product."""
    start = draw_start(predefined, config, generator)
    noise = list(itertools.islice(draw_noise(texts, len(predefined), config, generator), config.steps))
    learned = pretrain(texts, predefined, config, flatness_weight=weight, start=start, noise=iter(noise))
    target, context = texts.features(predefined), start
    state: AdamState | None = None
    losses = []
    for step, draw in enumerate(noise):
        value, gradient = with_gradient(distillation(texts, target, draw, weight), context)
        losses.append(value)
        lr = cosine(step, config.steps, config.lr, config.final_lr)
        context, state = adamw(context, gradient, state, lr=lr, weight_decay=config.weight_decay)
    return DistillationGap(
        loss=float((learned.losses.sum(-1) - torch.stack(losses)).abs().max()),
        features=float((texts.features(learned.context) - texts.features(context)).abs().max()),
    )
