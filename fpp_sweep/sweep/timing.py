"""What the steps of a trial cost on this machine, measured with a few steps and a few images of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fpp_sweep.core.compute.memory import halving
from fpp_sweep.core.images.features import BATCH, view_bytes
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.spec.tasks import BATCH as SAMPLES
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, effort
from fpp_sweep.trial.running import Adapter, evaluate
from fpp_sweep.trial.worker import Worker

STEPS = 6  # of pretraining that are timed, after a first one
IMAGES = 8  # whose views are drawn
ENOUGH = 0.5  # seconds after which nothing more is timed: of a large model on a CPU a step takes many


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds that a worker needs on one dataset."""

    step: float  # of pretraining
    image: float  # adapted to, with one step
    plain: float  # zero-shot
    begin: float  # to set a method up
    draw: float  # of an image: to make all its views
    tower: float  # of a view: through the image tower


def measure(worker: Worker, start: TrialConfig, facts: DatasetInfo) -> Speed:
    """Time a few steps and images of a dataset."""
    task = EvalTask(config=start, dataset=facts.name, split=facts.split, seed=0, start=0, stop=facts.size)
    learns = catalogue.method(start.method).learns
    tuned = replace(start, method=start.method if learns else catalogue.DEFAULT, prompt=start.anchor_prompt)
    with worker.computing(start):
        image, begin = _adaptation(worker, replace(task, config=tuned))
        plain, _ = _adaptation(worker, replace(task, config=replace(tuned, method=catalogue.PLAIN)))
        draw, tower = _features(worker, replace(task, config=tuned))
    step = _pretraining_step(worker, replace(start, prompt="fpp"), facts.name)
    return Speed(step=step, image=image, plain=plain, begin=begin, draw=draw, tower=tower)


def _pretraining_step(worker: Worker, config: TrialConfig, dataset: str) -> float:
    def seconds(steps: int) -> float:
        task = PretrainTask(config=replace(config, fpp=replace(config.fpp, steps=steps)), dataset=dataset, seed=0)
        return _timed(lambda: worker.run(task, ()))

    seconds(1)  # whatever is done once
    first = seconds(1)
    return first if first > ENOUGH else max(0.0, seconds(1 + STEPS) - first) / STEPS


def _adaptation(worker: Worker, task: EvalTask) -> tuple[float, float]:
    """Seconds for an image, and to set the method up, with random features."""
    dataset = worker.dataset(task.dataset, task.split)
    images = min(SAMPLES, len(dataset))
    size = len(worker.clip.text.projection[0])
    features = torch.nn.functional.normalize(torch.randn(images, task.config.views.count, size), dim=-1)
    stand_in: Any = SimpleNamespace(kept=np.arange(len(dataset)), of=lambda indices: features[: len(indices)])
    clip = worker.clip_for(task.config)
    prompt = open_prompt(clip, task.config.prompt)
    adapters: list[Adapter] = []
    begin = _timed(lambda: adapters.append(worker.adapter(task, prompt)))

    def adapt(count: int) -> object:
        return evaluate(clip, replace(task, stop=count), dataset, stand_in, adapters[0])

    return _of_one(adapt, images) / effort(task.config), begin


def _features(worker: Worker, task: EvalTask) -> tuple[float, float]:
    """Seconds to draw the views of an image, and of a view in the image tower."""
    dataset, config = worker.dataset(task.dataset, task.split), task.config.views
    clip = worker.clip_for(task.config)
    reader = Reader.of(dataset, config, clip.preprocess, task.seed)
    images = min(IMAGES, len(dataset) - 1) or 1
    reader[0]  # whatever is read once
    draw = _of_one(lambda count: [reader[position] for position in range(len(dataset) - count, len(dataset))], images)
    size = clip.preprocess.size
    pixels = torch.randn(max(1, BATCH // config.count) * config.count, 3, size, size, device=clip.device)
    at_once = clip.text.room.batch(len(pixels), view_bytes(clip))
    clip.image_features(pixels[:1])
    return draw, _of_one(lambda count: halving(clip.image_features, pixels[:count], at_once), len(pixels))


def _of_one(work: Callable[[int], object], most: int) -> float:
    """Seconds for one of them, where so many are done in one go as take a while."""
    count = 1
    while (seconds := _timed(work, count)) < ENOUGH and count < most:
        count = min(8 * count, most)
    return seconds / count


def _timed(work: Callable[..., object], *given: int) -> float:
    began = perf_counter()
    work(*given)
    if torch.cuda.is_initialized():  # a GPU may have only been given it
        torch.cuda.synchronize()
    return perf_counter() - began
