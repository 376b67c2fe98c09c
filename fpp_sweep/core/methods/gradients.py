"""The gradient of a first adaptation step, which starts every sample from the same context.

It is J' g for a sample's gradient g with respect to the text features, with the same J = d features / d context for all
samples. Either J is built once and each sample costs a product, or each sample's g is sent through the tower's backward
pass. Both are exact; which one is cheaper depends on how many samples share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.core.text.layout import Layout
from fpp_sweep.core.text.memory import halving
from fpp_sweep.core.text.pullback import Pullback

JACOBIAN_BYTES = 5e9  # what J may take: ImageNet's thousand classes need 4.2e9


class FirstGradient(Protocol):
    """Text features at the initial context, and the way back from them."""

    features: Tensor  # (K, D)

    def back(self, gradients: Tensor) -> Tensor:
        """(B, K, D) -> (B, n, W)."""
        ...


class ByPullback:
    """Each sample's gradient goes through the backward pass."""

    def __init__(self, texts: ClassTexts, context: Tensor) -> None:
        self._pullback = Pullback(texts.tower, texts.prefix(context[None]), texts.nodes[None], texts.layout)
        self._places = torch.arange(1, 1 + len(context), device=context.device)
        self._at_once, self._run = texts.rows_at_once(), texts.tower.run
        self.features = self._pullback.features[0]

    def back(self, gradients: Tensor) -> Tensor:
        return halving(self._back, gradients, self._at_once)

    def _back(self, gradients: Tensor) -> Tensor:
        return self._run(Pullback.__call__, self._pullback, gradients, self._places)


class ByJacobian:
    """Each sample's gradient is multiplied with J (K * D, n * W)."""

    def __init__(self, texts: ClassTexts, context: Tensor) -> None:
        """Build J, some classes at a time.

        Feature d of a class depends on the context through that class's own text only. So D passes, with one gradient
        row for every class, give all of J, and the classes need not know of each other. They share SOS, from which no
        way leads to the context.
        """
        self._context = context.shape
        size = len(texts.tower.projection[0])
        self.features = context.new_empty(len(texts), size)
        self._jacobian = context.new_empty(len(texts), size, context.numel())
        own = context.expand(1, len(texts), -1, -1)
        rows, whole = texts.whole(own, texts.layout.to_tokens(texts.nodes[None]))
        lengths = whole.lengths
        at_once = max(1, texts.tower.rows_at_once() // lengths[-1])
        for classes, group in zip(texts.layout.order.split(at_once), _groups(rows[0], lengths, at_once), strict=True):
            self._build(texts, classes, *group)

    def _build(self, texts: ClassTexts, classes: Tensor, rows: Tensor, lengths: list[int]) -> None:
        layout = Layout.of_lengths(lengths).on(rows.device)  # by length already, so places are texts
        pullback = Pullback(texts.tower, texts.sos[None, None], rows[None], layout)
        self.features[classes] = pullback.features[0]
        tokens, size = self._context[0], pullback.features.shape[-1]
        starts = 1 + layout.ends + 1 - torch.tensor(lengths, device=rows.device)  # after SOS
        places = starts[:, None] + torch.arange(tokens, device=rows.device)
        at_once = max(1, texts.tower.rows_at_once() // len(layout))

        def pull(dimensions: Tensor) -> Tensor:
            ones = rows.new_zeros(len(dimensions), len(classes), size)
            ones[torch.arange(len(dimensions)), :, dimensions] = 1
            return pullback(ones, places.flatten()).view(len(dimensions), len(classes), -1)

        for dimensions in torch.arange(size, device=rows.device).split(8 * at_once):
            self._jacobian[classes[:, None], dimensions] = halving(pull, dimensions, at_once).transpose(0, 1)

    def back(self, gradients: Tensor) -> Tensor:
        product: Tensor = gradients.flatten(1) @ self._jacobian.flatten(0, 1)
        return product.view(-1, *self._context)


def _groups(rows: Tensor, lengths: list[int], at_once: int) -> Iterator[tuple[Tensor, list[int]]]:
    """The rows and lengths of so many packed texts after so many."""
    start = 0
    for first in range(0, len(lengths), at_once):
        group = lengths[first : first + at_once]
        yield rows[start : start + sum(group)], group
        start += sum(group)


@dataclass(frozen=True, slots=True)
class Costs:
    """Token positions that go through the tower, forward or back: one is about as dear as the other."""

    once: float
    each: float

    def total(self, samples: int) -> float:
        return self.once + self.each * samples


def pullback_costs(texts: ClassTexts, tokens: int) -> Costs:
    return Costs(once=0, each=len(texts.layout) + 1 + tokens)


def jacobian_costs(texts: ClassTexts, tokens: int) -> Costs:
    """Building J sends D rows through all whole texts; a sample costs a product with it."""
    tower = texts.tower
    size = len(tower.projection[0])
    whole = sum(texts.layout.lengths) + len(texts) * tokens
    matrices = (affine[0] for block in tower.blocks for affine in (block.qkv, block.out, block.fc, block.proj))
    weights = sum(matrix.numel() for matrix in matrices)
    return Costs(once=size * whole, each=len(texts) * size * tokens * tower.width / weights)


def first_gradient(texts: ClassTexts, context: Tensor, samples: int) -> FirstGradient:
    """The cheaper form for so many samples that fits in memory."""
    return (ByJacobian if jacobian_pays(texts, context, samples) else ByPullback)(texts, context)


def jacobian_pays(texts: ClassTexts, context: Tensor, samples: int) -> bool:
    """Whether J fits in memory and is cheaper for so many samples."""
    tokens, width = context.shape
    size = len(texts) * len(texts.tower.projection[0]) * tokens * width * context.element_size()
    cheaper = jacobian_costs(texts, tokens).total(samples) < pullback_costs(texts, tokens).total(samples)
    return cheaper and size <= JACOBIAN_BYTES
