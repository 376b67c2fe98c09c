"""Flatness-aware prompt pretraining: learn, from class names alone, a context in a flat region of the loss.

The loss has two terms, both means over the K classes: the distance of the text features from those of the predefined
prompt (alignment), and their distance from the features of perturbed input embeddings (flatness). As in the released
code, no gradient flows through the perturbed features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fpp_sweep.core.compute.compiling import eagerly
from fpp_sweep.core.compute.precision import loss_scale
from fpp_sweep.core.optim import AdamState, adamw
from fpp_sweep.core.text.classes import ClassTexts, Noise
from fpp_sweep.core.text.packing import AttentionMask
from fpp_sweep.core.text.pullback import Pullback
from fpp_sweep.spec.config import Distance, FppConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pretrained:
    """A learned context and its training losses."""

    context: Tensor  # (n, W)
    losses: Tensor  # (steps, 2): alignment, and the flatness term as it enters the loss


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """What is minimised: the distance of each term, None where it is off, and which features get no gradient."""

    align: Distance | None
    flat: Distance | None
    detach: str
    flatness_weight: Tensor  # lambda; scalar

    @classmethod
    def of(cls, config: FppConfig, flatness_weight: float, device: torch.device) -> Loss:
        return cls(
            align=None if config.align_distance == "none" else config.align_distance,
            flat=None if config.flat_distance == "none" else config.flat_distance,
            detach=config.detach,
            flatness_weight=torch.tensor(flatness_weight, device=device),
        )


def pretrain(
    texts: ClassTexts,
    predefined: Tensor,
    config: FppConfig,
    *,
    flatness_weight: float,
    start: Tensor,
    noise: Iterator[Noise],
    on_step: Callable[[], None] = lambda: None,
) -> Pretrained:
    """Minimise alignment + flatness_weight * (flatness) from `start`, drawing one `Noise` a step.

    `predefined` (n, W) is the context whose features f0 are the target; lengths in `config` are in units of the
    model's own embeddings (see `FppConfig.scaled`). Raises FloatingPointError as soon as the loss is not finite.
    """
    with torch.no_grad():
        target = texts.features(predefined)
    context = start.clone()
    state: AdamState | None = None
    loss = Loss.of(config, flatness_weight, context.device)
    mask = texts.packing.attention_mask(1 + len(context))
    run = texts.tower.run if config.noise_shared else eagerly  # with noise per class a step is large enough
    losses = torch.zeros(config.steps, 2)
    for step in range(config.steps):
        terms, gradient = run(_terms, texts, mask, context, target, next(noise), loss)
        losses[step] = terms
        if not torch.isfinite(losses[step].sum()):
            align, flat = losses[step].tolist()
            raise FloatingPointError(
                f"pretraining step {step}: loss is not finite (alignment {align}, flatness {flat})"
            )
        lr = cosine(step, config.steps, config.lr, config.final_lr)
        context, state = adamw(context, gradient, state, lr=lr, weight_decay=config.weight_decay)
        on_step()
    return Pretrained(context=context, losses=losses)


def cosine(step: int, steps: int, first: float, final: float) -> float:
    """The learning rate of a step: from `first` down to `final`, which one step more would reach.

    >>> cosine(0, 1000, 1e-2, 1e-4)
    0.01
    """
    return final + (first - final) * (1 + math.cos(math.pi * step / steps)) / 2


def _terms(
    texts: ClassTexts, mask: AttentionMask, context: Tensor, target: Tensor, noise: Noise, loss: Loss
) -> tuple[Tensor, Tensor]:
    """The terms of the loss at a context, and the loss's gradient there."""
    if loss.flat and loss.detach != "noisy":

        def terms_at(context: Tensor) -> Tensor:
            return _losses(texts.features(context, mask), texts.noisy_features(context, noise, mask), target, loss)

        return _with_gradient(terms_at, context)
    with torch.no_grad():
        pullback, noisy = _forward(texts, mask, context, noise if loss.flat else None)
    terms, of_features = _with_gradient(lambda clean: _losses(clean, noisy, target, loss), pullback.features[0])
    with torch.no_grad():
        context_rows = torch.arange(1, 1 + len(context), device=context.device)
        return terms, pullback(of_features[None], context_rows)[0]


def _with_gradient(terms_at: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """The terms at a point, and the gradient of their sum."""
    scale = loss_scale(point.device)
    if torch.compiler.is_compiling():  # torch.compile supports this form only, which is slower without it

        def total(point: Tensor) -> tuple[Tensor, Tensor]:
            terms = terms_at(point)
            return scale * terms.sum(), terms

        of_total, terms = torch.func.grad(total, has_aux=True)(point)
        return terms, of_total / scale
    point = point.detach().requires_grad_()
    terms = terms_at(point)
    (gradient,) = torch.autograd.grad(scale * terms.sum(), point)
    return terms.detach(), gradient / scale


def _forward(
    texts: ClassTexts, mask: AttentionMask, context: Tensor, noise: Noise | None
) -> tuple[Pullback, Tensor | None]:
    """The clean features with their backward pass, and the noisy features."""
    prefix, nodes = texts.prefix(context[None]), texts.nodes[None]
    if noise is None:
        return Pullback(texts.tower, prefix, nodes, texts.packing, mask), None
    draws, rows = noise.sos.shape[:2]
    if rows > 1 or draws >= texts.rows_at_once():
        pullback = Pullback(texts.tower, prefix, nodes, texts.packing, mask)
        return pullback, texts.noisy_features(context, noise, mask)
    noisy_prefix, noisy_nodes = texts.perturbed(context, noise)
    prefix, nodes = torch.cat([prefix, noisy_prefix]), torch.cat([nodes, noisy_nodes])
    pullback = Pullback(texts.tower, prefix, nodes, texts.packing, mask)
    return pullback, pullback.features[1:]


def _losses(clean: Tensor, noisy: Tensor | None, target: Tensor, loss: Loss) -> Tensor:
    """The alignment and the flatness term, as they enter the loss."""
    zero = clean.new_zeros(())
    align = distance(clean, target, loss.align) if loss.align else zero
    if noisy is None or loss.flat is None:
        return torch.stack([align, zero])
    fixed = clean.detach() if loss.detach == "clean" else clean
    flat = distance(fixed.expand_as(noisy), noisy, loss.flat)
    if loss.flat == "cosine":
        flat = flat - 1  # the released code drops the constant of 1 - cos; its logged losses are reproduced this way
    return torch.stack([align, loss.flatness_weight * flat])


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
        # the constant keeps the gradient finite where the two coincide, as at the start from the predefined context
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
    sizes = [1, context_tokens, texts.packing.longest]
    spread = torch.full((sum(sizes), 1), math.sqrt(config.class_var))
    spread[1 : 1 + context_tokens] = math.sqrt(config.context_var)
    names_only = config.noise_positions == "name"
    if names_only:
        spread[0] = 0.0
    while True:
        draw = torch.randn(config.draws, rows, sum(sizes), texts.tower.width, generator=generator) * spread
        sos, context, suffix = draw.to(texts.tower.device).split(sizes, dim=2)
        yield Noise(sos=sos, context=context, suffix=suffix, names_only=names_only)
