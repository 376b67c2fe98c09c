"""Gradients of samples' losses with respect to their contexts.

It is J' g, where g is the gradient of a sample's loss with respect to the text features and J = d features / d context.
The first adaptation step starts every sample from the same context, so J is the same for all of them. Either it is
built once and each sample costs a matrix product, or each sample's g goes through the tower's backward pass. Both are
exact; which one is cheaper depends on the number of samples. Where contexts differ, `gradients_at` runs the tower
forward and back for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fpp_sweep.core.compute.memory import BATCHES, KEPT, halving
from fpp_sweep.core.compute.precision import full, gradient_scale, kept_type
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.core.text.packing import Packing
from fpp_sweep.core.text.pullback import Pullback

WAY_BACK = 4  # samples that are sent forward at a time, for one that is sent back, too, and keeps what that takes


class FirstGradient(Protocol):
    """Text features at the initial context, and their backward pass."""

    features: Tensor  # (K, D)

    def backward(self, gradients: Tensor) -> Tensor:
        """(B, K, D) -> (B, n, W)."""
        ...


class ByPullback:
    """Each sample's gradient goes through the backward pass."""

    def __init__(self, texts: ClassTexts, context: Tensor) -> None:
        self._pullback = Pullback(texts.tower, texts.prefix(context[None]), texts.nodes[None], texts.packing)
        self._context_rows = torch.arange(1, 1 + len(context), device=context.device)
        self._at_once, self._run = texts.rows_at_once(), texts.tower.run
        self.features = self._pullback.features[0]

    def backward(self, gradients: Tensor) -> Tensor:
        return halving(self._backward, gradients, self._at_once)

    def _backward(self, gradients: Tensor) -> Tensor:
        return self._run(Pullback.__call__, self._pullback, gradients, self._context_rows)


