"""TPT with a sharpness-aware step: the gradient at the worst point nearby, applied where the prompt is.

SAM (Foret et al., 2021) and ASAM (Kwon et al., 2021), applied to TPT's loss. docs/methods.md lists the choices that the
paper leaves open.
"""

from __future__ import annotations

from torch import Tensor

from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.optim import unit


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
