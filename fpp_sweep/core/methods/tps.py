"""TPS (Sui et al., 2025): each sample shifts the text features by one step down TPT's loss.

The step is on the text features themselves, so its gradient has a closed form and no tower runs backward.

Shapes: B samples, S confident views, K classes, D feature dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute import without_autocast
from fpp_sweep.core.methods.base import Classifier, TextModel
from fpp_sweep.core.methods.frozen_prompt import FrozenPrompt
from fpp_sweep.core.methods.tpt import confident_views
from fpp_sweep.core.optim import EPSILON


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
