"""The contract of a method, and the models that it sees.

A method sees the image features of a few samples at a time, in the order of the stream, and returns logits for view 0,
the plain image. To add one, write a class with `start` and `predict`, and its table in
`fpp_sweep/spec/catalogue.toml`.

- A method that needs only image features and a (K, D) matrix of text features, such as a feature cache or a vote, takes
  `model.classifier(context)` in `start` and uses nothing else of the model. `ZeroShot` is the smallest example.
- A method that steps on the context of each sample is a subclass of `Tpt`, or `Tpt` itself with a penalty, which is a
  function of the text features (`penalties`).
- `fpp_sweep.spec.tasks.views_for` decides which views of an image the method sees.

tests/contracts holds every row to these rules:

- Episodic methods, which are most, treat samples one by one, even in a batch: beyond rounding, the logits of a sample
  do not depend on the rest of the batch. They return the state that they were given. The state holds what is constant
  for a prompt and dataset, so that it is computed once.
- Stateful methods (a buffer or cache that evolves along the stream) take samples in stream order and return the state
  after the last one. The shards of their stream are evaluated one after another, each from the stored state of the one
  before, never in parallel.
- A method draws no random numbers and keeps no state in itself, so that a retried task gives the same result.

Shapes: B samples, V views, K classes, D feature dimension, n context tokens, W width of the text tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fpp_sweep.core.compute import upcast
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.text.texts import Texts
from fpp_sweep.spec.config import AdaptConfig

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextModel:
    """Class texts and the temperature: a classifier of image features for any context.

    >>> import torch
    >>> from fpp_sweep.core.models.clip import load
    >>> from fpp_sweep.core.text.texts import class_texts
    >>> clip = load("tiny", "cpu")
    >>> texts = class_texts(clip.text, clip.tokenizer, ["circle", "square"])
    >>> model = TextModel(texts=texts, logit_scale=clip.logit_scale)
    >>> model.features(torch.zeros(3, 4, texts.tower.width)).shape  # three contexts of four tokens
    torch.Size([3, 2, 128])
    """

    texts: Texts
    logit_scale: float
    ensemble: Tensor | None = None  # (K, D) unit class vectors of templates, used whatever the context is

    def features(self, context: Tensor) -> Tensor:
        """Return text features (*B, K, D) of contexts (*B, n, W)."""
        return self.texts.features(context)

    def logits(self, views: Tensor, features: Tensor) -> Tensor:
        """Views (*B, V, D) against text features (*B, K, D) or (K, D) -> logits (*B, V, K)."""
        return cosine_logits(views, features, self.logit_scale)

    def classifier(self, context: Tensor) -> Classifier:
        """Return the classifier of a context (n, W), or of the ensemble if there is one."""
        features = self.ensemble
        if features is None:
            features = self.texts.features(context)
        return Classifier(features=features, logit_scale=self.logit_scale)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classifier:
    """A linear classifier of image features: the text features of a prompt, or of an ensemble of prompts.

    >>> import torch
    >>> Classifier(features=torch.eye(2), logit_scale=100.0).logits(torch.tensor([[0.5, 0.25]]))
    tensor([[50., 25.]])
    """

    features: Tensor  # (K, D), unit rows
    logit_scale: float

    def logits(self, views: Tensor) -> Tensor:
        """Views (*B, V, D) -> logits (*B, V, K)."""
        return cosine_logits(views, self.features, self.logit_scale)


def cosine_logits(views: Tensor, features: Tensor, logit_scale: float) -> Tensor:
    """Unit image features (*B, V, D) and unit text features (*B, K, D) or (K, D) -> logits (*B, V, K).

    >>> import torch
    >>> cosine_logits(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8], [1.0, 0.0]]), 10.0)
    tensor([[ 6., 10.]])
    """
    return upcast(logit_scale * views @ features.transpose(-1, -2))


class Method(Protocol[State]):
    """A test-time method; the module's docstring has the rules.

    >>> import torch
    >>> class FirstView:
    ...     def start(self, model, context, samples):
    ...         return model.classifier(context)
    ...
    ...     def predict(self, model, classifier, views):
    ...         return classifier.logits(views)[:, 0], classifier
    >>> classifier = Classifier(features=torch.eye(2), logit_scale=100.0)
    >>> logits, _ = FirstView().predict(None, classifier, torch.tensor([[[0.5, 0.25], [1.0, 0.0]]]))
    >>> logits
    tensor([[50., 25.]])
    """

    def start(self, model: TextModel, context: Tensor, samples: int) -> State:
        """Return the state before the first of `samples` samples: everything that is constant for a prompt."""
        ...

    def predict(self, model: TextModel, state: State, views: Tensor) -> tuple[Tensor, State]:
        """Return logits (B, K) for view 0 of B samples with views (B, V, D), and the state after them."""
        ...


class AdaptingMethod(Method[State], Protocol):
    """A method that adapts the prompt for each sample, where sharpness can be measured.

    Its `predict` is `adapt_contexts`, then `classify`.

    >>> from fpp_sweep.core.methods.tpt import Tpt
    >>> [name for name in vars(AdaptingMethod) if hasattr(Tpt, name) and not name.startswith("_")]
    ['adapt_contexts', 'classify']
    """

    def adapt_contexts(self, model: TextModel, state: State, views: Tensor) -> Tensor:
        """Return the adapted contexts (B, n, W) of B samples with views (B, V, D)."""
        ...

    def classify(self, model: TextModel, contexts: Tensor, views: Tensor) -> Tensor:
        """Return logits (B, K) for view 0 of the samples under their contexts (B, n, W)."""
        ...


class StatefulMethod(Method[State], Protocol):
    """A method whose state evolves along the stream and can be stored between two shards of it.

    >>> import torch
    >>> class Mean:  # of the features seen so far, and their number
    ...     def pack(self, state):
    ...         return {"mean": state[0], "count": torch.tensor(state[1])}
    ...
    ...     def unpack(self, state, tensors):
    ...         return tensors["mean"], int(tensors["count"])
    >>> Mean().unpack(None, Mean().pack((torch.zeros(2), 3)))
    (tensor([0., 0.]), 3)
    """

    def pack(self, state: State) -> Mapping[str, Tensor]:
        """Return what the stream has changed, as tensors by name."""
        ...

    def unpack(self, state: State, tensors: Mapping[str, Tensor]) -> State:
        """Return a state from `start` with what the stream has changed restored."""
        ...


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
