"""The first step of adaptation: the paper reasons about a plain gradient step, AdamW takes signs of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.methods.tpt import Tpt, confident_views, marginal_entropy
from fpp_sweep.reproduce.theory.finding import Finding, judge
from fpp_sweep.reproduce.theory.setting import Setting
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """The first step of plain TPT, over all samples and coordinates."""

    full_moves: float  # share of coordinates that move by lr, within a thousandth
    cosine: float  # cosine of the step with minus the gradient, mean over samples


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyStep:
    """The change of that step by a penalty; shares are of all coordinates."""

    turned: float  # share whose sign the penalty turns
    of_penalty: float  # share with the sign of the penalty's own gradient
    turned_by_double: float  # share whose sign turns when the penalty's weight is doubled
    gap: float  # |step of both - sum of the steps of each| over |the sum|; 0 if they added
    shared: float  # part of the penalty's change that is the same for all samples; 1 for a constant offset


def entropy_gradients(model: TextModel, context: Tensor, views: Tensor, fraction: float) -> Tensor:
    """Return the gradient (B, n, W) of each sample's loss at one context, by autograd."""
    confident = confident_views(views, model.logits(views, model.features(context)), fraction)
    contexts = context.expand(len(views), -1, -1).clone().requires_grad_()
    loss = marginal_entropy(model.logits(confident, model.features(contexts))).sum()
    (gradients,) = torch.autograd.grad(loss, contexts)
    return gradients


def penalty_gradient(model: TextModel, context: Tensor, penalty: Penalty) -> Tensor:
    """Return the gradient (n, W) of a penalty at a context, by autograd."""
    context = context.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(penalty(model.features(context)), context)
    return gradient


def step_of(model: TextModel, context: Tensor, views: Tensor, method: Tpt) -> Tensor:
    """Return where a method moves the context for each sample (B, n * W), without its weight decay."""
    adapt = method.adapt
    adapted = method.adapt_contexts(model, method.start(model, context, len(views)), views)
    return (adapted - context * (1 - adapt.lr * adapt.weight_decay)).flatten(1)


def first_step(model: TextModel, context: Tensor, views: Tensor, adapt: AdaptConfig) -> FirstStep:
    """Compare the first step of TPT with the gradient."""
    step = step_of(model, context, views, Tpt(adapt=adapt))
    gradients = entropy_gradients(model, context, views, adapt.view_fraction).flatten(1)
    full = (step.abs() / adapt.lr - 1).abs() < 1e-3
    cosine = F.cosine_similarity(step, -gradients, dim=-1)
    return FirstStep(full_moves=float(full.float().mean()), cosine=float(cosine.mean()))


def penalty_step(
    model: TextModel, context: Tensor, views: Tensor, adapt: AdaptConfig, penalty: Penalty, weight: float
) -> PenaltyStep:
    """Compare the first step with a penalty with the steps of entropy and penalty alone."""
    entropy = step_of(model, context, views, Tpt(adapt=adapt))
    both = step_of(model, context, views, Tpt(adapt=adapt, penalty=penalty, weight=1 * weight))
    double = step_of(model, context, views, Tpt(adapt=adapt, penalty=penalty, weight=2 * weight))
    of_penalty = -adapt.lr * penalty_gradient(model, context, penalty).sign().flatten()
    added = entropy + of_penalty
    change = both - entropy
    return PenaltyStep(
        turned=_share_of_different_signs(both, entropy),
        of_penalty=1 - _share_of_different_signs(both, of_penalty),
        turned_by_double=_share_of_different_signs(double, both),
        gap=float((both - added).norm() / added.norm()),
        shared=float(change.mean(0).square().sum() / change.square().sum(-1).mean()),
    )


def _share_of_different_signs(first: Tensor, second: Tensor) -> float:
    return float((first.sign() != second.sign()).float().mean())


# findings


def first_step_finding(setting: Setting) -> Finding:
    step = first_step(setting.model, setting.context, setting.views, setting.config.adapt)
    plain = step.cosine > 0.99
    return Finding(
        name="the first step",
        says="one plain gradient step",
        measured={
            "coordinates that move by lr": step.full_moves,
            "cosine with the gradient step": step.cosine,
            "angle in degrees": math.degrees(math.acos(step.cosine)),
        },
        verdict=judge(whole=plain, part=plain),
    )


def penalty_step_finding(setting: Setting, name: str) -> Finding:
    """Return the finding on the penalty of a method of the catalogue."""
    row = catalogue.method(name)
    assert row.penalty
    penalty: Penalty = catalogue.code_of(row.penalty)
    step = penalty_step(setting.model, setting.context, setting.views, setting.config.adapt, penalty, row.weight)
    return Finding(
        name=f"{name}'s penalty in the first step",
        says="it adds an offset, the same for every sample, to the entropy's step",
        measured={
            "signs that it turns": step.turned,
            "signs that are its own": step.of_penalty,
            "signs that twice its weight turns": step.turned_by_double,
            "step less sum of steps, relative": step.gap,
            "its change shared by all samples": step.shared,
        },
        verdict=judge(whole=step.gap < 0.01, part=step.shared > 0.95),
    )
