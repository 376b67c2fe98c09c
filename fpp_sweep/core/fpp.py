"""Flatness-aware prompt pretraining (FPP): learn, from class names alone, a context in a flat region of the loss.

The loss is the sum of two means over the K classes:

- alignment: the distance of the text features from those of the anchor prompt;
- flatness, times lambda: their distance from the features of perturbed input embeddings.

As in the released code, no gradient flows through the perturbed features unless the config says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fpp_sweep.core.compute import CudaGraph, TensorFunction, loss_scale
from fpp_sweep.core.optim import AdamState, adamw
from fpp_sweep.core.text.texts import Texts
from fpp_sweep.core.text.tower import Noise
from fpp_sweep.spec.config import Distance, FppConfig

# share and least number of steps after which the drift tells collapsed prompts from others (studies/gate.md)
GATE_SHARE, MIN_GATE_STEP = 0.15, 9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pretrained:
    """A learned context and its training losses."""

    context: Tensor  # (n, W)
    losses: Tensor  # (steps, 2): alignment, and the flatness term as it enters the loss
    drift: float | None  # squared distance of text features from the anchor's at `gate_step`; None with fewer steps


def pretrain(
    texts: Texts,
    anchor: Tensor,
    config: FppConfig,
    *,
    flatness_weight: float,
    start: Tensor,
    noise: Iterator[Noise],
    gate: float | None = None,
    on_step: Callable[[], None] = lambda: None,
    cuda_graphs: bool = False,
) -> Pretrained:
    """Minimise alignment + flatness_weight * flatness from `start`, drawing one `Noise` at each step.

    `anchor` (n, W) is the context of the anchor prompt, whose features are the target f0. Lengths in `config` are in
    units of the model's own embeddings (see `FppConfig.scaled`). A drift above `gate` ends the pretraining. Raises
    FloatingPointError as soon as the loss is not finite.
    """
    with torch.no_grad():
        target = texts.features(anchor)  # f0 (K, D)
    context = start.clone()
    state: AdamState | None = None
    step_of = _step(texts, target, config, flatness_weight)
    if cuda_graphs:
        step_of = CudaGraph(step_of)
    losses = torch.zeros(config.steps, 2)
    drift = None
    for step in range(config.steps):
        drawn = next(noise)
        losses[step], gradient = step_of(context, drawn.sos, drawn.context, drawn.suffix)
        _require_finite(losses[step], step)
        lr = cosine_rate(step, config.steps, config.lr, config.final_lr)
        context, state = adamw(context, gradient, state, lr=lr, weight_decay=config.weight_decay)
        on_step()
        if step + 1 == gate_step(config.steps):
            drift = _drift(texts, context, target)
            if gate is not None and drift > gate:
                return Pretrained(context=context, losses=losses[: step + 1], drift=drift)
    return Pretrained(context=context, losses=losses, drift=drift)


def _require_finite(terms: Tensor, step: int) -> None:
    if not torch.isfinite(terms.sum()):
        align, flat = terms.tolist()
        problem = f"loss is not finite (alignment {align}, flatness {flat})"
        raise FloatingPointError(f"pretraining step {step}: {problem}")


def gate_step(steps: int) -> int:
    """Return the number of steps after which the drift is measured.

    >>> gate_step(10), gate_step(60), gate_step(1000)
    (9, 9, 150)
    """
    return max(MIN_GATE_STEP, round(GATE_SHARE * steps))


@torch.no_grad()
def _drift(texts: Texts, context: Tensor, target: Tensor) -> float:
    """Return the mean squared distance of the classes' text features from those of the anchor prompt."""
    return distance(texts.features(context), target, "squared_l2").item()


def cosine_rate(step: int, steps: int, first: float, final: float) -> float:
    """Return the learning rate of a step on a cosine from `first` to `final`, which follows the last step.

    >>> cosine_rate(0, 1000, 1e-2, 1e-4)
    0.01
    """
    return final + (first - final) * (1 + math.cos(math.pi * step / steps)) / 2


