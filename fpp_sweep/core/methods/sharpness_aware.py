"""TPT with a sharpness-aware step: the gradient is taken at the worst point nearby, the step from where the prompt is.

SAM (Foret et al. 2021) and ASAM (Kwon et al. 2021), applied to TPT's loss. What the paper leaves open is ours
(docs/methods.md).
"""

from __future__ import annotations

from torch import Tensor

from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.optim import unit


class Sam(Tpt):
    """The worst point lies a fixed length up the gradient."""

    def climb(self, contexts: Tensor, gradient: Tensor) -> Tensor:
        """From contexts (B, n, W) to the worst point nearby."""
        return self.adapt.sam_rho * unit(gradient, dim=(-2, -1))

    def taken(self, model: TextModel, contexts: Tensor, gradient: Tensor, kept: Tensor, views: Tensor) -> Tensor:
        """That of the same loss at the worst point."""
        reselects = self.adapt.reselect == "on"
        loss = self.reselecting_loss(model, views) if reselects else self.loss(model, kept)
        return self.gradient(model, contexts + self.climb(contexts, gradient), loss)


class Asam(Sam):
    """Lengths are measured in units of each coordinate's own size."""

    def climb(self, contexts: Tensor, gradient: Tensor) -> Tensor:
        """rho theta^2 g / || |theta| g ||."""
        size = contexts.abs()
        return self.adapt.asam_rho * size * unit(size * gradient, dim=(-2, -1))
