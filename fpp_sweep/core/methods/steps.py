"""Other steps than TPT's: at the worst point nearby, on the two terms of the loss, on each view, on text features.

SAM (Foret et al., 2021) and ASAM (Kwon et al., 2021) are applied to TPT's loss; docs/methods.md lists the choices that
the papers leave open. Of two steps, one lowers the entropy (ent) and one the penalty (reg). The second step continues
with the optimizer state of the first (`adapt.keep_optimizer`), as in C-TPT's code. Views are selected once, at the
initial prompt, unless the first step looked at no views (`adapt.reselect`).

R-TPT (Sheng et al., 2025) has separate entropies in the loss, and a prediction averaged over reliable views.

TPS (Sui et al., 2025) shifts the text features of each sample by one step down TPT's loss. The step is on the text
features themselves, so its gradient has a closed form and no tower runs backward.

Shapes: B samples, S confident views, K classes, D feature dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute import run_in_batches, upcast, without_autocast
from fpp_sweep.core.methods.base import Classifier, FrozenPrompt, TextModel
from fpp_sweep.core.methods.tpt import Tpt, TptState, confident_views, view_entropies
from fpp_sweep.core.optim import EPSILON, AdamState, unit


class Sam(Tpt):
    """TPT with SAM: the perturbation has a fixed length, in the direction of the gradient."""

    def perturbation(self, contexts: Tensor, gradient: Tensor) -> Tensor:
        """Return the perturbation rho g / ||g|| that is added to contexts (B, n, W)."""
        return self.adapt.sam_rho * unit(gradient, dim=(-2, -1))

    def step_gradient(
        self, model: TextModel, contexts: Tensor, gradient: Tensor, confident: Tensor, views: Tensor
    ) -> Tensor:
        """Return the gradient (B, n, W) of the same loss at the perturbed contexts."""
        perturbed = contexts + self.perturbation(contexts, gradient)
        return self.gradient(model, perturbed, self.later_loss(model, confident, views))


class Asam(Sam):
    """TPT with ASAM: lengths are measured in units of each coordinate's own size."""

    def perturbation(self, contexts: Tensor, gradient: Tensor) -> Tensor:
        """Return the perturbation rho theta^2 g / || |theta| g || that is added to contexts theta (B, n, W)."""
        size = contexts.abs()
        return self.adapt.asam_rho * size * unit(size * gradient, dim=(-2, -1))


class _EntFirst(Tpt):
    """A step on the entropy, then a second step."""

    def adapt_contexts(self, model: TextModel, state: TptState, views: Tensor) -> Tensor:
        confident = self.select_views(model, state.first_gradient.features, views)
        contexts = state.context.expand(len(views), -1, -1)
        contexts, optimizer = self.optimizer_step(contexts, self.entropy_gradient(model, state, confident), None)
        gradient = self.second_gradient(model, contexts, views, confident)
        if not self.adapt.keep_optimizer:
            optimizer = None
        return self.optimizer_step(contexts, gradient, optimizer)[0]

    def second_gradient(self, model: TextModel, contexts: Tensor, views: Tensor, confident: Tensor) -> Tensor:
        """Return the gradient (B, n, W) of the second step, at the contexts after the first."""
        raise NotImplementedError


class EntEnt(_EntFirst):
    """Entropy, then entropy again."""

    def second_gradient(self, model: TextModel, contexts: Tensor, views: Tensor, confident: Tensor) -> Tensor:
        return self.gradient(model, contexts, self.later_loss(model, confident, views))


class EntReg(_EntFirst):
    """Entropy, then the penalty alone."""

    def second_gradient(self, model: TextModel, contexts: Tensor, views: Tensor, confident: Tensor) -> Tensor:
        return self.gradient(model, contexts, lambda features, rows: self.weighted_penalty(features))


class RegEntState(NamedTuple):
    """The state after a first step on the penalty, which is the same for all samples."""

    stepped: TptState  # at the context after that step
    optimizer: AdamState | None
    initial_features: Tensor  # text features (K, D) before that step


