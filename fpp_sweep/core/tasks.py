"""A trial's units of work, runnable anywhere: pretrain a prompt, adapt a shard of a dataset, join the shards.

Each is a pure function of its task, the model and the data: run again, elsewhere or in other pieces, it gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

import numpy as np

from fpp_sweep.config import TrialConfig
from fpp_sweep.core.classes import ClassTexts
from fpp_sweep.core.clip import Clip
from fpp_sweep.core.datasets.base import Dataset
from fpp_sweep.core.features import Features
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.metrics import Predictions, concatenate
from fpp_sweep.core.prompt import Prompt, open_prompt
from fpp_sweep.core.seeds import torch_generator

BATCH = 64  # samples whose views are in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainTask:
    """Make the prompt that a (config, dataset, seed) starts from; one for all shards and methods that share it."""

    config: TrialConfig
    dataset: str
    seed: int

    def key(self) -> tuple[object, ...]:
        """Equal for tasks with equal prompts: what follows the prompt does not matter."""
        if self.config.prompt != "fpp":
            return (self.config.prompt,)
        return ("fpp", self.config.init, self.config.fpp, self.dataset, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """Adapt to and predict the samples start..stop of a dataset."""

    config: TrialConfig
    dataset: str
    split: str
    seed: int
    start: int
    stop: int


def split(task: EvalTask, shards: int) -> list[EvalTask]:
    """The same work in contiguous pieces whose sizes differ by one at most.

    >>> task = EvalTask(config=TrialConfig(), dataset="dtd", split="test", seed=0, start=0, stop=10)
    >>> [(part.start, part.stop) for part in split(task, 3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    size = task.stop - task.start
    edges = [task.start + size * shard // shards for shard in range(shards + 1)]
    return [replace(task, start=a, stop=b) for a, b in pairwise(edges) if b > a]


def class_texts(clip: Clip, classes: Sequence[str], context_tokens: int) -> ClassTexts:
    """The texts of a dataset's classes, checked to fit the model with a context of that length."""
    texts = ClassTexts.of_names(clip.text, clip.tokenizer, classes)
    texts.require_room(context_tokens, classes)
    return texts


def make_prompt(clip: Clip, task: PretrainTask, dataset: Dataset, on_step: Callable[[], None] = lambda: None) -> Prompt:
    """Run a PretrainTask."""
    config = task.config
    if config.prompt != "fpp":
        return open_prompt(clip, config.prompt)
    began = perf_counter()
    predefined = open_prompt(clip, config.init)
    fpp = config.fpp.scaled(clip.embedding_scale)
    texts = _pretraining_texts(clip, task, dataset, len(predefined.context))
    names = (task.seed, "fpp", task.dataset)
    learned = pretrain(
        texts,
        predefined.context,
        fpp,
        weight=flatness_weight(task.config, dataset, len(texts)),
        start=draw_start(predefined.context, fpp, torch_generator(*names, "start")),
        noise=draw_noise(texts, len(predefined.context), fpp, torch_generator(*names, "noise")),
        on_step=on_step,
    )
    losses = learned.losses[-1].tolist() if fpp.steps else [0.0, 0.0]
    origin = {
        "words": config.init,
        "seed": str(task.seed),
        "dataset": task.dataset,
        "final_alignment_loss": f"{losses[0]:.6f}",
        "final_flatness_loss": f"{losses[1]:.6f}",
        "seconds": f"{perf_counter() - began:.2f}",
    }
    return Prompt(context=learned.context, origin=origin)


def _pretraining_texts(clip: Clip, task: PretrainTask, dataset: Dataset, context_tokens: int) -> ClassTexts:
    source = task.config.fpp.classes
    if source == "gaussian":
        generator = torch_generator(task.seed, "fpp", task.dataset, "classes")
        return ClassTexts.of_gaussians(clip.text, clip.tokenizer, len(dataset.classes), generator)
    if source == "imagenet":
        from fpp_sweep.core.datasets.imagenet import imagenet_classes

        return class_texts(clip, list(imagenet_classes().values()), context_tokens)
    return class_texts(clip, dataset.classes, context_tokens)


def flatness_weight(config: TrialConfig, dataset: Dataset, source_classes: int) -> float:
    """lambda: fixed on ImageNet's shifts unless the config says otherwise, else gamma1 + gamma2 / K."""
    fpp = config.fpp
    if dataset.group == "shifts" and fpp.lambda_shifts is not None:
        return fpp.lambda_shifts
    return fpp.weight(len(dataset.classes) if fpp.lambda_classes == "dataset" else source_classes)


def evaluate(
    clip: Clip,
    task: EvalTask,
    dataset: Dataset,
    features: Features,
    prompt: Prompt,
    on_samples: Callable[[int], None] = lambda count: None,
) -> Predictions:
    """Run an EvalTask on the features of its dataset; samples whose image could not be read are not there."""
    config = task.config
    texts = class_texts(clip, dataset.classes, len(prompt.context))
    model = TextModel(texts=texts, logit_scale=clip.logit_scale)
    method = build_method(config.method, config.adapt.scaled(clip.embedding_scale), dataset.group)
    first, last = np.searchsorted(features.kept, [task.start, task.stop])
    # the form of the gradient is that of the whole dataset, whatever the shard: forms differ in the last bits
    state = method.start(model, prompt.context, len(dataset))
    parts = []
    for start in range(first, last, BATCH):
        stop = min(start + BATCH, last)
        views = features.batch(start, stop)[:, : method.views].to(clip.device)
        logits, state = method.predict(model, state, views)
        if not logits.isfinite().all():
            raise FloatingPointError(f"{config.method} on {task.dataset}: logits are not finite after adaptation")
        positions = features.kept[start:stop]
        probabilities = logits.softmax(-1).float().cpu().numpy()
        parts.append(Predictions.of([dataset.ids[i] for i in positions], dataset.labels[positions], probabilities))
        on_samples(stop - start)
    return concatenate(parts)
