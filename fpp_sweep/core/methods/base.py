"""What a method is, and the contract that every method must meet.

A method sees the image features of a few samples at a time, in the order of the stream, and returns logits for view 0.

- Most methods treat samples one by one, even when they come in a batch: beyond rounding, the logits of a sample do not
  depend on the rest of the batch. They return the state that they were given; it holds what is constant for a (prompt,
  dataset), so that it is computed once.
- Stateful methods (a buffer of prompts that evolves along the stream) take samples in stream order and return the
  state after the last one. The shards of their stream are evaluated one after the other, each from the stored state
  of the one before, never in parallel.
- A method draws no random numbers and keeps no state in itself, so that a retried task gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from fpp_sweep.core.compute.precision import full
from fpp_sweep.core.text.classes import ClassTexts

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextModel:
    """Class texts and the temperature: a classifier of image features once it is given a context."""

    texts: ClassTexts
    logit_scale: float

    def features(self, context: Tensor) -> Tensor:
        """(*B, n, W) -> (*B, K, D)."""
        mask = self.texts.packing.attention_mask(1 + context.shape[-2])
        return self.texts.tower.run(ClassTexts.features, self.texts, context, mask)

    def logits(self, views: Tensor, features: Tensor) -> Tensor:
        """(*B, V, D) views against (*B, K, D) or (K, D) text features -> (*B, V, K)."""
        return full(self.logit_scale * views @ features.transpose(-1, -2))


class Method(Protocol[State]):
    """See the module's text."""

    def start(self, model: TextModel, context: Tensor, samples: int) -> State:
        """The state before the first of `samples` samples: everything that is constant for a (prompt, dataset)."""
        ...

    def predict(self, model: TextModel, state: State, views: Tensor) -> tuple[Tensor, State]:
        """Logits (B, K) for view 0 of B samples with views (B, V, D), and the state after them."""
        ...


class AdaptingMethod(Method[State], Protocol):
    """A method that comes to a prompt for each sample, where sharpness can be measured; `predict` is both in turn."""

    def adapted(self, model: TextModel, state: State, views: Tensor) -> Tensor:
        """The contexts (B, n, W) that B samples with views (B, V, D) come to."""
        ...

    def classified(self, model: TextModel, contexts: Tensor, views: Tensor) -> Tensor:
        """Logits (B, K) for their views 0 under these contexts."""
        ...


class StatefulMethod(Method[State], Protocol):
    """A method whose state evolves along the stream, and can be stored between two shards of it."""

    def pack(self, state: State) -> Mapping[str, Tensor]:
        """What the stream has changed, as tensors by name."""
        ...

    def unpack(self, state: State, tensors: Mapping[str, Tensor]) -> State:
        """A state from `start`, with what the stream has changed restored."""
        ...