class RegEnt(Tpt):
    """The penalty alone, then entropy: the second step starts every sample from one context, too."""

    def start(self, model: TextModel, context: Tensor, samples: int) -> RegEntState:  # type: ignore[override]
        gradient = self.penalty_gradient(model, context)
        assert isinstance(gradient, Tensor), "the method's row has a penalty"
        stepped, optimizer = self.optimizer_step(context, gradient, None)
        if not self.adapt.keep_optimizer:
            optimizer = None
        state = TptState(stepped, self.first_gradient(model, stepped, samples), penalty_gradient=0.0)
        return RegEntState(state, optimizer, model.features(context))

    def adapt_contexts(self, model: TextModel, state: RegEntState, views: Tensor) -> Tensor:  # type: ignore[override]
        features = state.stepped.first_gradient.features
        if self.adapt.reselect == "off":
            features = state.initial_features
        confident = self.select_views(model, features, views)
        contexts = state.stepped.context.expand(len(views), -1, -1)
        gradient = self.entropy_gradient(model, state.stepped, confident)
        return self.optimizer_step(contexts, gradient, state.optimizer)[0]


NEIGHBOURS = 20  # nearest other views that decide a view's score; released
WEIGHT_TEMPERATURE = 0.01  # temperature of the softmax of scores over views; released


class RTpt(Tpt):
    """R-TPT: TPT's step on the mean of the views' entropies, then the weighted logits of all views."""

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the mean (B,) of the entropies of the views, from logits (B, S, K)."""
        return view_entropies(logits).mean(-1)

    @torch.no_grad()
    def classify(self, model: TextModel, contexts: Tensor, views: Tensor) -> Tensor:
        """Return the weighted mean (B, K) of the logits of all views under contexts (B, n, W)."""
        weights = view_weights(views)

        def logits(rows: Tensor) -> Tensor:
            by_view = model.logits(views[rows], model.features(contexts[rows]))
            return upcast(weights[rows, None] @ by_view)[:, 0]

        samples = torch.arange(len(contexts), device=contexts.device)
        return run_in_batches(logits, samples, model.texts.contexts_per_batch())


def view_scores(views: Tensor) -> Tensor:
    """Return for each view (B, V) its mean cosine with the nearest other views.

    A view itself is left out by its index. The released program leaves it out where its own cosine is 1 or more in
    float32, which rounding decides.
    """
    neighbours = min(NEIGHBOURS, views.shape[1] - 1)
    cosines = views @ views.transpose(1, 2)
    itself = torch.eye(views.shape[1], dtype=torch.bool, device=views.device)
    return cosines.masked_fill(itself, -torch.inf).topk(neighbours, dim=-1).values.mean(-1)


def view_weights(views: Tensor) -> Tensor:
    """Return the weights (B, V) of views (B, V, D) in the prediction; they sum to one."""
    if views.shape[1] == 1:
        return views.new_ones(len(views), 1)
    with without_autocast(views):
        return (view_scores(views) / WEIGHT_TEMPERATURE).softmax(-1)


class Tps(FrozenPrompt):
    """TPS with one shift for each class, or one for all classes."""

    @torch.no_grad()
    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        confident = confident_views(views, state.logits(views), self.adapt.view_fraction)
        shifted = F.normalize(state.features + self.shift(state, confident), dim=-1)  # (B, K, D)
        return model.logits(views[:, :1], shifted)[:, 0], state

    def shift(self, state: Classifier, confident: Tensor) -> Tensor:
        """Return the shift (B, K or 1, D) of the text features after one AdamW step from zero.

        The first AdamW step divides each coordinate by its own size; weight decay acts on zero. Where a class is
        improbable, coordinates are near AdamW's epsilon, so the sign of the gradient is not enough.
        """
        gradient = self.gradient(state, confident)
        return -self.adapt.shift_lr * gradient / (gradient.abs() + EPSILON)

    def gradient(self, state: Classifier, confident: Tensor) -> Tensor:
        """Return the gradient (B, K or 1, D) of TPT's loss with respect to the shift at zero, in closed form."""
        by_logits = marginal_entropy_gradient(state.logits(confident))  # (B, S, K)
        with without_autocast(confident):
            by_features = state.logit_scale * by_logits.transpose(1, 2) @ confident  # (B, K, D)
            along = (by_features * state.features).sum(-1, keepdim=True)
            tangential = by_features - along * state.features  # normalisation removes the part along a text feature
        if self.adapt.shift_form == "shared":
            return tangential.sum(1, keepdim=True)
        return tangential


def marginal_entropy_gradient(logits: Tensor) -> Tensor:
    """Return the gradient (B, S, K) of `tpt.marginal_entropy` with respect to the logits (B, S, K).

    With p the prediction of a view and m the mean prediction over S views: -p (ln m - sum_k p_k ln m_k) / S.
    """
    probabilities = logits.softmax(-1)
    log_mean = probabilities.mean(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny).log()
    expected = (probabilities * log_mean).sum(-1, keepdim=True)
    return -probabilities * (log_mean - expected) / logits.shape[1]
