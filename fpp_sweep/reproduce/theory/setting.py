"""The inputs that all parts of the theory share: a model with class texts, views of images, and a trial's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fpp_sweep.core.compute.random_streams import torch_generator
from fpp_sweep.core.datasets import Dataset
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.images.views import as_tower_input
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.spec.config import FppConfig, TrialConfig, ViewConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of draws, contexts, samples and seeds."""

    classes: int = 10  # K of the made-up classifiers T of Theorem 1
    dimensions: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # D of Theorem 1
    draws: int = 20_000  # views for each T
    contexts: int = 48  # contexts whose text features are compared
    samples: int = 32  # images
    seeds: int = 3  # pretraining seeds
    probes: int = 8  # random directions for each Hessian
    noise_draws: int = 256  # for each L_flat


QUICK = Sizes(dimensions=(32, 256, 2048), draws=2000, contexts=24, samples=8, seeds=1, probes=1, noise_draws=32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """A model with the classes, views and settings for which the theory is measured; on the CPU."""

    model: TextModel
    context: Tensor  # (n, W) of the anchor prompt
    views: Tensor  # (samples, V, D) unit image features
    config: TrialConfig  # lengths in units of the model's own embeddings
    unit: float  # the model's unit of length, over ViT-B/16's
    seed: int
    sizes: Sizes

    @classmethod
    def of(cls, clip: Clip, dataset: Dataset, config: TrialConfig, seed: int, sizes: Sizes) -> Setting:
        """Take the class names and the first images of a dataset, and the settings of a trial."""
        unit = clip.embedding_scale
        anchor = open_prompt(clip, config.anchor_prompt)
        text_tower = clip.text.to("cpu")
        texts = ClassTexts.of_names(text_tower, clip.tokenizer, dataset.classes, after=anchor.after)
        return cls(
            model=TextModel(texts=texts, logit_scale=clip.logit_scale),
            context=anchor.context.cpu(),
            views=_view_features(clip, dataset.head(sizes.samples), config.views, seed).cpu(),
            config=replace(config, fpp=config.fpp.scaled(unit), adapt=config.adapt.scaled(unit)),
            unit=unit,
            seed=seed,
            sizes=sizes,
        )

    @property
    def texts(self) -> ClassTexts:
        return self.model.texts

    @property
    def flatness_weight(self) -> float:
        """lambda."""
        return self.config.fpp.flatness_weight(len(self.texts))

    def generator(self, *names: object) -> torch.Generator:
        return torch_generator(self.seed, "theory", *names)

    def nearby_contexts(self) -> Tensor:
        """Return contexts (B, n, W) around the anchor prompt, from very close to as far as a random start."""
        draws = torch.randn(self.sizes.contexts, *self.context.shape, generator=self.generator("contexts"))
        lengths = torch.logspace(-2, 0, self.sizes.contexts) * self.config.fpp.start_std
        return self.context + lengths[:, None, None] * draws

    def random_start(self, number: int) -> Tensor:
        """Return the start (n, W) of a pretraining."""
        return draw_start(self.context, self.config.fpp, self.generator("start", number))

    def pretrained(self, config: FppConfig, number: int) -> Tensor:
        """Return the context (n, W) that pretraining learns; equal numbers have the same start and noise."""
        noise = draw_noise(self.texts, len(self.context), config, self.generator("noise", number))
        learned = pretrain(
            self.texts,
            self.context,
            config,
            flatness_weight=self.flatness_weight,
            start=self.random_start(number),
            noise=noise,
        )
        return learned.context


def _view_features(clip: Clip, dataset: Dataset, config: ViewConfig, seed: int) -> Tensor:
    """Return unit features (samples, V, D) of the views of all images of a dataset."""
    reader = Reader.of(dataset, config, clip.preprocess, seed)
    features = []
    for index in range(len(dataset)):
        views = reader[index]
        if isinstance(views, Tensor):  # else an image that cannot be read
            features.append(clip.image_features(as_tower_input(views, clip.preprocess)))
    return torch.stack(features)
