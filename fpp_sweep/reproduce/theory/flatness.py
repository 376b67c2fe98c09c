"""Quantities of the paper's appendix at one context: the flatness term L_flat, derivatives of features, sharpness.

f are the K unit text features, theta is the context, and "rest" means all other input embeddings. Everything is in
float64, because second derivatives are differences of first derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.fpp import distance
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import confident_views, marginal_entropy
from fpp_sweep.core.text.classes import ClassTexts, Noise
from fpp_sweep.core.text.packing import Packing
from fpp_sweep.core.text.pullback import Pullback

STEP = 1e-4  # step of first differences, in units of an embedding's entries
SECOND_STEP = 1e-3  # step of second differences
PROBES_PER_BATCH = 64
VECTORS_PER_PROBE = 16  # vectors y for each direction z


def in_double(texts: ClassTexts) -> ClassTexts:
    """Return the same texts, computed in float64."""
    return replace(texts, tower=texts.tower.to(torch.float64), sos=texts.sos.double(), nodes=texts.nodes.double())


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivatives:
    """Squared Frobenius norms of Jacobian and Hessian blocks, summed over all features of all classes."""

    jacobian_context: float
    jacobian_rest: float
    hessian_context: float
    hessian_rest: float
    hessian_cross: float
    trace_context: float  # squared norm of the traces of the Hessians in the context


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeparateInputs:
    """All input embeddings with a copy of the context for each class, so that classes share no input.

    One backward pass then serves all classes.
    """

    texts: ClassTexts
    values: Tensor  # (1, M, W)
    packing: Packing
    is_context: Tensor  # (M,) bool

    @classmethod
    def at(cls, texts: ClassTexts, context: Tensor) -> SeparateInputs:
        prefixes = texts.prefix(context[None])[:, None].expand(-1, len(texts), -1, -1)
        values, packing = texts.join_prefixes(prefixes, texts.packing.to_tokens(texts.nodes[None]))
        is_context = (packing.positions > 0) & (packing.positions <= len(context))
        return cls(texts=texts, values=values, packing=packing, is_context=is_context)

    def pull_back(self, values: Tensor, gradients: Tensor) -> Tensor:
        """Return J' y (B, M, W) at inputs (1, M, W), for vectors y (B, K, D)."""
        pullback = Pullback(self.texts.tower, values[:, :0], values, self.packing)
        return pullback(gradients, torch.arange(len(self.is_context)))

    def squared_norms(self, rows: Tensor) -> Tensor:
        """Return the squared norms of the context's rows and of the rest (2,), of rows (B, M, W)."""
        by_row = rows.square().sum((0, 2))
        return torch.stack([by_row[self.is_context].sum(), by_row[~self.is_context].sum()])


def derivatives(texts: ClassTexts, context: Tensor, probes: int, generator: torch.Generator) -> Derivatives:
    """Compute the Jacobian row by row, and estimate the norms of the Hessian blocks."""
    inputs = SeparateInputs.at(texts, context)
    size = len(texts.tower.projection[0])
    units = torch.eye(size, dtype=torch.float64)[:, None].expand(-1, len(texts), -1)
    jacobian_context, jacobian_rest = inputs.squared_norms(inputs.pull_back(inputs.values, units)).tolist()
    along_context, along_rest = _hessian_norms(inputs, probes, generator)
    return Derivatives(
        jacobian_context=jacobian_context,
        jacobian_rest=jacobian_rest,
        hessian_context=float(along_context[0]),
        hessian_rest=float(along_rest[1]),
        hessian_cross=float(along_context[1]),
        trace_context=squared_trace(texts, context, 8 * probes, generator),
    )


