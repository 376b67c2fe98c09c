"""The paper's appendix: the flatness term against the derivatives of the text features, and against sharpness.

f are the K unit features, theta the context and C all other input embeddings. In float64, because second derivatives
are taken as differences of first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.fpp import distance
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import averaged_entropy, select
from fpp_sweep.core.text.classes import ClassTexts, Noise
from fpp_sweep.core.text.pullback import Pullback

STEP = 1e-4  # of differences, in units of an embedding's entries
AT_ONCE = 64  # probes in memory
OUTPUTS = 16  # vectors y for each direction z


def in_double(texts: ClassTexts) -> ClassTexts:
    """The same texts, computed in float64."""
    return replace(texts, tower=texts.tower.on(torch.float64), sos=texts.sos.double(), nodes=texts.nodes.double())


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivatives:
    """Squared Frobenius norms, summed over all features of all classes."""

    jacobian_context: float
    jacobian_rest: float
    hessian_context: float
    hessian_rest: float
    hessian_cross: float
    trace_context: float  # squared norm of the traces of the Hessians in the context


def derivatives(texts: ClassTexts, context: Tensor, probes: int, generator: torch.Generator) -> Derivatives:
    """The Jacobian row by row; of the Hessians Hutchinson's estimate, E |d(J' y) / dz|^2 = |H|^2 with y, z normal.

    Each class gets inputs of its own, so that one backward pass serves all classes.
    """
    classes, size = len(texts), len(texts.tower.projection[0])
    prefix = texts.prefix(context[None])[:, None].expand(-1, classes, -1, -1)
    inputs, whole = texts.whole(prefix, texts.packing.to_tokens(texts.nodes[None]))
    is_context = (whole.positions > 0) & (whole.positions <= len(context))

    def pulled(inputs: Tensor, gradients: Tensor) -> Tensor:
        """J' y at all inputs."""
        return Pullback(texts.tower, inputs[:, :0], inputs, whole)(gradients, torch.arange(len(is_context)))

    def split(rows: Tensor) -> Tensor:
        """Squared size of the context's rows and of the others, summed over the vectors y."""
        sizes = rows.square().sum((0, 2))
        return torch.stack([sizes[is_context].sum(), sizes[~is_context].sum()])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    units = torch.eye(size, dtype=torch.float64)[:, None].expand(-1, classes, -1)
    jacobian = split(pulled(inputs, units))
    by_context, by_rest = torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(probes):
        gradients, direction = normal(OUTPUTS, classes, size), normal(*inputs.shape)
        for mask, found in ((is_context, by_context), (~is_context, by_rest)):
            shift = STEP * direction * mask[:, None]
            change = pulled(inputs + shift, gradients) - pulled(inputs - shift, gradients)
            found += split(change / (2 * STEP)) / (OUTPUTS * probes)
    return Derivatives(
        jacobian_context=float(jacobian[0]),
        jacobian_rest=float(jacobian[1]),
        hessian_context=float(by_context[0]),
        hessian_rest=float(by_rest[1]),
        hessian_cross=float(by_context[1]),
        trace_context=squared_trace(texts, context, 8 * probes, generator),
    )


def squared_trace(texts: ClassTexts, context: Tensor, probes: int, generator: torch.Generator) -> float:
    """|trace H|^2 over all features, without the bias of squaring a noisy mean: products of different probes only."""
    step = 10 * STEP  # of a second difference
    with torch.no_grad():
        middle = texts.features(context)
        total, squares = torch.zeros_like(middle), 0.0
        for start in range(0, probes, AT_ONCE):
            count = min(AT_ONCE, probes - start)
            shift = step * torch.randn(count, *context.shape, generator=generator, dtype=torch.float64)
            second = (texts.features(context + shift) + texts.features(context - shift) - 2 * middle) / step**2
            total += second.sum(0)
            squares += float(second.square().sum())
    return (float(total.square().sum()) - squares) / (probes * (probes - 1))