def _step(texts: Texts, target: Tensor, config: FppConfig, weight: float) -> TensorFunction:
    """Return a function of tensors: of a context (n, W), and of the noise of SOS, of the context and of what follows.

    It returns the two terms of the loss (2,), and the gradient (n, W) of their sum at the context.
    """

    def step(context: Tensor, sos: Tensor, around: Tensor, suffix: Tensor) -> tuple[Tensor, Tensor]:
        noise = Noise(sos=sos, context=around, suffix=suffix, without_ends=config.noise_positions == "name")
        context = context.detach().requires_grad_()
        clean, noisy = texts.features(context), None
        if config.flat_distance != "none":
            with torch.set_grad_enabled(config.detach != "noisy"):
                noisy = texts.noisy_features(context, noise)
        terms = _loss_terms(clean, noisy, target, config, weight)
        scale = loss_scale(context.device)
        (gradient,) = torch.autograd.grad(scale * terms.sum(), context)
        return terms.detach(), gradient / scale

    return step


def _loss_terms(clean: Tensor, noisy: Tensor | None, target: Tensor, config: FppConfig, weight: float) -> Tensor:
    """Return the alignment and the flatness term (2,), as they enter the loss.

    `clean` (K, D) are the features at the context, `noisy` (J, K, D) those under J perturbations, and `target` (K, D)
    those of the anchor prompt. `noisy` has no gradient already where the config detaches it; it is None if not needed.
    """
    alignment = clean.new_zeros(())
    flatness = clean.new_zeros(())
    if config.align_distance != "none":
        alignment = distance(clean, target, config.align_distance)
    if config.flat_distance != "none" and noisy is not None:
        unperturbed = clean
        if config.detach == "clean":
            unperturbed = clean.detach()
        flatness = distance(unperturbed.expand_as(noisy), noisy, config.flat_distance)
        if config.flat_distance == "cosine":
            flatness = flatness - 1  # the released code logs 1 - cos without its constant
        flatness = weight * flatness
    return torch.stack([alignment, flatness])


def distance(first: Tensor, second: Tensor, kind: Distance) -> Tensor:
    """Return the mean distance of unit vectors (..., D).

    >>> a, b = torch.eye(2)
    >>> distance(a, b, "squared_l2").item(), distance(a, b, "cosine").item()
    (2.0, 1.0)
    """
    if kind == "cosine":
        return 1 - (first * second).sum(-1).mean()
    squared = (first - second).square().sum(-1)
    if kind == "l2":
        # the constant keeps the gradient finite where both are equal, as at the start from the anchor prompt
        return (squared + 1e-12).sqrt().mean()
    return squared.mean()


def draw_start(anchor: Tensor, config: FppConfig, generator: torch.Generator) -> Tensor:
    """Return the context that pretraining starts from."""
    if config.start == "predefined":  # the paper's word for the anchor prompt
        return anchor
    return (torch.randn(anchor.shape, generator=generator) * config.start_std).to(anchor.device)


def draw_noise(texts: Texts, context_tokens: int, config: FppConfig, generator: torch.Generator) -> Iterator[Noise]:
    """Yield fresh Gaussian noise for every step: for SOS, the context, and the positions after it."""
    classes = 1
    if not config.noise_shared:
        classes = len(texts)
    sizes = [1, context_tokens, texts.suffix_positions(context_tokens)]  # SOS, context, the longest text after it
    std = torch.full((sum(sizes), 1), math.sqrt(config.class_var))
    std[1 : 1 + context_tokens] = math.sqrt(config.context_var)
    without_ends = config.noise_positions == "name"
    if without_ends:
        std[0] = 0.0
    while True:
        # (J, 1 or K, positions, W)
        draw = torch.randn(config.draws, classes, sum(sizes), texts.tower.width, generator=generator) * std
        sos, context, suffix = draw.to(texts.tower.device).split(sizes, dim=2)
        yield Noise(sos=sos, context=context, suffix=suffix, without_ends=without_ends)
