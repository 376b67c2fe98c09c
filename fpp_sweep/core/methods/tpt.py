"""Test-time prompt tuning (TPT; Shu et al., 2022): gradient steps on a sample's prompt.

The loss is the entropy of the mean prediction over the sample's most confident views. C-TPT and O-TPT add a penalty on
the text features (`penalties`). Other methods of this family override parts of a step (`steps`).

    predict = classify(adapt_contexts(views))
    a step  = gradient of the loss at the contexts -> step_gradient -> optimizer_step

`measure_sharpness` measures the entropy around a sample's adapted prompt. The paper gives no numbers that define it;
docs/methods.md has the choices made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.core.compute import run_in_batches, without_autocast
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import FirstGradient, first_gradient, gradient_of, gradients_at
from fpp_sweep.core.methods.penalties import Penalty, pairwise_huber
from fpp_sweep.core.optim import AdamState, adamw, sgd, unit
from fpp_sweep.spec.config import AdaptConfig, MeasureConfig

# text features (b, K, D) of the samples `rows` (b,) -> losses (b,)
Loss = Callable[[Tensor, Tensor], Tensor]


class TptState(NamedTuple):
    """The state of a method of this family: everything that is the same for all samples of a prompt and dataset."""

    context: Tensor  # (n, W)
    first_gradient: FirstGradient
    penalty_gradient: Tensor | float  # gradient (n, W) of the weighted penalty at the initial context, 0.0 without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpt:
    """TPT, and C-TPT and O-TPT with their penalties: `weight` times `penalty` is added to the loss."""

    adapt: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0

    def start(self, model: TextModel, context: Tensor, samples: int) -> TptState:
        first_gradient = self.first_gradient(model, context, samples)
        return TptState(context, first_gradient, self.penalty_gradient(model, context))

    def predict(self, model: TextModel, state: TptState, views: Tensor) -> tuple[Tensor, TptState]:
        contexts = self.adapt_contexts(model, state, views)
        return self.classify(model, contexts, views), state

    def adapt_contexts(self, model: TextModel, state: TptState, views: Tensor) -> Tensor:
        """Return the adapted contexts (B, n, W) of B samples; all steps use the views selected at the initial one."""
        confident = self.select_views(model, state.first_gradient.features, views)
        contexts = state.context.expand(len(views), -1, -1)
        optimizer: AdamState | None = None
        for step in range(self.adapt.steps):
            if step == 0:
                gradient = self.entropy_gradient(model, state, confident) + state.penalty_gradient
            else:
                gradient = self.gradient(model, contexts, self.loss(model, confident))
            gradient = self.step_gradient(model, contexts, gradient, confident, views)
            contexts, optimizer = self.optimizer_step(contexts, gradient, optimizer)
        return contexts

    @torch.no_grad()
    def classify(self, model: TextModel, contexts: Tensor, views: Tensor) -> Tensor:
        """Return logits (B, K) of the plain views under contexts (B, n, W)."""

        def logits(rows: Tensor) -> Tensor:
            return model.logits(views[rows, :1], model.features(contexts[rows]))[:, 0]

        samples = torch.arange(len(contexts), device=contexts.device)
        return run_in_batches(logits, samples, model.texts.contexts_per_batch())

    # the parts of a step

    def step_gradient(
        self, model: TextModel, contexts: Tensor, gradient: Tensor, confident: Tensor, views: Tensor
    ) -> Tensor:
        """Return the gradient that the optimizer gets, from the gradient (B, n, W) at the contexts: itself."""
        return gradient

    def optimizer_step(
        self, contexts: Tensor, gradient: Tensor, optimizer: AdamState | None
    ) -> tuple[Tensor, AdamState | None]:
        """Return the contexts (B, n, W) after a step, and the optimizer's state."""
        lr, weight_decay = self.adapt.lr, self.adapt.weight_decay
        if self.adapt.optimizer == "sgd":
            return sgd(contexts, gradient, lr=lr, weight_decay=weight_decay), None
        return adamw(contexts, gradient, optimizer, lr=lr, weight_decay=weight_decay)

    def select_views(self, model: TextModel, features: Tensor, views: Tensor) -> Tensor:
        """Return the confident views (B, S, D) under text features (K, D) or (B, K, D)."""
        logits = model.logits(views, features.detach().to(views.dtype))
        return confident_views(views, logits, self.adapt.view_fraction)

    # the loss

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the entropy (B,) that a step lowers, from the logits (B, S, K) of the confident views."""
        return marginal_entropy(logits)

    def weighted_penalty(self, features: Tensor) -> Tensor:
        """Return the weighted penalty (b,) of text features (b, K, D); zero without a penalty."""
        if self.penalty is None:
            return features.new_zeros(())
        with without_autocast(features):
            return self.weight * self.penalty(features)

    def loss(self, model: TextModel, confident: Tensor, views: Tensor | None = None) -> Loss:
        """Return the loss with confident views (B, S, D) that were selected before.

        With all views (B, V, D), those that are confident where the loss is evaluated are selected instead.
        """

        def loss(features: Tensor, rows: Tensor) -> Tensor:
            if views is None:
                selected = confident[rows]
            else:
                selected = self.select_views(model, features, views[rows])
            return self.entropy(model.logits(selected, features)) + self.weighted_penalty(features)

        return loss

    def later_loss(self, model: TextModel, confident: Tensor, views: Tensor) -> Loss:
        """Return the loss away from the initial prompt: `adapt.reselect` says whether views are selected again."""
        if self.adapt.reselect == "on":
            return self.loss(model, confident, views)
        return self.loss(model, confident)

    # gradients

    @torch.no_grad()
    def first_gradient(self, model: TextModel, context: Tensor, samples: int) -> FirstGradient:
        """Return the backward pass at a context that all samples share."""
        return first_gradient(model.texts, context, samples)

    def entropy_gradient(self, model: TextModel, state: TptState, confident: Tensor) -> Tensor:
        """Return the gradient (B, n, W) of the entropy alone, by the backward pass that all samples share."""
        logits = model.logits(confident, state.first_gradient.features)
        by_logits = gradient_of(self.entropy, logits)  # (B, S, K)
        with torch.no_grad():
            # logits = logit_scale * confident @ features', so the chain rule is one product
            by_features = model.logit_scale * by_logits.transpose(1, 2) @ confident  # (B, K, D)
            return state.first_gradient.backward(by_features)

    def penalty_gradient(self, model: TextModel, context: Tensor) -> Tensor | float:
        """Return the gradient (n, W) of the weighted penalty alone, which is the same for all samples at a context."""
        if self.penalty is None:
            return 0.0
        return self.gradient(model, context[None], lambda features, rows: self.weighted_penalty(features))[0]

    def gradient(self, model: TextModel, contexts: Tensor, loss: Loss) -> Tensor:
        """Return the gradient (B, n, W) of a loss at contexts that differ from sample to sample."""

        def feature_gradient(features: Tensor, rows: Tensor) -> Tensor:
            return gradient_of(lambda text: loss(text, rows), features)

        return gradients_at(model, contexts, feature_gradient)[0]


class Soc(Tpt):
    """SoC (CVPR 2026): TPT with a Huber penalty on the cosines between text features; delta is `adapt.huber_delta`.

    The paper does not print its weight and its delta: both are settings whose defaults are ours. The authors' code is
    public (leofillioux/SoC) and has not been compared with this form; its README runs weight 30 on ViT-L/14, and
    O-TPT 18.
    """

    def weighted_penalty(self, features: Tensor) -> Tensor:
        """Return the weighted penalty (b,) of text features (b, K, D)."""
        with without_autocast(features):
            return self.weight * pairwise_huber(features, self.adapt.huber_delta)


def confident_views(views: Tensor, logits: Tensor, fraction: float) -> Tensor:
    """Return the views (B, S, D) of lowest entropy, at least one; views of equal entropy in their order.

    `views` (B, V, D) have logits (B, V, K), and S is `fraction` of V, rounded down.
    """
    return views.take_along_dim(confident_indices(logits, fraction)[..., None], dim=1)


def confident_indices(logits: Tensor, fraction: float) -> Tensor:
    """Return the indices (B, S) of the views of lowest entropy, in order of entropy, from logits (B, V, K)."""
    count = number_selected(logits.shape[1], fraction)
    return view_entropies(logits).argsort(dim=-1, stable=True)[:, :count]


def number_selected(views: int, fraction: float) -> int:
    """Return how many views a fraction of them is: rounded down, and at least one."""
    return max(1, int(fraction * views))


def view_entropies(logits: Tensor) -> Tensor:
    """Return the entropy in nats (..., V) of each view's prediction, from logits (..., V, K)."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats (B,) of the mean prediction over views, from logits (B, S, K)."""
    log_mean = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])  # (B, K)
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)
    return -(log_mean * log_mean.exp()).sum(-1)


