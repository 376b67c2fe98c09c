"""Measure what the steps of a trial take on this machine, with a few steps and a few images of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.core.compute.memory import run_in_batches
from fpp_sweep.core.datasets import Dataset
from fpp_sweep.core.images.features import BATCH as VIEWS_PER_BATCH
from fpp_sweep.core.images.features import tower_bytes_per_view
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.specs import DatasetInfo, adaptation_precision
from fpp_sweep.spec.tasks import BATCH as IMAGES_PER_BATCH
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, effort
from fpp_sweep.trial.adapting import evaluate, make_adapter
from fpp_sweep.trial.prompts import has_jacobian
from fpp_sweep.trial.worker import Worker

TIMED_STEPS = 6  # steps of pretraining, after a first one
MAX_DRAWN_IMAGES = 8  # images whose views are drawn
MIN_TIMED_SECONDS = 0.5  # work that takes longer is not timed with more items: on a CPU a step of a large model is slow
MAX_START_SECONDS = 20.0  # a method whose preparation for a dataset takes longer is timed with a few classes
FEW_CLASSES = 2


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds that a worker needs on one dataset."""

    pretraining_step: float
    adapted_image: float  # adaptation to an image, with one step
    zero_shot_image: float
    method_start: float  # setting a method up for a dataset
    drawn_image: float  # all views of an image
    encoded_view: float  # a view in the image tower
    core_share: float = 1.0  # share of the time of measuring in which this process had a core; less on a busy machine


@dataclass(frozen=True, slots=True, eq=False)
class RandomFeatures:
    """Made-up image features, with all that `evaluate` uses of core.images.features.Features."""

    sample_indices: NDArray[np.int64]  # positions of the samples in the dataset
    drawn: Tensor  # (images, views, width)

    def of(self, indices: Sequence[int]) -> Tensor:
        """Return features of as many samples; all samples have the same ones."""
        return self.drawn[: len(indices)]


def measure(worker: Worker, start: TrialConfig, dataset: DatasetInfo) -> Speed:
    """Time a few steps and images of a dataset."""
    began, processor_began = perf_counter(), process_time()
    method = start.method
    if not catalogue.method(method).learns:
        method = catalogue.TPT
    config = replace(start, method=method, prompt=start.anchor_prompt)
    task = EvalTask(config=config, dataset=dataset.name, split=dataset.split, seed=0, start=0, stop=dataset.size)
    zero_shot_task = replace(task, config=replace(config, method=catalogue.ZERO_SHOT))
    with worker.model.computing(adaptation_precision(start.precision)):
        adapted_image, method_start = _time_adaptation(worker, task)
        zero_shot_image, _ = _time_adaptation(worker, zero_shot_task)
        drawn_image, encoded_view = _time_features(worker, task)
    pretraining_step = _time_pretraining_step(worker, replace(start, prompt="fpp"), dataset.name)
    core_share = 1.0
    if not torch.cuda.is_initialized():  # a process that waits for its GPU has no core, either
        core_share = min(1.0, (process_time() - processor_began) / max(perf_counter() - began, 1e-9))
    return Speed(
        pretraining_step=pretraining_step,
        adapted_image=adapted_image,
        zero_shot_image=zero_shot_image,
        method_start=method_start,
        drawn_image=drawn_image,
        encoded_view=encoded_view,
        core_share=core_share,
    )


def _time_pretraining_step(worker: Worker, config: TrialConfig, dataset: str) -> float:
    def seconds(steps: int) -> float:
        task = PretrainTask(config=replace(config, fpp=replace(config.fpp, steps=steps)), dataset=dataset, seed=0)
        return _seconds(lambda: worker.run(task, ()))

    seconds(1)  # includes what is done once
    first = seconds(1)
    if first > MIN_TIMED_SECONDS:
        return first
    return max(0.0, seconds(1 + TIMED_STEPS) - first) / TIMED_STEPS


