"""The embedded model on a device and on the CPU, with a few images: the parts of which the checks are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import Dataset, open_dataset
from fpp_sweep.core.images import views
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec.config import TrialConfig, preset
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.trial.adapting import make_adapter
from fpp_sweep.trial.prompts import make_prompt

DATASET = "scenes"
SAMPLES, SAMPLE_VIEWS = 8, 16
PRETRAINING_STEPS = 20
# for methods with a cache, which have no released settings for this dataset and would say so
CACHE_SETTINGS = {"adapt.cache_alpha": 2.0, "adapt.cache_beta": 5.0, "adapt.boost_delta": 1.0}


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

    def tower_features(self, precision: StagePrecision) -> Tensor:
        with computing(precision, self.device):
            return self.clip.image_features(self.pixels).cpu()

    def probabilities(self, clip: Clip, method: str) -> Tensor:
        """Return (samples, classes) probabilities of a method, in float32, from the CPU's image features."""
        config = replace(self.config, method=method, prompt=self.config.anchor_prompt)
        with computing("float32", clip.device), torch.no_grad():
            adapter = make_adapter(clip, config, self.dataset, open_prompt(clip, config.prompt))
            features = self.features[:, : adapter.row.views].to(clip.device)
            logits, _ = adapter.method.predict(adapter.model, adapter.state, features)
        return logits.float().softmax(-1).cpu()

    def context(self, clip: Clip) -> Tensor:
        """Return the context after some steps of pretraining."""
        with computing("float32", clip.device):
            prompt = make_prompt(clip, PretrainTask(config=self.config, dataset=DATASET, seed=0), self.dataset)
        return prompt.context.cpu()
