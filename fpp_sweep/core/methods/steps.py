"""Other steps than TPT's: the gradient at the worst point nearby, and two steps on the two terms of the loss.

SAM (Foret et al., 2021) and ASAM (Kwon et al., 2021) are applied to TPT's loss; docs/methods.md lists the choices that
the papers leave open. Of two steps, one lowers the entropy (ent) and one the penalty (reg). The second step continues
with the optimizer state of the first (`adapt.keep_optimizer`), as in C-TPT's code. Views are selected once, at the
initial prompt, unless the first step looked at no views (`adapt.reselect`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import Tpt, TptState
from fpp_sweep.core.optim import AdamState, unit


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
