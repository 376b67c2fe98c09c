"""Methods that leave the prompt as it is and classify by image features alone, of which zero-shot is the plainest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fpp_sweep.core.methods.base import Classifier, TextModel
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.spec.config import AdaptConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPrompt:
    """A method whose state is the classifier of its prompt; there is no step in which a penalty could act."""

    adapt: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Classifier:
        return model.classifier(context)


class ZeroShot(FrozenPrompt):
    """The logits of the plain view under the prompt as it is."""

    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        return state.logits(views[:, :1])[:, 0], state
