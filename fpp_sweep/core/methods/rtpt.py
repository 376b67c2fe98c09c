"""R-TPT (Sheng et al., 2025): separate entropies in the loss, and a prediction averaged over reliable views."""

from __future__ import annotations

import torch
from torch import Tensor

from fpp_sweep.core.compute import run_in_batches, upcast, without_autocast
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.tpt import Tpt, view_entropies

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
