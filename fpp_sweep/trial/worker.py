"""A worker: one model on one device, and the tasks that it computes; `workers.actors` makes a Ray actor of it.

This module loads torch, and is imported only by processes that compute.
"""

from __future__ import annotations

import os
import platform
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from fpp_sweep.core.images.features import FeatureCache, Features
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt, from_bytes, open_prompt, prompt_bytes
from fpp_sweep.spec import plugins
from fpp_sweep.spec.files import default_cache
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import (
    DatasetInfo,
    ModelInfo,
    TaskData,
    TextSource,
    Validation,
    WorkerSpec,
    adaptation_precision,
    pretraining_precision,
    worker_at,
)
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task, views_for
from fpp_sweep.trial.adapting import Adapter, evaluate, make_adapter, pack_state, stream_of, with_state
from fpp_sweep.trial.prompts import make_prompt
from fpp_sweep.trial.results import TaskFailed, TaskResult, pack_predictions
from fpp_sweep.trial.validation import require_unchanged_files, validate
from fpp_sweep.trial.worker_datasets import WorkerDatasets
from fpp_sweep.trial.worker_model import WorkerModel

ADAPTERS = 2  # in memory, each with derivatives of up to a quarter of it: the one in use and the one before

ShowProgress = Callable[[str, int, str], AbstractContextManager[Bar]]  # arguments: label, total, unit


def show_nothing(label: str, total: int, unit: str) -> Bar:
    return Bar(label, total, unit, shown=False)


