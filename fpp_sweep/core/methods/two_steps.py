"""Two steps on the two terms of the loss, one after the other: entropy (ent) and penalty (reg).

The second step goes on with the optimizer state of the first (`adapt.keep_optimizer`), as C-TPT's code does. Views are
selected once, at the initial prompt, unless the first step looked at none (`adapt.reselect`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import Start, Tpt
from fpp_sweep.core.optim import AdamState


class _EntFirst(Tpt):
    """A step on the entropy, then another."""

    def adapted(self, model: TextModel, state: Start, views: Tensor) -> Tensor:
        kept = self.selected(model, state.first.features, views)
        contexts = state.context.expand(len(views), -1, -1)
        contexts, optimizer = self.stepped(contexts, self.entropy_gradient(model, state, kept), None)
        gradient = self.second(model, contexts, views, kept)
        return self.stepped(contexts, gradient, optimizer if self.adapt.keep_optimizer else None)[0]

    def second(self, model: TextModel, contexts: Tensor, views: Tensor, kept: Tensor) -> Tensor:
        raise NotImplementedError


class EntEnt(_EntFirst):
    """Entropy, then entropy again."""

    def second(self, model: TextModel, contexts: Tensor, views: Tensor, kept: Tensor) -> Tensor:
        again = self.adapt.reselect == "on"
        return self.gradient(model, contexts, self.reselecting_loss(model, views) if again else self.loss(model, kept))


class EntReg(_EntFirst):
    """Entropy, then the penalty alone."""

    def second(self, model: TextModel, contexts: Tensor, views: Tensor, kept: Tensor) -> Tensor:
        return self.gradient(model, contexts, lambda features, rows: self.regulariser(features))


class Moved(NamedTuple):
    """After a first step that is the same for all samples."""

    start: Start  # where they all are now
    optimizer: AdamState | None
    initial: Tensor  # text features (K, D) before that step


class RegEnt(Tpt):
    """The penalty alone, then entropy: the second step, too, starts every sample from one context."""

    def start(self, model: TextModel, context: Tensor, samples: int) -> Moved:  # type: ignore[override]
        gradient = self.penalty_gradient(model, context)
        assert isinstance(gradient, Tensor), "the method's row has a penalty"
        moved, optimizer = self.stepped(context, gradient, None)
        first = self.first(model, moved, samples)
        return Moved(
            Start(moved, first, 0.0), optimizer if self.adapt.keep_optimizer else None, model.features(context)
        )

    def adapted(self, model: TextModel, state: Moved, views: Tensor) -> Tensor:  # type: ignore[override]
        features = state.initial if self.adapt.reselect == "off" else state.start.first.features
        kept = self.selected(model, features, views)
        contexts = state.start.context.expand(len(views), -1, -1)
        return self.stepped(contexts, self.entropy_gradient(model, state.start, kept), state.optimizer)[0]
