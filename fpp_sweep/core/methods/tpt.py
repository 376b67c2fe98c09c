"""Test-time prompt tuning: per sample, a step or more down the entropy of the averaged prediction of confident views.

C-TPT and O-TPT are the same step with a penalty on the text features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.config import AdaptConfig
from fpp_sweep.core.methods.base import TextModel, chunk_of, no_grad_features
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.optim import AdamState, adamw


class Start(NamedTuple):
    """What all samples share: the initial context and its text features."""

    context: Tensor  # (n, W)
    features: Tensor  # (K, D)


@dataclass(frozen=True, slots=True)
class ZeroShot:
    """The prompt as it is."""

    episodic: bool = True
    views: int | None = 1

    def start(self, model: TextModel, context: Tensor) -> Start:
        return Start(context, no_grad_features(model, context))

    def predict(self, model: TextModel, state: Start, views: Tensor) -> tuple[Tensor, Start]:
        return model.logits(views[:, :1], state.features)[:, 0], state


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpt:
    """The entropy step; `weight` times `penalty` is added to the loss."""

    config: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0
    episodic: bool = True
    views: int | None = None

    def start(self, model: TextModel, context: Tensor) -> Start:
        return Start(context, no_grad_features(model, context))

    def predict(self, model: TextModel, state: Start, views: Tensor) -> tuple[Tensor, Start]:
        chunks = views.split(chunk_of(model))
        return torch.cat([self._predict(model, state, chunk) for chunk in chunks]), state

    def _predict(self, model: TextModel, state: Start, views: Tensor) -> Tensor:
        context = self.adapt(model, state, views)
        return model.logits(views[:, :1], no_grad_features(model, context))[:, 0]

    def adapt(self, model: TextModel, state: Start, views: Tensor) -> Tensor:
        """The contexts (B, n, W) that B samples end with; the views selected at the start are kept throughout."""
        kept = select(views, model.logits(views, state.features), self.config.selection)
        context = state.context.expand(len(views), -1, -1)
        optimizer: AdamState | None = None
        for _ in range(self.config.steps):
            gradient = self._gradient(model, context, kept)
            context, optimizer = adamw(
                context, gradient, optimizer, lr=self.config.lr, weight_decay=self.config.weight_decay
            )
        return context

    def _gradient(self, model: TextModel, context: Tensor, kept: Tensor) -> Tensor:
        context = context.detach().clone().requires_grad_()
        features = model.features(context)
        loss = averaged_entropy(model.logits(kept, features)).sum()
        if self.penalty is not None:
            loss = loss + self.weight * self.penalty(features).sum()
        (gradient,) = torch.autograd.grad(loss, context)
        return gradient


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
