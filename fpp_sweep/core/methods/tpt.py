"""Test-time prompt tuning: for each sample, gradient steps on the entropy of the mean prediction of confident views.

C-TPT and O-TPT are the same step with a penalty on the text features. Other methods of this family take other steps
with the parts that are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.core.compute.memory import halving
from fpp_sweep.core.compute.precision import exactly
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import FirstGradient, first_gradient, gradient_of, gradients_at
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.optim import AdamState, adamw, sgd
from fpp_sweep.spec.config import AdaptConfig

Loss = Callable[[Tensor, Tensor], Tensor]  # of text features (b, K, D), those of the samples `rows` (b,) -> (b,)


class Start(NamedTuple):
    """What is the same for all samples of a prompt and dataset."""

    context: Tensor  # (n, W)
    first: FirstGradient
    penalty: Tensor | float  # gradient of the penalty at the initial context (n, W)


class ZeroShot:
    """The prompt as it is."""

    def __init__(self, **unused: object) -> None:
        """Takes no settings."""

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Tensor:
        return model.texts.features(context)

    def predict(self, model: TextModel, state: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        return model.logits(views[:, :1], state)[:, 0], state


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpt:
    """The entropy step; `weight` times `penalty` is added to the loss."""

    adapt: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0

    def start(self, model: TextModel, context: Tensor, samples: int) -> Start:
        return Start(context, self.first(model, context, samples), self.penalty_gradient(model, context))

    def predict(self, model: TextModel, state: Start, views: Tensor) -> tuple[Tensor, Start]:
        return self.classified(model, self.adapted(model, state, views), views), state

    def adapted(self, model: TextModel, state: Start, views: Tensor) -> Tensor:
        """The adapted contexts (B, n, W) of B samples; all steps use the views selected at the initial context."""
        kept = self.selected(model, state.first.features, views)
        contexts = state.context.expand(len(views), -1, -1)
        optimizer: AdamState | None = None
        for step in range(self.adapt.steps):
            if step == 0:
                gradient = self.entropy_gradient(model, state, kept) + state.penalty
            else:
                gradient = self.gradient(model, contexts, self.loss(model, kept))
            gradient = self.taken(model, contexts, gradient, kept, views)
            contexts, optimizer = self.stepped(contexts, gradient, optimizer)
        return contexts

    @torch.no_grad()
    def classified(self, model: TextModel, contexts: Tensor, views: Tensor) -> Tensor:
        """Logits (B, K) of the plain views under contexts (B, n, W)."""

        def logits(rows: Tensor) -> Tensor:
            return model.logits(views[rows, :1], model.features(contexts[rows]))[:, 0]

        return halving(logits, _rows(contexts), model.texts.rows_at_once())

    # the parts of a step

    def taken(self, model: TextModel, contexts: Tensor, gradient: Tensor, kept: Tensor, views: Tensor) -> Tensor:
        """The gradient that a step takes, from the one where the prompts are: itself."""
        return gradient

    @torch.no_grad()
    def first(self, model: TextModel, context: Tensor, samples: int) -> FirstGradient:
        """The backward pass at a context that all samples share."""
        return first_gradient(model.texts, context, samples)

    def selected(self, model: TextModel, features: Tensor, views: Tensor) -> Tensor:
        """The confident views under text features (K, D) or (B, K, D)."""
        return select(views, model.logits(views, features.detach().to(views.dtype)), self.adapt.view_fraction)

    def entropy(self, model: TextModel, features: Tensor, kept: Tensor) -> Tensor:
        return averaged_entropy(model.logits(kept, features))

    def regulariser(self, features: Tensor) -> Tensor:
        if self.penalty is None:
            return features.new_zeros(())
        with exactly(features):
            return self.weight * self.penalty(features)

    def loss(self, model: TextModel, kept: Tensor) -> Loss:
        """With the views that were selected before."""
        return lambda features, rows: self.entropy(model, features, kept[rows]) + self.regulariser(features)

    def reselecting_loss(self, model: TextModel, views: Tensor) -> Loss:
        """With the views that are confident where the loss is taken."""

        def loss(features: Tensor, rows: Tensor) -> Tensor:
            kept = self.selected(model, features, views[rows])
            return self.entropy(model, features, kept) + self.regulariser(features)

        return loss

    def entropy_gradient(self, model: TextModel, state: Start, kept: Tensor) -> Tensor:
        """Of the entropy alone at the context that all samples share, by the backward pass that they share."""
        of_logits = gradient_of(averaged_entropy, model.logits(kept, state.first.features))
        with torch.no_grad():
            return state.first.backward(model.logit_scale * of_logits.transpose(1, 2) @ kept)

    def penalty_gradient(self, model: TextModel, context: Tensor) -> Tensor | float:
        """Of the weighted penalty alone, which is the same for all samples at one context."""
        if self.penalty is None:
            return 0.0
        return self.gradient(model, context[None], lambda features, rows: self.regulariser(features))[0]

    def gradient(self, model: TextModel, contexts: Tensor, loss: Loss) -> Tensor:
        """Of a loss at contexts that differ from sample to sample."""

        def of_features(features: Tensor, rows: Tensor) -> Tensor:
            return gradient_of(lambda text: loss(text, rows), features)

        return gradients_at(model, contexts, of_features)[0]

    def stepped(
        self, contexts: Tensor, gradient: Tensor, optimizer: AdamState | None
    ) -> tuple[Tensor, AdamState | None]:
        rates = {"lr": self.adapt.lr, "weight_decay": self.adapt.weight_decay}
        if self.adapt.optimizer == "sgd":
            return sgd(contexts, gradient, **rates), None
        return adamw(contexts, gradient, optimizer, **rates)


def _rows(contexts: Tensor) -> Tensor:
    return torch.arange(len(contexts), device=contexts.device)


def select(views: Tensor, logits: Tensor, share: float) -> Tensor:
    """The views (B, S, D) of lowest entropy, at least one; equal entropies in the order of the views."""
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    count = max(1, int(share * views.shape[1]))
    chosen = entropy.argsort(dim=-1, stable=True)[:, :count]
    return views.gather(1, chosen[..., None].expand(-1, -1, views.shape[-1]))


def averaged_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats (B,) of the mean over views of the predictions (B, S, K)."""
    log_mean = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)
    return -(log_mean * log_mean.exp()).sum(-1)