class Worker:
    """Computes tasks. The result of a task does not depend on the tasks before."""

    def __init__(self, spec: WorkerSpec, show: ShowProgress = show_nothing) -> None:
        plugins.load(spec.plugins)
        torch.set_num_threads(spec.threads)
        self.spec = spec
        self.model = WorkerModel(spec)
        self.datasets = WorkerDatasets(spec)
        self.cache = FeatureCache(Path(spec.cache) if spec.cache else default_cache(), exact=spec.float32_cache)
        self._show = show
        self._adapters: OrderedDict[str, Adapter] = OrderedDict()  # the most recently used last

    @property
    def clip(self) -> Clip:
        return self.model.clip

    def model_info(self) -> ModelInfo:
        return self.model.info()

    def describe(self, names: Iterable[str], split: str) -> list[DatasetInfo]:
        """See WorkerDatasets.describe."""
        return self.datasets.describe(names, split)

    def check(self, prompts: Iterable[TextSource], datasets: Sequence[DatasetInfo]) -> Validation:
        """See validation.validate."""
        return validate(self.clip, prompts, datasets)

    def run(
        self, task: Task, inputs: Sequence[TaskResult], adapter_key: str = "", data: TaskData | None = None
    ) -> TaskResult:
        """Compute a task; `inputs` are the results of `task.needs`. The adapter is kept under its key.

        With `data`, the task fails if the dataset or a file of texts is not the one that the task's key is made from.
        Raise TaskFailed with dataset, samples, machine and worker, then the cause.
        """
        began = perf_counter()
        worker = worker_at(platform.node(), os.getpid())
        try:
            if data is not None:
                self.datasets.require_unchanged(task, data)
                require_unchanged_files(self.clip, data.files)
            if isinstance(task, PretrainTask):
                result = self._pretrain(task)
            else:
                result = self._evaluate(task, dict(zip(task.needs, inputs, strict=True)), adapter_key)
        except (Exception, SystemExit) as error:
            where = f"{task.title}, {worker}"
            if line := plugins.line_of(error):
                where = f"{where}, method {task.config.method} ({line})"
            raise TaskFailed.of(self.model.explain(error), where) from error
        return replace(
            result,
            spent=result.seconds,
            device=self.model.device_name,
            worker_seconds=perf_counter() - began,
            worker=worker,
            adapters=tuple(self._adapters),
        )

    def _pretrain(self, task: PretrainTask) -> TaskResult:
        began = perf_counter()
        clip = self.clip
        dataset = self.datasets.open_any_split(task.dataset)
        progress = self._show(f"{task.dataset}: pretraining", task.config.fpp.steps, "steps")
        precision = pretraining_precision(task.config.precision)
        with self.model.computing(precision), progress as bar:
            prompt = make_prompt(clip, task, dataset, bar.advance)
        data = prompt_bytes(prompt, clip, {"fpp": asdict(task.config.fpp)})
        return TaskResult(prompt=data, seconds={"pretrain": perf_counter() - began})

    def _evaluate(self, task: EvalTask, inputs: dict[Task, TaskResult], adapter_key: str) -> TaskResult:
        began = perf_counter()
        dataset = self.datasets.open(task.dataset, task.split)
        stream = stream_of(task, dataset)
        features = self._features(task)
        features_done = perf_counter()
        predictions = None
        state = _state_before(task, inputs)  # stays as it is if no image of the task can be read
        readable = int(np.isin(stream, features.sample_indices).sum())
        if readable:
            predictions, state = self._adapt(task, inputs, adapter_key, features, readable)
        own_samples = {dataset.ids[index] for index in stream}
        return TaskResult(
            predictions=predictions,
            state=state,
            skipped=tuple(sample for sample in features.skipped if sample.sample_id in own_samples),
            seconds={"features": features_done - began, "adapt": perf_counter() - features_done},
            features=features.cost,
        )

    def _adapt(
        self, task: EvalTask, inputs: dict[Task, TaskResult], adapter_key: str, features: Features, readable: int
    ) -> tuple[bytes, bytes | None]:
        """Return the packed predictions of a task's readable images, and the state of a stateful method after them."""
        dataset = self.datasets.open(task.dataset, task.split)
        progress = self._show(f"{task.dataset}: {task.config.method}", readable, "images")
        with progress as bar:
            adapter = self.adapter(task, self._prompt(task, inputs), adapter_key)
            state = _state_before(task, inputs)
            if state is not None:
                adapter = with_state(adapter, state)
            with self.model.computing(adaptation_precision(task.config.precision)):
                predictions, adapter = evaluate(self.clip, task, dataset, features, adapter, bar.advance)
            return pack_predictions(predictions), pack_state(adapter)

    def _features(self, task: EvalTask) -> Features:
        """Return the image features of a task's samples."""
        dataset = self.datasets.open(task.dataset, task.split)
        stream = stream_of(task, dataset)
        with self._show(f"{task.dataset}: features", int(np.ptp(stream)) + 1, "images") as bar:
            return self.cache.features(
                self.clip,
                dataset,
                views_for(task.config, dataset.group),
                task.seed,
                precision=adaptation_precision(task.config.precision),
                samples=stream.tolist(),
                on_bad_image=self.spec.on_bad_image,
                workers=self.model.image_readers,
                progress=bar,
            )

    def _prompt(self, task: EvalTask, inputs: dict[Task, TaskResult]) -> Prompt | None:
        """Return the prompt that a task starts from; None if templates replace it."""
        if task.config.templates:
            return None
        if task.pretrain is None:
            return open_prompt(self.clip, task.config.prompt)
        data = inputs[task.pretrain].prompt
        assert data is not None, "a pretraining gives a prompt"
        return from_bytes(self.clip, data)

    def adapter(self, task: EvalTask, prompt: Prompt | None, key: str = "") -> Adapter:
        """Return the task's method, set up for its prompt and dataset; the last ones are kept."""
        if key in self._adapters:
            self._adapters.move_to_end(key)
            return self._adapters[key]
        while len(self._adapters) >= ADAPTERS:
            self._adapters.popitem(last=False)  # before the next one is built, which may need the memory
        dataset = self.datasets.open(task.dataset, task.split)
        with self.model.computing(adaptation_precision(task.config.precision)):
            adapter = make_adapter(self.clip, task.config, dataset, prompt)
        if key:
            self._adapters[key] = adapter
        return adapter


def _state_before(task: EvalTask, inputs: Mapping[Task, TaskResult]) -> bytes | None:
    """Return the state of the stream before a task; None at its beginning, or if no earlier image could be read."""
    if task.previous is None:
        return None
    return inputs[task.previous].state