def flatness(texts: ClassTexts, context: Tensor, noise: Noise) -> float:
    """L_flat with its constant: the mean over classes and draws of 1 - cos."""
    with torch.no_grad():
        clean = texts.features(context)
        noisy = texts.noisy_features(context, noise)
        return float(distance(clean.expand_as(noisy), noisy, "cosine"))


def draw(
    texts: ClassTexts, tokens: int, draws: int, context_std: float, class_std: float, generator: torch.Generator
) -> Noise:
    """Noise of these standard deviations, in float64."""
    shape = draws, 1, 1 + tokens + texts.packing.longest, texts.tower.width
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    sos, context, suffix = normal.split([1, tokens, texts.packing.longest], dim=2)
    return Noise(sos=class_std * sos, context=context_std * context, suffix=class_std * suffix)


def mirrored(noise: Noise) -> Noise:
    """Each draw and its mirror image: what is linear in the noise, and zero in the mean, is zero here as well."""
    sos, context, suffix = (torch.cat([part, -part]) for part in (noise.sos, noise.context, noise.suffix))
    return Noise(sos=sos, context=context, suffix=suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGradients:
    """The gradient of L_flat that is used, beside the gradient of what it measures."""

    cosine: float
    descends: float  # what a small step along the used one does, over what the same length along the true one does


def flat_gradients(texts: ClassTexts, context: Tensor, noise: Noise) -> FlatGradients:
    """Without gradients through the noisy features, as released, and with them."""
    clean, noisy = (context.clone().requires_grad_() for _ in range(2))  # one place, for each of the two branches
    noisy_features = texts.noisy_features(noisy, noise)
    loss = distance(texts.features(clean).expand_as(noisy_features), noisy_features, "cosine")
    released, other = (part.flatten() for part in torch.autograd.grad(loss, (clean, noisy)))
    true = released + other
    # signs are what AdamW's first step makes of a gradient
    signed = F.cosine_similarity(released.sign(), true, dim=0) / F.cosine_similarity(true.sign(), true, dim=0)
    return FlatGradients(cosine=float(F.cosine_similarity(released, true, dim=0)), descends=float(signed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """Means over samples, of the entropy of the averaged confident views."""

    rise: Sequence[float]  # h for each length: the loss a step of it up the gradient, less the loss
    top: float  # size of the Hessian's largest eigenvalue
    gradient: float  # norm


def sharpness(
    model: TextModel, context: Tensor, views: Tensor, share: float, lengths: Sequence[float], rounds: int
) -> Sharpness:
    """How sharp the loss of each sample is at a context; `lengths` are those of the step."""
    kept = select(views, model.logits(views, model.features(context)), share)
    at = context.expand(len(views), -1, -1)

    def loss(contexts: Tensor) -> Tensor:
        return averaged_entropy(model.logits(kept, model.features(contexts)))

    def gradient(contexts: Tensor) -> Tensor:
        contexts = contexts.detach().requires_grad_()
        return torch.autograd.grad(loss(contexts).sum(), contexts)[0]

    uphill = gradient(at)
    with torch.no_grad():
        rise = [float((loss(at + length * _unit(uphill)) - loss(at)).mean()) for length in lengths]
    return Sharpness(rise=rise, top=_top_eigenvalue(gradient, at, uphill, rounds), gradient=float(_norm(uphill).mean()))


def _top_eigenvalue(gradient: Callable[[Tensor], Tensor], at: Tensor, start: Tensor, rounds: int) -> float:
    """By power iteration on differences of gradients, for each sample at once."""
    direction, value = _unit(start), torch.zeros(len(at))
    for _ in range(rounds):
        product = (gradient(at + STEP * direction) - gradient(at - STEP * direction)) / (2 * STEP)
        value = (product * direction).sum((1, 2))
        direction = _unit(product)
    return float(value.abs().mean())


def _norm(contexts: Tensor) -> Tensor:
    lengths: Tensor = contexts.flatten(1).norm(dim=-1)
    return lengths


def _unit(contexts: Tensor) -> Tensor:
    return contexts / _norm(contexts).clamp(min=1e-30)[:, None, None]
