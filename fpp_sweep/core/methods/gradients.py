"""Gradients of samples' losses with respect to their contexts.

The gradient is J' g, where g is the gradient of a sample's loss with respect to the text features and J is the
Jacobian d features / d context. The first adaptation step starts every sample from the same context, so J is the same
for all of them. Either J is built once and each sample costs a matrix product, or each sample's g goes through the
tower's backward pass. Both are exact; the number of samples decides which one is cheaper. Where contexts differ,
`gradients_at` runs the tower forward and back for each context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fpp_sweep.core.compute.memory import BATCH_FRACTION, CACHE_FRACTION, run_in_batches
from fpp_sweep.core.compute.precision import gradient_scale, product_dtype, upcast
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.core.text.packing import Packing
from fpp_sweep.core.text.pullback import Pullback

FORWARD_BACKWARD_RATIO = 4  # forward-only batch size / batch size with saved activations
BACKWARD_BATCHES = 8  # batches of feature dimensions after which a part of J is written


class FirstGradient(Protocol):
    """Text features at the initial context, and their backward pass."""

    features: Tensor  # (K, D)

    def backward(self, gradients: Tensor) -> Tensor:
        """Gradients (B, K, D) with respect to the features -> (B, n, W) with respect to the context."""
        ...


class ByPullback:
    """First gradient by the tower's backward pass, once for each sample."""

    def __init__(self, texts: ClassTexts, context: Tensor) -> None:
        self._pullback = Pullback(texts.tower, texts.prefix(context[None]), texts.nodes[None], texts.packing)
        self._context_rows = torch.arange(1, 1 + len(context), device=context.device)  # row 0 is SOS
        self._batch_size = texts.contexts_per_batch()
        self.features = self._pullback.features[0]

    def backward(self, gradients: Tensor) -> Tensor:
        return run_in_batches(self._backward, gradients, self._batch_size)

    def _backward(self, gradients: Tensor) -> Tensor:
        return self._pullback(gradients, self._context_rows)


