"""The embedded model on a device and on the CPU, with a few images: the parts of which the checks are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import Dataset, open_dataset
from fpp_sweep.core.images import views
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.methods.gradients import FirstGradient
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.spec.config import TrialConfig, preset
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.trial.adapting import make_adapter
from fpp_sweep.trial.prompts import make_prompt, prompt_model

DATASET = "scenes"
MANY_CLASSES = "compositions"  # a dataset with so many classes that attention is computed in groups of texts
SAMPLES, SAMPLE_VIEWS = 8, 16
PRETRAINING_STEPS = 20
# for methods with a cache, which have no released settings for this dataset and would say so
CACHE_SETTINGS = {"adapt.cache_alpha": 2.0, "adapt.cache_beta": 5.0, "adapt.boost_delta": 1.0}

GradientForm = Callable[[ClassTexts, Tensor], FirstGradient]  # builds the first gradient of texts and a context


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The embedded model on a device and on the CPU, with eight images."""

    device: torch.device

    @cached_property
    def clip(self) -> Clip:
        return load("tiny", str(self.device))

    @cached_property
    def reference(self) -> Clip:
        return load("tiny", "cpu")

    @cached_property
    def dataset(self) -> Dataset:
        return open_dataset(DATASET, "test").head(SAMPLES)

    @cached_property
    def config(self) -> TrialConfig:
        sizes = {"views.count": SAMPLE_VIEWS, "fpp.steps": PRETRAINING_STEPS}
        return preset("tiny").replace({**sizes, **CACHE_SETTINGS})

    @cached_property
    def pixels(self) -> Tensor:
        """(samples * views, 3, size, size), rendered by Pillow."""
        reader = Reader.of(self.dataset, self.config.views, self.reference.preprocess, 0)
        read = [reader[index] for index in range(len(self.dataset))]
        rendered = [views.as_tower_input(result, reader.preprocess) for result in read if isinstance(result, Tensor)]
        return torch.cat(rendered)

    @cached_property
    def features(self) -> Tensor:
        """(samples, views, D) unit features of the CPU."""
        return self.reference.image_features(self.pixels).view(len(self.dataset), SAMPLE_VIEWS, -1)

    @cached_property
    def many_classes(self) -> Dataset:
        return open_dataset(MANY_CLASSES, "test").head(SAMPLES)

    def tower_features(self, precision: StagePrecision) -> Tensor:
        with computing(precision, self.device):
            return self.clip.image_features(self.pixels).cpu()

    def text_features(self, clip: Clip, precision: StagePrecision) -> Tensor:
        """Return (classes, D) features of many class texts."""
        prompt = open_prompt(clip, self.config.anchor_prompt)
        with computing(precision, clip.device), torch.no_grad():
            features = prompt_model(clip, prompt, self.many_classes).features(prompt.context)
        return features.float().cpu()

    def context_gradients(self, clip: Clip, form: GradientForm) -> Tensor:
        """Return (samples, tokens, width): the first gradients of made-up losses with many classes, by a form."""
        prompt = open_prompt(clip, self.config.anchor_prompt)
        generator = torch.Generator().manual_seed(0)
        with computing("float32", clip.device), torch.no_grad():
            texts = prompt_model(clip, prompt, self.many_classes).texts
            first = form(texts, prompt.context)
            gradients = torch.randn(SAMPLES, *first.features.shape, generator=generator)
            return first.backward(gradients.to(clip.device)).cpu()

    def probabilities(self, clip: Clip, method: str, dataset: Dataset | None = None) -> Tensor:
        """Return (samples, classes) probabilities of a method, in float32, from the CPU's image features."""
        if dataset is None:
            dataset = self.dataset
        config = replace(self.config, method=method, prompt=self.config.anchor_prompt)
        with computing("float32", clip.device), torch.no_grad():
            adapter = make_adapter(clip, config, dataset, open_prompt(clip, config.prompt))
            features = self.features[:, : adapter.row.views].to(clip.device)
            logits, _ = adapter.method.predict(adapter.model, adapter.state, features)
        return logits.float().softmax(-1).cpu()

    def context(self, clip: Clip, dataset: Dataset | None = None) -> Tensor:
        """Return the context after some steps of pretraining."""
        if dataset is None:
            dataset = self.dataset
        task = PretrainTask(config=self.config, dataset=dataset.name, seed=0)
        with computing("float32", clip.device):
            prompt = make_prompt(clip, task, dataset)
        return prompt.context.cpu()