def _hessian_norms(inputs: SeparateInputs, probes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Estimate |H|^2 by Hutchinson's method: E |d(J' y) / dz|^2 = |H|^2 for normal y and z.

    The first result has z in the context, the second in the rest; each holds the norms of the change of J' y in the
    context and in the rest (2,).
    """
    classes, size = len(inputs.texts), len(inputs.texts.tower.projection[0])
    along_context = torch.zeros(2, dtype=torch.float64)
    along_rest = torch.zeros(2, dtype=torch.float64)
    for _ in range(probes):
        vectors = torch.randn(VECTORS_PER_PROBE, classes, size, generator=generator, dtype=torch.float64)  # y
        direction = torch.randn(inputs.values.shape, generator=generator, dtype=torch.float64)  # z
        for mask, total in ((inputs.is_context, along_context), (~inputs.is_context, along_rest)):
            shift = STEP * direction * mask[:, None]
            above = inputs.pull_back(inputs.values + shift, vectors)
            below = inputs.pull_back(inputs.values - shift, vectors)
            change = (above - below) / (2 * STEP)
            total += inputs.squared_norms(change) / (VECTORS_PER_PROBE * probes)
    return along_context, along_rest


def squared_trace(texts: ClassTexts, context: Tensor, probes: int, generator: torch.Generator) -> float:
    """Estimate |trace H|^2 over all features, from products of different probes only.

    The square of a noisy mean would be biased.
    """
    with torch.no_grad():
        middle = texts.features(context)
        total, squares = torch.zeros_like(middle), 0.0
        for start in range(0, probes, PROBES_PER_BATCH):
            count = min(PROBES_PER_BATCH, probes - start)
            shift = SECOND_STEP * torch.randn(count, *context.shape, generator=generator, dtype=torch.float64)
            above, below = texts.features(context + shift), texts.features(context - shift)
            second = (above + below - 2 * middle) / SECOND_STEP**2
            total += second.sum(0)
            squares += float(second.square().sum())
    return (float(total.square().sum()) - squares) / (probes * (probes - 1))


def flatness(texts: ClassTexts, context: Tensor, noise: Noise) -> float:
    """Return L_flat with its constant: the mean over classes and draws of 1 - cos."""
    with torch.no_grad():
        clean = texts.features(context)
        noisy = texts.noisy_features(context, noise)
        return float(distance(clean.expand_as(noisy), noisy, "cosine"))


def draw_double_noise(
    texts: ClassTexts, tokens: int, draws: int, context_std: float, class_std: float, generator: torch.Generator
) -> Noise:
    """Draw noise of these standard deviations, shared by all classes, in float64."""
    sizes = [1, tokens, texts.packing.longest]
    shape = draws, 1, sum(sizes), texts.tower.width
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    sos, context, suffix = normal.split(sizes, dim=2)
    return Noise(sos=class_std * sos, context=context_std * context, suffix=class_std * suffix)


def mirrored(noise: Noise) -> Noise:
    """Return each draw and its negative, so that terms that are linear in the noise cancel exactly."""
    return Noise(
        sos=torch.cat([noise.sos, -noise.sos]),
        context=torch.cat([noise.context, -noise.context]),
        suffix=torch.cat([noise.suffix, -noise.suffix]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGradients:
    """The released gradient of L_flat, which stops at the noisy features, beside the true one."""

    cosine: float  # cosine of the two gradients
    descent: float  # fall of L_flat by a small sign step along the released one, over a step along the true one


def flat_gradients(texts: ClassTexts, context: Tensor, noise: Noise) -> FlatGradients:
    """Compare the gradient of L_flat without and with the part through the noisy features."""
    clean = context.clone().requires_grad_()  # the same context for each of the two branches
    noisy = context.clone().requires_grad_()
    noisy_features = texts.noisy_features(noisy, noise)
    loss = distance(texts.features(clean).expand_as(noisy_features), noisy_features, "cosine")
    through_clean, through_noisy = torch.autograd.grad(loss, (clean, noisy))
    released = through_clean.flatten()
    true = released + through_noisy.flatten()
    # signs, because the first step of AdamW takes the sign of a gradient
    descent = F.cosine_similarity(released.sign(), true, dim=0) / F.cosine_similarity(true.sign(), true, dim=0)
    return FlatGradients(cosine=float(F.cosine_similarity(released, true, dim=0)), descent=float(descent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """Sharpness of the entropy of the mean prediction of the confident views; means over samples."""

    rise: Sequence[float]  # h for each length: the loss after a step of that length up the gradient, less the loss
    top_eigenvalue: float  # size of the Hessian's largest eigenvalue
    gradient: float  # norm


def sharpness(
    model: TextModel, context: Tensor, views: Tensor, fraction: float, lengths: Sequence[float], iterations: int
) -> Sharpness:
    """Measure the sharpness of each sample's loss at a context, for steps of some lengths."""
    confident = confident_views(views, model.logits(views, model.features(context)), fraction)
    contexts = context.expand(len(views), -1, -1)

    def loss(contexts: Tensor) -> Tensor:
        return marginal_entropy(model.logits(confident, model.features(contexts)))

    def gradient(contexts: Tensor) -> Tensor:
        contexts = contexts.detach().requires_grad_()
        return torch.autograd.grad(loss(contexts).sum(), contexts)[0]

    uphill = gradient(contexts)
    with torch.no_grad():
        rise = [float((loss(contexts + length * _unit(uphill)) - loss(contexts)).mean()) for length in lengths]
    return Sharpness(
        rise=rise,
        top_eigenvalue=_top_eigenvalue(gradient, contexts, uphill, iterations),
        gradient=float(_norm(uphill).mean()),
    )


def _top_eigenvalue(gradient: Callable[[Tensor], Tensor], contexts: Tensor, start: Tensor, iterations: int) -> float:
    """Return the mean over samples of the largest eigenvalue, by power iteration on differences of gradients."""
    direction, value = _unit(start), torch.zeros(len(contexts))
    for _ in range(iterations):
        product = (gradient(contexts + STEP * direction) - gradient(contexts - STEP * direction)) / (2 * STEP)
        value = (product * direction).sum((1, 2))
        direction = _unit(product)
    return float(value.abs().mean())


def _norm(contexts: Tensor) -> Tensor:
    lengths: Tensor = contexts.flatten(1).norm(dim=-1)
    return lengths


def _unit(contexts: Tensor) -> Tensor:
    return contexts / _norm(contexts).clamp(min=1e-30)[:, None, None]
