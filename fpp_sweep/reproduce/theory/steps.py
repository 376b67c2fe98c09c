"""The paper reasons about a plain gradient step; AdamW's first step takes the signs of the gradient only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.methods.tpt import Tpt, averaged_entropy, select
from fpp_sweep.spec.config import AdaptConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """What the first step of plain TPT does, over all samples and coordinates."""

    full_moves: float  # share of coordinates that move by lr, within a thousandth
    cosine: float  # of the step with minus the gradient, mean over samples


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyStep:
    """What a penalty changes in that step."""

    decided: float  # share of coordinates whose sign it turns
    of_penalty: float  # share that has the sign of the penalty's own gradient
    doubled: float  # share that moves otherwise when the penalty's weight is doubled
    gap: float  # |step of both - sum of the steps of each| over |the sum|; 0 if they added
    shared: float  # part of the penalty's change that is the same for all samples; 1 if it were an offset


def entropy_gradients(model: TextModel, context: Tensor, views: Tensor, share: float) -> Tensor:
    """(B, n, W): the gradient of each sample's loss at one context, by autograd."""
    kept = select(views, model.logits(views, model.features(context)), share)
    contexts = context.expand(len(views), -1, -1).clone().requires_grad_()
    loss = averaged_entropy(model.logits(kept, model.features(contexts))).sum()
    (gradients,) = torch.autograd.grad(loss, contexts)
    return gradients


def penalty_gradient(model: TextModel, context: Tensor, penalty: Penalty) -> Tensor:
    context = context.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(penalty(model.features(context)), context)
    return gradient


def step_of(model: TextModel, context: Tensor, views: Tensor, method: Tpt) -> Tensor:
    """(B, n * W): where a method moves the context for each sample, without its weight decay."""
    adapt = method.adapt
    adapted = method.adapted(model, method.start(model, context, len(views)), views)
    return (adapted - context * (1 - adapt.lr * adapt.weight_decay)).flatten(1)


def first_step(model: TextModel, context: Tensor, views: Tensor, adapt: AdaptConfig) -> FirstStep:
    step = step_of(model, context, views, Tpt(adapt=adapt))
    gradients = entropy_gradients(model, context, views, adapt.view_fraction).flatten(1)
    full = (step.abs() / adapt.lr - 1).abs() < 1e-3
    return FirstStep(
        full_moves=float(full.float().mean()), cosine=float(F.cosine_similarity(step, -gradients, dim=-1).mean())
    )


def penalty_step(
    model: TextModel, context: Tensor, views: Tensor, adapt: AdaptConfig, penalty: Penalty, weight: float
) -> PenaltyStep:
    alone = step_of(model, context, views, Tpt(adapt=adapt))
    both, twice = (
        step_of(model, context, views, Tpt(adapt=adapt, penalty=penalty, weight=factor * weight)) for factor in (1, 2)
    )
    of_penalty = -adapt.lr * penalty_gradient(model, context, penalty).sign().flatten()
    added = alone + of_penalty
    change = both - alone
    return PenaltyStep(
        decided=_differ(both, alone),
        of_penalty=1 - _differ(both, of_penalty),
        doubled=_differ(twice, both),
        gap=float((both - added).norm() / added.norm()),
        shared=float(change.mean(0).square().sum() / change.square().sum(-1).mean()),
    )


def _differ(one: Tensor, other: Tensor) -> float:
    return float((one.sign() != other.sign()).float().mean())