class ByJacobian:
    """Each sample's gradient is multiplied with J (K * D, n * W), which is on the device or comes to it by blocks."""

    def __init__(self, texts: ClassTexts, context: Tensor, *, on_host: bool = False) -> None:
        """Build J, some classes at a time.

        Feature d of a class depends on the context through that class's own text only. So with a copy of the context
        for each class, D backward passes, each for one feature of all classes, give all of J. The copies may share SOS,
        which precedes the context and so does not depend on it.
        """
        self._context = context.shape
        size = len(texts.tower.projection[0])
        self.features = context.new_empty(len(texts), size)
        pinned = on_host and context.is_cuda
        self._jacobian = torch.empty(
            (len(texts), size, context.numel()),
            dtype=kept_type(context),
            device="cpu" if on_host else context.device,
            pin_memory=pinned,
        )
        block = BATCHES * texts.tower.room.device // self._jacobian[0].nbytes if on_host else len(texts)
        self._block = int(min(max(1, block), len(texts)))  # classes
        copies = context.expand(1, len(texts), -1, -1)
        rows, whole = texts.whole(copies, texts.packing.to_tokens(texts.nodes[None]))
        lengths = whole.lengths
        at_once = max(1, texts.tower.kept_at_once() // lengths[-1])
        start = 0
        for index, classes in enumerate(texts.packing.order.split(at_once)):
            group = lengths[index * at_once : (index + 1) * at_once]
            self._build(texts, classes, rows[0, start : start + sum(group)], group)
            start += sum(group)

    def _build(self, texts: ClassTexts, classes: Tensor, rows: Tensor, lengths: Sequence[int]) -> None:
        packing = Packing.of_lengths(lengths).on(rows.device)  # the rows are in packed order already
        pullback = Pullback(texts.tower, texts.sos[None, None], rows[None], packing)
        self.features[classes] = pullback.features[0]
        tokens, size = self._context[0], pullback.features.shape[-1]
        starts = 1 + packing.ends + 1 - torch.tensor(lengths, device=rows.device)  # after SOS
        context_rows = starts[:, None] + torch.arange(tokens, device=rows.device)
        at_once = max(1, texts.tower.rows_at_once() // len(packing))

        def pull(dimensions: Tensor) -> Tensor:
            ones = rows.new_zeros(len(dimensions), len(classes), size)
            ones[torch.arange(len(dimensions)), :, dimensions] = 1
            return pullback(ones, context_rows.flatten()).view(len(dimensions), len(classes), -1)

        for dimensions in torch.arange(size, device=rows.device).split(8 * at_once):
            rows_of, place = halving(pull, dimensions, at_once).transpose(0, 1), self._jacobian.device
            self._jacobian[classes.to(place)[:, None], dimensions.to(place)] = rows_of.to(self._jacobian)

    def backward(self, gradients: Tensor) -> Tensor:
        scale = gradient_scale(gradients)
        blocks = zip((scale * gradients).split(self._block, 1), self._jacobian.split(self._block), strict=True)
        first, *others = (
            full(part.flatten(1) @ block.to(part.device, non_blocking=True).flatten(0, 1)) for part, block in blocks
        )
        return sum(others, first).view(-1, *self._context) / scale


@dataclass(frozen=True, slots=True)
class Cost:
    """In token positions that go through the tower; forward and backward passes cost about the same."""

    fixed: float
    per_sample: float

    def total(self, samples: int) -> float:
        return self.fixed + self.per_sample * samples


def pullback_cost(texts: ClassTexts, tokens: int) -> Cost:
    return Cost(fixed=0, per_sample=len(texts.packing) + 1 + tokens)


def jacobian_cost(texts: ClassTexts, tokens: int) -> Cost:
    """Building J takes D backward passes through all whole texts; a sample costs a matrix product with it."""
    tower = texts.tower
    size = len(tower.projection[0])
    whole = sum(texts.packing.lengths) + len(texts) * tokens
    matrices = (affine[0] for block in tower.blocks for affine in (block.qkv, block.out, block.fc, block.proj))
    weights = sum(matrix.numel() for matrix in matrices)
    return Cost(fixed=size * whole, per_sample=len(texts) * size * tokens * tower.width / weights)


def first_gradient(texts: ClassTexts, context: Tensor, samples: int) -> FirstGradient:
    """The cheaper form for that number of samples, if it fits in memory: the device's, or that of the machine."""
    if not jacobian_pays(texts, context, samples):
        return ByPullback(texts, context)
    return ByJacobian(texts, context, on_host=jacobian_bytes(texts, context) > KEPT * texts.tower.room.device)


def jacobian_pays(texts: ClassTexts, context: Tensor, samples: int) -> bool:
    """Whether J fits in memory and is cheaper for that number of samples."""
    tokens, room = len(context), texts.tower.room
    cheaper = jacobian_cost(texts, tokens).total(samples) < pullback_cost(texts, tokens).total(samples)
    return cheaper and jacobian_bytes(texts, context) <= KEPT * max(room.device, room.host)


def jacobian_bytes(texts: ClassTexts, context: Tensor) -> int:
    return len(texts) * len(texts.tower.projection[0]) * context.numel() * kept_type(context).itemsize


OfFeatures = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def gradients_at(model: TextModel, contexts: Tensor, of_features: OfFeatures) -> tuple[Tensor, Tensor]:
    """The gradients (B, n, W) at contexts that differ from sample to sample, and the text features (B, K, D) there.

    `of_features(features, rows)` gives the gradients (b, K, D) of samples' losses with respect to their text features.
    It is called for a part of the batch at a time, as many as fit: with the features (b, K, D) of the samples `rows`,
    indices (b,) into `contexts`. A part may come twice, where memory runs out.
    """
    texts = model.texts
    features = contexts.new_empty(len(contexts), len(texts), len(texts.tower.projection[0]))
    mask = texts.packing.attention_mask(1 + contexts.shape[1])
    context_rows = torch.arange(1, 1 + contexts.shape[1], device=contexts.device)

    def gradients(rows: Tensor) -> Tensor:
        prefix = texts.prefix(contexts[rows])
        pullback = Pullback(texts.tower, prefix, texts.nodes[None], texts.packing, mask, keep=len(rows))
        features[rows] = pullback.features
        return texts.tower.run(Pullback.__call__, pullback, of_features(pullback.features, rows), context_rows)

    samples = torch.arange(len(contexts), device=contexts.device)
    kept = texts.tower.kept_at_once() // (1 + len(texts.packing))
    return halving(gradients, samples, max(1, min(texts.rows_at_once() // WAY_BACK, kept))), features


def gradient_of(loss: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Of losses (B,) with respect to the features, or logits, (B, ...) that each is a function of."""
    values = values.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(values).sum(), values)
    return gradient