class ByJacobian:
    """First gradient by a product with J (K, D, n * W), which stays on the device or comes to it in blocks."""

    def __init__(self, texts: ClassTexts, context: Tensor, *, on_host: bool = False) -> None:
        """Build J, some classes at a time.

        Feature d of a class depends on the context through that class's own text only. So with a copy of the context
        for each class, D backward passes, each for one feature of all classes, give all of J. The copies may share SOS,
        which precedes the context and so does not depend on it.
        """
        self._context_shape = context.shape
        self.features = context.new_empty(len(texts), texts.tower.feature_size)
        self._jacobian = torch.empty(
            (len(texts), texts.tower.feature_size, context.numel()),
            dtype=product_dtype(context),
            device="cpu" if on_host else context.device,
            pin_memory=on_host and context.is_cuda,
        )
        self._block = len(texts)  # classes whose part of J is on the device at a time
        if on_host:
            fitting = BATCH_FRACTION * texts.tower.memory.device // self._jacobian[0].nbytes
            self._block = int(min(max(1, fitting), len(texts)))
        self._build(texts, context)

    def _build(self, texts: ClassTexts, context: Tensor) -> None:
        """Build J by groups of classes, as many classes as fit with what their backward pass saves."""
        copies = context.expand(1, len(texts), -1, -1)
        # all texts in a row, in packed order, each with its own context (1, sum of lengths, W)
        rows, packing = texts.join_prefixes(copies, texts.packing.to_tokens(texts.nodes[None]))
        group_size = max(1, texts.tower.saved_positions_per_batch() // packing.longest)  # classes
        first_row = 0
        for index, classes in enumerate(texts.packing.order.split(group_size)):
            lengths = packing.lengths[index * group_size : (index + 1) * group_size]
            end_row = first_row + sum(lengths)
            self._build_group(texts, classes, rows[0, first_row:end_row], lengths)
            first_row = end_row

    def _build_group(self, texts: ClassTexts, classes: Tensor, rows: Tensor, lengths: Sequence[int]) -> None:
        """Build the part of J of some classes, whose texts after SOS are `rows` (sum of lengths, W)."""
        packing = Packing.of_lengths(lengths).to(rows.device)  # the rows are in packed order already
        pullback = Pullback(texts.tower, texts.sos[None, None], rows[None], packing)
        self.features[classes] = pullback.features[0]
        tokens, size = self._context_shape[0], texts.tower.feature_size
        text_starts = packing.ends + 1 - torch.tensor(lengths, device=rows.device)  # node of each text's first token
        context_starts = 1 + text_starts  # row 0 is SOS
        context_rows = context_starts[:, None] + torch.arange(tokens, device=rows.device)  # (classes, n)

        def rows_of_jacobian(dimensions: Tensor) -> Tensor:
            """Return the rows (d, classes, n * W) of J for some dimensions (d,) of the features."""
            one_hot = rows.new_zeros(len(dimensions), len(classes), size)
            one_hot[torch.arange(len(dimensions)), :, dimensions] = 1
            return pullback(one_hot, context_rows.flatten()).view(len(dimensions), len(classes), -1)

        batch_size = max(1, texts.tower.positions_per_batch() // len(packing))  # dimensions
        device = self._jacobian.device
        for dimensions in torch.arange(size, device=rows.device).split(BACKWARD_BATCHES * batch_size):
            part = run_in_batches(rows_of_jacobian, dimensions, batch_size).transpose(0, 1)
            self._jacobian[classes.to(device)[:, None], dimensions.to(device)] = part.to(self._jacobian)

    def backward(self, gradients: Tensor) -> Tensor:
        """Return J' g for each sample: the sum over classes of (B, D) @ (D, n * W), some classes at a time."""
        scale = gradient_scale(gradients)
        parts = (scale * gradients).split(self._block, 1)  # (B, classes, D) each
        blocks = self._jacobian.split(self._block)  # (classes, D, n * W) each
        total: Tensor | None = None
        for part, block in zip(parts, blocks, strict=True):
            on_device = block.to(part.device, non_blocking=True).flatten(0, 1)
            product = upcast(part.flatten(1) @ on_device)
            total = product if total is None else total + product
        assert total is not None
        return total.view(-1, *self._context_shape) / scale


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of the first gradient, in token positions that go through the tower: once, and for each sample.

    Forward and backward passes cost about the same for a position.
    """

    fixed: float
    per_sample: float

    def total(self, samples: int) -> float:
        return self.fixed + self.per_sample * samples


def pullback_cost(texts: ClassTexts, tokens: int) -> Cost:
    return Cost(fixed=0, per_sample=len(texts.packing) + 1 + tokens)


def jacobian_cost(texts: ClassTexts, tokens: int) -> Cost:
    """Building J takes D backward passes through all whole texts; a sample costs a matrix product with J."""
    tower = texts.tower
    size = tower.feature_size
    positions = sum(texts.packing.lengths) + len(texts) * tokens
    products_of_position = 0  # multiplications of a token position in the tower
    for block in tower.blocks:
        for matrix, _ in (block.qkv, block.out, block.fc, block.proj):
            products_of_position += matrix.numel()
    products_of_sample = len(texts) * size * tokens * tower.width  # entries of J
    return Cost(fixed=size * positions, per_sample=products_of_sample / products_of_position)


def first_gradient(texts: ClassTexts, context: Tensor, samples: int) -> FirstGradient:
    """Return the cheaper form for a number of samples; J is kept where it fits, on the device or on the host."""
    if not jacobian_pays(texts, context, samples):
        return ByPullback(texts, context)
    too_large = jacobian_bytes(texts, context) > CACHE_FRACTION * texts.tower.memory.device
    return ByJacobian(texts, context, on_host=too_large)


def jacobian_pays(texts: ClassTexts, context: Tensor, samples: int) -> bool:
    """Return whether J fits in memory and is cheaper for that number of samples."""
    tokens, memory = len(context), texts.tower.memory
    size = jacobian_bytes(texts, context)
    fits_device = size <= CACHE_FRACTION * memory.device
    fits_host = pinned_bytes(size) <= CACHE_FRACTION * memory.host
    cheaper = jacobian_cost(texts, tokens).total(samples) < pullback_cost(texts, tokens).total(samples)
    return cheaper and (fits_device or fits_host)


def jacobian_bytes(texts: ClassTexts, context: Tensor) -> int:
    return len(texts) * texts.tower.feature_size * context.numel() * product_dtype(context).itemsize


def pinned_bytes(size: int) -> int:
    """Return the bytes that torch takes to pin `size` bytes: the next power of two.

    >>> pinned_bytes(9), pinned_bytes(16)
    (16, 16)
    """
    return 1 << (size - 1).bit_length()


# text features (b, K, D) of the samples `rows` (b,) -> gradients (b, K, D) of these samples' losses
FeatureGradient = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def gradients_at(model: TextModel, contexts: Tensor, feature_gradient: FeatureGradient) -> tuple[Tensor, Tensor]:
    """Return the gradients (B, n, W) at contexts that differ from sample to sample, and the text features (B, K, D).

    `feature_gradient` is called for one batch of samples at a time, and a second time for samples of a batch for which
    memory ran out.
    """
    texts = model.texts
    features = contexts.new_empty(len(contexts), len(texts), texts.tower.feature_size)
    mask = texts.packing.attention_mask(1 + contexts.shape[1])
    context_rows = torch.arange(1, 1 + contexts.shape[1], device=contexts.device)

    def gradients(rows: Tensor) -> Tensor:
        prefix = texts.prefix(contexts[rows])
        pullback = Pullback(texts.tower, prefix, texts.nodes[None], texts.packing, mask, keep=len(rows))
        features[rows] = pullback.features
        return pullback(feature_gradient(pullback.features, rows), context_rows)

    samples = torch.arange(len(contexts), device=contexts.device)
    fitting = texts.tower.saved_positions_per_batch() // (1 + len(texts.packing))
    batch_size = max(1, min(texts.contexts_per_batch() // FORWARD_BACKWARD_RATIO, fitting))
    return run_in_batches(gradients, samples, batch_size), features


def gradient_of(loss: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return the gradients (B, ...) of losses (B,), each a function of one row of features or logits in `values`."""
    values = values.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(values).sum(), values)
    return gradient
