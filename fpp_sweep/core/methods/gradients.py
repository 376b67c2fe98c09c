"""Gradients of samples' losses with respect to their contexts.

The gradient is J' g, where g is the gradient of a sample's loss with respect to the text features and J is the
Jacobian d features / d context. The first adaptation step starts every sample from the same context, so J is the same
for all of them. Either J is built once and each sample costs a matrix product, or each sample's g goes through the
tower's backward pass. Both are exact; the number of samples decides which one is cheaper. Where contexts differ,
`gradients_at` runs the tower forward and back for each context.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fpp_sweep.core.compute import gradient_scale, product_dtype, run_in_batches, upcast
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.text.texts import Texts

FORWARD_BACKWARD_RATIO = 4  # forward-only batch size / batch size with saved activations
BACKWARD_BATCHES = 8  # batches of feature dimensions after which a part of J is written


class FirstGradient(Protocol):
    """Text features at the initial context, and their backward pass."""

    features: Tensor  # (K, D)

    def backward(self, gradients: Tensor) -> Tensor:
        """Gradients (B, K, D) with respect to the features -> (B, n, W) with respect to the context."""
        ...


class ByBackward:
    """First gradient by backward passes, one for each sample, through one graph of the tower."""

    def __init__(self, texts: Texts, context: Tensor) -> None:
        self._context = context.detach().requires_grad_()
        self._batch_size = texts.contexts_per_batch()
        with torch.enable_grad():
            self._graph = texts.features(self._context)
        self.features = self._graph.detach()

    def backward(self, gradients: Tensor) -> Tensor:
        go_back_from = partial(go_back, self._graph, self._context)
        return run_in_batches(go_back_from, gradients, self._batch_size)


def go_back(features: Tensor, contexts: Tensor, gradients: Tensor) -> Tensor:
    """Return gradients (B, ...) at contexts from B gradients (B, K, D) at their features, all through one graph."""
    scale = gradient_scale(gradients)
    (result,) = torch.autograd.grad(features, contexts, scale * gradients, retain_graph=True, is_grads_batched=True)
    return result / scale


class ByJacobian:
    """First gradient by a product with J (K, D, n * W)."""

    def __init__(self, texts: Texts, context: Tensor) -> None:
        """Build J by groups of classes, as many classes as fit with what their backward pass saves.

        Feature d of a class depends on the context through that class's own text only. So with a copy of the context
        for each class, D backward passes, each for one feature of all classes, give all of J.
        """
        self._context_shape = context.shape
        size = texts.tower.feature_size
        self.features = context.new_empty(len(texts), size)
        shape = len(texts), size, context.numel()
        self._jacobian = torch.empty(shape, dtype=product_dtype(context), device=context.device)
        group_size = max(
            1, texts.tower.saved_positions_per_batch() // (len(context) + texts.suffix_positions(len(context)))
        )
        for classes, part in texts.parts(group_size):
            self._build(classes, part, context)

    def _build(self, classes: Tensor, texts: Texts, context: Tensor) -> None:
        """Build the part of J of some classes."""
        contexts = context.detach().flatten().repeat(len(classes), 1).requires_grad_()  # (classes, n * W)
        with torch.enable_grad():
            features = texts.features_of_own(contexts.view(1, -1, *self._context_shape))[0]  # (classes, D)
        self.features[classes] = features.detach()

        def rows_of_jacobian(dimensions: Tensor) -> Tensor:
            """Return the rows (d, classes, n * W) of J for some dimensions (d,) of the features."""
            one_hot = features.new_zeros(len(dimensions), *features.shape)
            one_hot[torch.arange(len(dimensions)), :, dimensions] = 1
            return go_back(features, contexts, one_hot)

        batch_size = max(1, texts.tower.positions_per_batch() // texts.whole_positions(len(context)))  # dimensions
        dimensions = torch.arange(features.shape[1], device=features.device)
        for some in dimensions.split(BACKWARD_BATCHES * batch_size):
            rows = run_in_batches(rows_of_jacobian, some, batch_size)
            self._jacobian[classes[:, None], some] = rows.transpose(0, 1).to(self._jacobian)

    def backward(self, gradients: Tensor) -> Tensor:
        """Return J' g for each sample: (B, K * D) @ (K * D, n * W)."""
        scale = gradient_scale(gradients)
        product = upcast((scale * gradients).flatten(1) @ self._jacobian.flatten(0, 1))
        return product.view(-1, *self._context_shape) / scale


def jacobian_cost(texts: Texts, tokens: int, samples: int) -> float:
    """Return the cost of J and its products, in token positions that go through the tower, forward or backward.

    Building J takes D backward passes through all whole texts; a sample costs a matrix product with J.
    """
    tower = texts.tower
    products_of_sample = len(texts) * tower.feature_size * tokens * tower.width  # entries of J
    fixed = tower.feature_size * texts.whole_positions(tokens)
    return fixed + products_of_sample / tower.products_per_position * samples


def first_gradient(texts: Texts, context: Tensor, samples: int) -> FirstGradient:
    """Return the cheaper form for a number of samples; J is built only where it fits in memory."""
    tokens = len(context)
    fits = jacobian_bytes(texts, context) <= texts.tower.memory.kept
    if fits and jacobian_cost(texts, tokens, samples) < texts.positions(tokens) * samples:
        return ByJacobian(texts, context)
    return ByBackward(texts, context)


def jacobian_bytes(texts: Texts, context: Tensor) -> int:
    return len(texts) * texts.tower.feature_size * context.numel() * product_dtype(context).itemsize


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

    def gradients(rows: Tensor) -> Tensor:
        points = contexts[rows].detach().requires_grad_()
        with torch.enable_grad():
            graph = texts.features(points)
        features[rows] = graph.detach()
        by_features = feature_gradient(graph.detach(), rows)
        scale = gradient_scale(by_features)
        (result,) = torch.autograd.grad(graph, points, scale * by_features)
        return result / scale

    samples = torch.arange(len(contexts), device=contexts.device)
    fitting = texts.tower.saved_positions_per_batch() // texts.positions(contexts.shape[1])
    batch_size = max(1, min(texts.contexts_per_batch() // FORWARD_BACKWARD_RATIO, fitting))
    return run_in_batches(gradients, samples, batch_size), features


def gradient_of(loss: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return the gradients (B, ...) of losses (B,), each a function of one row of features or logits in `values`."""
    values = values.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(values).sum(), values)
    return gradient
