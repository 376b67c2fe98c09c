"""Zero-shot classification: the prompt as it is, on the plain view."""

from __future__ import annotations

from torch import Tensor

from fpp_sweep.core.methods.base import Classifier, TextModel
from fpp_sweep.core.methods.frozen_prompt import FrozenPrompt


class ZeroShot(FrozenPrompt):
    """The logits of the plain view under the prompt as it is."""

    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        return state.logits(views[:, :1])[:, 0], state
