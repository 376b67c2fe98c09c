"""Losses in the form of the paper or of the released code, beside the simpler form that equals them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.fpp import cosine_rate, draw_noise, draw_start, pretrain
from fpp_sweep.core.methods.penalties import orthogonality
from fpp_sweep.core.optim import AdamState, adamw
from fpp_sweep.core.text.classes import ClassTexts, Noise
from fpp_sweep.reproduce.theory.finding import Finding, judge
from fpp_sweep.reproduce.theory.setting import Setting
from fpp_sweep.spec.config import FppConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The largest difference of values, and of gradients relative to their largest entry."""

    value: float
    gradient: float


def householder(text: Tensor) -> Tensor:
    """O-TPT as released: reflect each row of T T' onto its own axis, and take its distance to 1 there."""
    gram = text @ text.T
    identity = torch.eye(len(gram), dtype=gram.dtype)
    axes = F.normalize(gram - gram.norm(dim=-1)[:, None] * identity, dim=-1)
    reflections = identity - 2 * axes[:, :, None] * axes[:, None, :]  # (K, K, K)
    reflected = (reflections @ gram[:, :, None])[:, :, 0]
    distances: Tensor = (reflected - identity).norm(dim=-1)
    return distances.mean()


def householder_gap(classes: int, size: int, draws: int, generator: torch.Generator) -> Gap:
    """Compare the released form of O-TPT with its one-line form, in float64, on random unit rows."""
    value_gap, gradient_gap = 0.0, 0.0
    for _ in range(draws):
        rows = torch.randn(classes, size, generator=generator, dtype=torch.float64)
        text = F.normalize(rows + 0.5 * rows[0], dim=-1)
        released_value, released_gradient = with_gradient(householder, text)
        value, gradient = with_gradient(orthogonality, text)
        scale = released_gradient.abs().max()
        value_gap = max(value_gap, float((released_value - value).abs()))
        gradient_gap = max(gradient_gap, float((released_gradient - gradient).abs().max() / scale))
    return Gap(value=value_gap, gradient=gradient_gap)


def with_gradient(loss: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """Return a loss at a point, and its gradient there."""
    point = point.detach().clone().requires_grad_()
    value = loss(point)
    (gradient,) = torch.autograd.grad(value, point)
    return value.detach(), gradient


def distillation(texts: ClassTexts, target: Tensor, noise: Noise, weight: float) -> Callable[[Tensor], Tensor]:
    """Return FPP's released loss as one inner product: 2 - mean over classes of <f, 2 f0 + weight * mean noisy f>."""

    def loss(context: Tensor) -> Tensor:
        with torch.no_grad():
            pull = 2 * target + weight * texts.noisy_features(context, noise).mean(0)
        return 2 - (texts.features(context) * pull).sum(-1).mean()

    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationGap:
    """The difference of pretraining from the same steps on `distillation`."""

    loss: float  # largest difference over the steps
    features: float  # largest difference at the end


def distillation_gap(
    texts: ClassTexts, anchor: Tensor, config: FppConfig, weight: float, generator: torch.Generator
) -> DistillationGap:
    """Pretrain twice from the same start and noise: as the package does, and by the one inner product."""
    start = draw_start(anchor, config, generator)
    noise = list(itertools.islice(draw_noise(texts, len(anchor), config, generator), config.steps))
    learned = pretrain(texts, anchor, config, flatness_weight=weight, start=start, noise=iter(noise))
    target, context = texts.features(anchor), start
    state: AdamState | None = None
    losses = []
    for step, draw in enumerate(noise):
        value, gradient = with_gradient(distillation(texts, target, draw, weight), context)
        losses.append(value)
        lr = cosine_rate(step, config.steps, config.lr, config.final_lr)
        context, state = adamw(context, gradient, state, lr=lr, weight_decay=config.weight_decay)
    return DistillationGap(
        loss=float((learned.losses.sum(-1) - torch.stack(losses)).abs().max()),
        features=float((texts.features(learned.context) - texts.features(context)).abs().max()),
    )


# findings


def householder_finding(setting: Setting) -> Finding:
    gap = householder_gap(setting.sizes.classes, 64, 20, setting.generator("householder"))
    return Finding(
        name="O-TPT's Householder form",
        says="each class's row is reflected onto its axis (released code); the same as the mean row norm less 1",
        measured=asdict(gap),
        verdict=judge(whole=gap.value < 1e-12 and gap.gradient < 1e-9, part=gap.value < 1e-12),
    )


def distillation_finding(setting: Setting) -> Finding:
    config = replace(setting.config.fpp, steps=10)  # over more steps, rounding turns signs of AdamW's steps
    gap = distillation_gap(
        setting.texts, setting.context, config, setting.flatness_weight, setting.generator("distillation")
    )
    return Finding(
        name="FPP's released loss",
        says="alignment plus flatness; as released it is self-distillation, 2 - mean <f, 2 f0 + lambda mean noisy f>",
        measured=asdict(gap),
        verdict=judge(whole=gap.loss < 1e-5 and gap.features < 1e-3, part=gap.loss < 1e-5),
    )