def _time_adaptation(worker: Worker, task: EvalTask) -> tuple[float, float]:
    """Return the seconds for an image and for the preparation of the method, with random features.

    Both grow with the number of classes. On a CPU a large model needs minutes for a Jacobian of a few hundred classes:
    then both are timed with a few classes, and multiplied. A Jacobian of all classes that does not fit in memory is not
    built, so that times with a few classes would be wrong.
    """
    dataset = worker.datasets.open(task.dataset, task.split)
    n_classes = len(dataset.classes)
    if n_classes > FEW_CLASSES:
        few = replace(dataset, classes=dataset.classes[:FEW_CLASSES], labels=dataset.labels % FEW_CLASSES)
        _time_adaptation_on(worker, task, few)  # includes what is done once
        image_of_few, start_of_few = _time_adaptation_on(worker, task, few)
        ratio = n_classes / FEW_CLASSES
        is_slow = ratio * start_of_few > MAX_START_SECONDS
        if is_slow and _has_jacobian(worker, task, few) == _has_jacobian(worker, task, dataset):
            return ratio * image_of_few, ratio * start_of_few
    return _time_adaptation_on(worker, task, dataset)


def _has_jacobian(worker: Worker, task: EvalTask, dataset: Dataset) -> bool:
    clip = worker.model.clip_for(task.config)
    return has_jacobian(clip, open_prompt(clip, task.config.prompt), dataset)


def _time_adaptation_on(worker: Worker, task: EvalTask, dataset: Dataset) -> tuple[float, float]:
    """Return the seconds for an image and for the preparation of the method on a dataset."""
    n_images = min(IMAGES_PER_BATCH, len(dataset))
    width = len(worker.clip.text.projection[0])
    drawn = torch.nn.functional.normalize(torch.randn(n_images, task.config.views.count, width), dim=-1)
    features: Any = RandomFeatures(np.arange(len(dataset)), drawn)
    clip = worker.model.clip_for(task.config)
    prompt = open_prompt(clip, task.config.prompt)
    began = perf_counter()
    adapter = make_adapter(clip, task.config, dataset, prompt)
    method_start = _seconds_since(began)

    def adapt(count: int) -> object:
        return evaluate(clip, replace(task, stop=count), dataset, features, adapter)

    return _seconds_of_one(adapt, n_images) / effort(task.config), method_start


def _time_features(worker: Worker, task: EvalTask) -> tuple[float, float]:
    """Return the seconds for drawing all views of an image, and for a view in the image tower.

    Where other processes draw, drawing counts only as far as it adds to the time of the tower.
    """
    dataset, config = worker.datasets.open(task.dataset, task.split), task.config.views
    clip = worker.model.clip_for(task.config)
    reader = Reader.of(dataset, config, clip.preprocess, task.seed)
    n_images = max(1, min(MAX_DRAWN_IMAGES, len(dataset) - 1))
    reader[0]  # includes what is read once

    def draw(count: int) -> object:
        return [reader[index] for index in range(len(dataset) - count, len(dataset))]

    size = clip.preprocess.size
    n_views = max(1, VIEWS_PER_BATCH // config.count) * config.count  # all views of some images
    pixels = torch.randn(n_views, 3, size, size, device=clip.device)
    at_once = clip.text.memory.batch_size(n_views, tower_bytes_per_view(clip))
    clip.image_features(pixels[:1])

    def encode(count: int) -> object:
        return run_in_batches(clip.image_features, pixels[:count], at_once)

    encoded_view = _seconds_of_one(encode, n_views)
    drawn_image = _seconds_of_one(draw, n_images)
    if worker.model.image_readers:
        drawn_image = max(0.0, drawn_image / worker.model.image_readers - config.count * encoded_view)
    return drawn_image, encoded_view


def _seconds_of_one(work: Callable[[int], object], most: int) -> float:
    """Return the seconds for one item, timed with as many items as take MIN_TIMED_SECONDS, or with `most`."""
    count = 1
    seconds = _seconds(work, count)
    while seconds < MIN_TIMED_SECONDS and count < most:
        count = min(8 * count, most)
        seconds = _seconds(work, count)
    return seconds / count


def _seconds(work: Callable[..., object], *arguments: int) -> float:
    began = perf_counter()
    work(*arguments)
    return _seconds_since(began)


def _seconds_since(began: float) -> float:
    if torch.cuda.is_initialized():  # the GPU may only have been given the work
        torch.cuda.synchronize()
    return perf_counter() - began
