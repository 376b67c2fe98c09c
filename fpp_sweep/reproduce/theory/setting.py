"""What the parts of the experiment share: the model's texts, real views, prompts that were pretrained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fpp_sweep.core.compute.random_streams import torch_generator
from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.images.views import as_tower_input
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.spec.config import FppConfig, TrialConfig, preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is drawn and computed."""

    classes: int = 10  # of the made-up T
    dimensions: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 20_000
    contexts: int = 48  # whose text features are compared
    samples: int = 32
    seeds: int = 3  # of each kind of pretraining
    steps: int = 60  # of pretraining
    probes: int = 8
    flat_draws: int = 256


QUICK = Sizes(
    dimensions=(32, 256, 2048), draws=2000, contexts=24, samples=8, seeds=1, steps=30, probes=1, flat_draws=32
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """A model with classes, the predefined prompt, views of real pictures; on the CPU."""

    model: TextModel
    context: Tensor  # of the predefined prompt (n, W)
    views: Tensor  # (samples, V, D), unit
    config: TrialConfig  # in units of the model's own embeddings
    scale: float  # that unit
    seed: int
    sizes: Sizes

    @classmethod
    def of(
        cls, clip: Clip, classes: Sequence[str], context: Tensor, views: Tensor | None, seed: int, sizes: Sizes
    ) -> Setting:
        config, unit = preset("tiny"), clip.embedding_scale
        texts = ClassTexts.of_names(clip.text.on("cpu"), clip.tokenizer, classes)
        return cls(
            model=TextModel(texts=texts, logit_scale=clip.logit_scale),
            context=context.cpu(),
            views=(_pictures(clip, config, seed, sizes.samples) if views is None else views[: sizes.samples]).cpu(),
            config=replace(config, fpp=config.fpp.scaled(unit), adapt=config.adapt.scaled(unit)),
            scale=unit,
            seed=seed,
            sizes=sizes,
        )

    @property
    def texts(self) -> ClassTexts:
        return self.model.texts

    @property
    def weight(self) -> float:
        """lambda."""
        return self.config.fpp.flatness_weight(len(self.texts))

    def generator(self, *names: object) -> torch.Generator:
        return torch_generator(self.seed, "theory", *names)

    def nearby(self) -> Tensor:
        """Contexts (B, n, W) around the predefined prompt, from very close to as far as a random start."""
        draws = torch.randn(self.sizes.contexts, *self.context.shape, generator=self.generator("contexts"))
        lengths = torch.logspace(-2, 0, self.sizes.contexts) * self.config.fpp.start_std
        return self.context + lengths[:, None, None] * draws

    def start(self, number: int) -> Tensor:
        """A random start of pretraining."""
        return draw_start(self.context, self.config.fpp, self.generator("start", number))

    def pretrained(self, config: FppConfig, number: int) -> Tensor:
        """The context that pretraining learns; the same start and noise for each kind of the same number."""
        config = replace(config, steps=self.sizes.steps)
        noise = draw_noise(self.texts, len(self.context), config, self.generator("noise", number))
        learned = pretrain(
            self.texts, self.context, config, flatness_weight=self.weight, start=self.start(number), noise=noise
        )
        return learned.context


def _pictures(clip: Clip, config: TrialConfig, seed: int, samples: int) -> Tensor:
    """Features of the views of the embedded set `scenes`."""
    dataset = open_dataset("scenes", "test", None).head(samples)
    reader = Reader.of(dataset, config.views, clip.preprocess, seed)
    pixels = [reader[index] for index in range(len(dataset))]
    views = [as_tower_input(each, clip.preprocess) for each in pixels if isinstance(each, Tensor)]
    return torch.stack([clip.image_features(each) for each in views])
