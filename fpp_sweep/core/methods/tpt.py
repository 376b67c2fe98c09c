"""Test-time prompt tuning: for each sample, gradient steps on the entropy of the mean prediction of confident views.

C-TPT and O-TPT are the same step with a penalty on the text features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.config import AdaptConfig
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import FirstGradient, first_gradient
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.optim import AdamState, adamw
from fpp_sweep.core.text.memory import halving


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
        with torch.no_grad():
            first = first_gradient(model.texts, context, samples)
        if self.penalty is None:
            return Start(context, first, 0.0)
        features = first.features.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.weight * self.penalty(features), features)
        return Start(context, first, first.backward(gradient[None])[0])

    def predict(self, model: TextModel, state: Start, views: Tensor) -> tuple[Tensor, Start]:
        context = self.adapted(model, state, views)
        with torch.no_grad(), self._autocast(views):
            plain = torch.cat([views[:, :1].flatten(1), context.flatten(1)], dim=1)

            def logits(rows: Tensor) -> Tensor:
                view, adapted = rows.split([views.shape[-1], context[0].numel()], dim=1)
                features = model.features(adapted.unflatten(-1, context.shape[1:]))
                return model.logits(view[:, None], features)[:, 0]

            return halving(logits, plain, model.texts.rows_at_once()), state

    def adapted(self, model: TextModel, state: Start, views: Tensor) -> Tensor:
        """The adapted contexts (B, n, W) of B samples; all steps use the views selected at the initial context."""
        kept = select(views, model.logits(views, state.first.features), self.adapt.selection)
        context = state.context.expand(len(views), -1, -1)
        optimizer: AdamState | None = None
        for step in range(self.adapt.steps):
            from_start = step == 0 and self.adapt.precision == "float32"
            gradient = self._first(model, state, kept) if from_start else self._gradient(model, context, kept)
            context, optimizer = adamw(
                context, gradient, optimizer, lr=self.adapt.lr, weight_decay=self.adapt.weight_decay
            )
        return context

    def _autocast(self, like: Tensor) -> torch.autocast:
        return torch.autocast(like.device.type, enabled=self.adapt.precision == "autocast")

    def _first(self, model: TextModel, state: Start, kept: Tensor) -> Tensor:
        """The gradient at the initial context, by the backward pass that all samples share."""
        logits = model.logits(kept, state.first.features).requires_grad_()
        (of_logits,) = torch.autograd.grad(averaged_entropy(logits).sum(), logits)
        with torch.no_grad():
            return state.first.backward(model.logit_scale * of_logits.transpose(1, 2) @ kept) + state.penalty

    def _gradient(self, model: TextModel, context: Tensor, kept: Tensor) -> Tensor:
        """The gradient at contexts that differ from sample to sample."""
        parts = zip(*(rows.split(model.texts.rows_at_once()) for rows in (context, kept)), strict=True)
        return torch.cat([self._autograd(model, *part) for part in parts])

    def _autograd(self, model: TextModel, context: Tensor, kept: Tensor) -> Tensor:
        context = context.detach().clone().requires_grad_()
        with self._autocast(context):
            features = model.features(context)
            loss = averaged_entropy(model.logits(kept, features)).sum()
        if self.penalty is not None:
            loss = loss + self.weight * self.penalty(features.float()).sum()
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
