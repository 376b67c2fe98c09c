"""Flatness-aware prompt pretraining: learn, from class names alone, a context in a flat region of the loss.

Two terms, both means over the K classes: stay aligned with the features f0 of the predefined prompt, and stay where
perturbing the input embeddings changes the features little. As released, the perturbed branch gets no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fpp_sweep.config import Distance, FppConfig
from fpp_sweep.core.classes import ClassTexts, Noise
from fpp_sweep.core.optim import AdamState, adamw


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pretrained:
    """A learned context and how it came about."""

    context: Tensor  # (n, W)
    losses: Tensor  # (steps, 2): alignment, and the flatness term as it enters the loss


def pretrain(
    texts: ClassTexts,
    predefined: Tensor,
    config: FppConfig,
    *,
    weight: float,
    start: Tensor,
    noise: Iterator[Noise],
    on_step: Callable[[], None] = lambda: None,
) -> Pretrained:
    """Minimise alignment + weight * (flatness) from `start`, drawing one `Noise` a step.

    `predefined` (n, W) is the context whose features f0 are the target; lengths in `config` are those of the model's
    own embeddings (see `FppConfig.scaled`). Raises FloatingPointError with the step and
    the two terms as soon as the loss is not finite.
    """
    with torch.no_grad():
        target = texts.features(predefined)
    context, state = start.clone(), None
    losses = torch.zeros(config.steps, 2)
    for step in range(config.steps):
        context.requires_grad_()
        terms = _losses(texts, context, target, next(noise), config, weight)
        loss = terms[0] + terms[1]
        losses[step] = terms.detach()
        if not torch.isfinite(loss):
            align, flat = losses[step].tolist()
            raise FloatingPointError(
                f"pretraining step {step}: loss is not finite (alignment {align}, flatness {flat})"
            )
        (gradient,) = torch.autograd.grad(loss, context)
        context, state = _step(context.detach(), gradient, state, config, step)
        on_step()
    return Pretrained(context=context, losses=losses)


def _step(
    context: Tensor, gradient: Tensor, state: AdamState | None, config: FppConfig, step: int
) -> tuple[Tensor, AdamState]:
    lr = cosine(step, config.steps, config.lr, config.final_lr)
    return adamw(context, gradient, state, lr=lr, weight_decay=config.weight_decay)


def cosine(step: int, steps: int, first: float, final: float) -> float:
    """The learning rate of a step: from `first` down to, had it one step more, `final`.

    >>> cosine(0, 1000, 1e-2, 1e-4)
    0.01
    """
    return final + (first - final) * (1 + math.cos(math.pi * step / steps)) / 2


def _losses(
    texts: ClassTexts, context: Tensor, target: Tensor, noise: Noise, config: FppConfig, weight: float
) -> Tensor:
    """The alignment and the flatness term, as they enter the loss."""
    clean = texts.features(context)
    zero = clean.new_zeros(())
    align = distance(clean, target, config.align_distance) if config.align else zero
    if not config.flat:
        return torch.stack([align, zero])
    with torch.set_grad_enabled(config.detach != "noisy"):
        noisy = texts.noisy_features(context, noise)
    steady = clean.detach() if config.detach == "clean" else clean
    flat = distance(steady.expand_as(noisy), noisy, config.flat_distance)
    if config.flat_distance == "cosine":
        flat = flat - 1  # the released code drops the constant of 1 - cos; its logged losses are reproduced this way
    return torch.stack([align, weight * flat])


def distance(first: Tensor, second: Tensor, kind: Distance) -> Tensor:
    """The mean distance of unit vectors.

    >>> a, b = torch.eye(2)
    >>> [distance(a, b, kind).item() for kind in ("squared_l2", "cosine")]
    [2.0, 1.0]
    """
    if kind == "cosine":
        return 1 - (first * second).sum(-1).mean()
    squared = (first - second).square().sum(-1)
    if kind == "l2":
        # the floor keeps the gradient finite where the two coincide, as they do at a predefined start
        return (squared + 1e-12).sqrt().mean()
    return squared.mean()


def draw_start(predefined: Tensor, config: FppConfig, generator: torch.Generator) -> Tensor:
    """The context that pretraining starts from."""
    if config.start == "predefined":
        return predefined
    return (torch.randn(predefined.shape, generator=generator) * config.start_std).to(predefined.device)


def draw_noise(
    texts: ClassTexts, context_tokens: int, config: FppConfig, generator: torch.Generator
) -> Iterator[Noise]:
    """Fresh Gaussian noise for every step: SOS, context, then the positions after it, up to the longest text."""
    rows = 1 if config.noise_shared else len(texts)
    sizes = [1, context_tokens, texts.longest]
    spread = torch.full((sum(sizes), 1), math.sqrt(config.class_var))
    spread[1 : 1 + context_tokens] = math.sqrt(config.context_var)
    names_only = config.noise_positions == "name"
    if names_only:
        spread[0] = 0.0
    while True:
        draw = torch.randn(config.draws, rows, sum(sizes), texts.tower.width, generator=generator) * spread
        sos, context, suffix = draw.to(texts.tower.device).split(sizes, dim=2)
        yield Noise(sos=sos, context=context, suffix=suffix, names_only=names_only)
