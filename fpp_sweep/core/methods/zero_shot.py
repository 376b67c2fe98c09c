"""Zero-shot classification: the prompt as it is, on the plain view."""

from __future__ import annotations

import torch
from torch import Tensor

from fpp_sweep.core.methods.base import Classifier, TextModel


class ZeroShot:
    """The logits of the plain view under the prompt as it is."""

    def __init__(self, **unused: object) -> None:
        """Take no settings."""

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Classifier:
        return model.classifier(context)

    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        return state.logits(views[:, :1])[:, 0], state