@torch.no_grad()
def measure_sharpness(
    model: TextModel,
    initial: Tensor,
    contexts: Tensor,
    views: Tensor,
    fraction: float,
    config: MeasureConfig,
    columns: Collection[str],
) -> dict[str, Tensor]:
    """Return the requested columns, (B,) each, at contexts theta (B, n, W) that were adapted from `initial` (n, W).

    L is the entropy of the mean prediction of a sample's confident views, a `fraction` of all, and g its gradient:

    - sharpness: L(theta + rho g / ||g||) - L(theta)
    - product: <theta, g>
    """
    initial_logits = model.logits(views, model.features(initial))
    confident = confident_views(views, initial_logits, fraction)  # (B, S, D)

    def feature_gradient(features: Tensor, rows: Tensor) -> Tensor:
        if config.views == "adapted":  # L is on these views everywhere, so replace those selected at `initial`
            logits = model.logits(views[rows], features)
            confident[rows] = confident_views(views[rows], logits, fraction)
        return gradient_of(lambda text: marginal_entropy(model.logits(confident[rows], text)), features)

    gradients, features = gradients_at(model, contexts, feature_gradient)
    values: dict[str, Tensor] = {}
    if "product" in columns:
        values["product"] = (contexts * gradients).sum((-2, -1))
    if "sharpness" in columns:
        dim: tuple[int, ...] = (-2, -1)
        if config.norm == "token":
            dim = (-1,)
        perturbed = contexts + config.rho * unit(gradients, dim=dim)
        perturbed_features = run_in_batches(model.features, perturbed, model.texts.contexts_per_batch())
        after = marginal_entropy(model.logits(confident, perturbed_features))
        before = marginal_entropy(model.logits(confident, features))
        values["sharpness"] = after - before
    return values
