"""Keys: short names for configs, tasks, adapters and cached features, made from everything that decides their bits.

Two things with one key are equal to the last bit, so a result that is stored under a key serves everyone who asks for
that key. Whatever does not change a result stays out of its key: the worker, the order, settings that are not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.released import fill_released, resolved_templates
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, TaskData, adaptation_precision, pretraining_precision
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task

ENGINE = 4  # raise this when the same task gives other bits
VIEWS = 3  # raise this when the same names give other pixels
FEATURES = "fpp_sweep features 5"  # the format of cached features
ENGINE_NAME = f"{ENGINE}.{VIEWS}"  # a sweep's results are of one engine, so that they can be compared

CONFIG_LENGTH, FEATURES_LENGTH, TASK_LENGTH = 12, 16, 24  # hexadecimal digits of a key


def digest(*values: Any, length: int = TASK_LENGTH) -> str:
    """Return a short name for plain values."""
    return _digest_of_text(_as_text(values), length)


def _digest_of_text(text: str, length: int = TASK_LENGTH) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _as_text(values: Any) -> str:
    return json.dumps(values, sort_keys=True)


def config_key(config: TrialConfig) -> str:
    """Return the name of a config, the same everywhere.

    >>> config_key(TrialConfig()) == config_key(TrialConfig()) != config_key(TrialConfig(prompt="a photo of a"))
    True
    """
    return digest(config.flat(), length=CONFIG_LENGTH)


def name_of_features(settings: Mapping[str, Any]) -> str:
    """Return the name of image features, from everything that they depend on apart from the sample.

    Threads and images per batch are left out: they move last bits only, far below half precision.
    """
    return digest(FEATURES, {**settings, "views_version": VIEWS}, length=FEATURES_LENGTH)


def _precision_of(task: Task) -> str:
    """Return the precision that decides a task's bits; precisions that differ in other stages share results."""
    precision = task.config.precision
    if isinstance(task, PretrainTask):
        return pretraining_precision(precision)
    if task.config.pretrains:  # the bits of the pretrained prompt depend on it
        return precision
    return adaptation_precision(precision)


def _text_of_columns(config: TrialConfig, columns: tuple[str, ...]) -> str:
    """Return a text for optional columns, with the settings that they depend on."""
    read: tuple[str, ...] = ()
    for name in columns:
        read += catalogue.SETTINGS_OF_COLUMN.get(name, ())
    settings = {key: value for key, value in config.flat().items() if key.startswith(read)}
    return _as_text([sorted(columns), settings])


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """Keys of the tasks on one model and some datasets."""

    model: ModelInfo
    datasets: Mapping[tuple[str, str], DatasetInfo]  # by name and split
    prompts: Mapping[str, str] = field(default_factory=dict)  # digests of files of prompts and templates
    # digests that all shards of a dataset share, which are computed once: the scheduler asks for each shard's key
    _of_all_shards: dict[Any, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, task: Task) -> str:
        """Return a key that is equal for tasks with equal results."""
        if isinstance(task, PretrainTask):
            parts: list[Any] = [self._prompt(task), self._classes(task.dataset)]
            if task.gate is not None:
                parts.append(task.gate)
            return digest("pretrain", self._machine(task), parts)
        shard = f"{self._of_any_shard('evaluate', task, self._evaluation)} {task.start} {task.stop}"
        return _digest_of_text(f"{shard} {_text_of_columns(task.config, task.columns)}")

    def of_adapter(self, task: EvalTask) -> str:
        """Return a key that is equal for tasks that start from one method, set up for one prompt and its classes."""
        return self._of_any_shard("adapter", task, self._adapter)

    def data_of(self, task: Task) -> TaskData:
        """Return digests of the data that a task's key is made from; a worker compares them with what it reads."""
        if isinstance(task, PretrainTask):
            _, classes = self._classes(task.dataset)
            dataset_digest = digest(classes)
        else:
            dataset_digest = self.datasets[task.dataset, task.split].digest
        files = {}
        source = task.config.templates or task.config.source
        if source in self.prompts:
            files[source] = self.prompts[source]
        return TaskData(dataset=dataset_digest, files=files)

    def _of_any_shard(self, kind: str, task: EvalTask, parts: Callable[[EvalTask], list[Any]]) -> str:
        """Return the digest of some parts of a task, which are the same for all of its shards."""
        whole = replace(task, start=0, stop=0, columns=(), gate=None)
        if (kind, whole) not in self._of_all_shards:
            self._of_all_shards[kind, whole] = digest(kind, self._machine(task), parts(task))
        return self._of_all_shards[kind, whole]

    def _machine(self, task: Task) -> list[Any]:
        """Return what the bits of any result depend on: code, weights, device and arithmetic."""
        device = self.model.device.partition(":")[0]
        return [ENGINE, self.model.digest, device, self.model.arithmetic, _precision_of(task)]

    def _prompt(self, task: Task) -> list[Any]:
        """Return what decides the prompt that a task makes or starts from."""
        config = task.config
        if config.templates:
            templates = resolved_templates(config.templates, task.dataset)
            return ["templates", self.prompts.get(config.templates, templates)]
        prompt = self.prompts.get(config.prompt, config.prompt)
        if not config.pretrains:
            return [prompt]
        anchor = self.prompts.get(config.anchor_prompt, config.anchor_prompt)
        return [prompt, anchor, asdict(config.fpp), task.dataset, task.prompt_seed]

    def _adapter(self, task: EvalTask) -> list[Any]:
        """Return what decides the state in which a method starts on a dataset's stream."""
        row, settings = self._method(task)
        adapt = {key: value for key, value in settings.items() if key.startswith("adapt.")}
        size = self.datasets[task.dataset, task.split].size
        return [self._prompt(task), row.name, row.digest, adapt, self._classes(task.dataset), size]

    def _evaluation(self, task: EvalTask) -> list[Any]:
        """Return what decides the predictions of any shard of a task."""
        row, settings = self._method(task)
        dataset = self.datasets[task.dataset, task.split]
        data = [self._classes(task.dataset), dataset.size, dataset.digest, dataset.images]
        method = [self._prompt(task), row.name, row.digest, settings]
        return [*method, task.dataset, task.split, data, VIEWS, task.seed]

    def _method(self, task: EvalTask) -> tuple[catalogue.MethodRow, dict[str, Any]]:
        """Return a task's method, and the settings that the method reads."""
        row = catalogue.method(task.config.method)
        flat = task.config.flat()
        settings = {key: value for key, value in flat.items() if key.startswith(tuple(row.reads))}
        settings.pop("adapt.templates", None)  # `_prompt` has them
        return row, fill_released(row.name, task.dataset, settings)

    def _classes(self, dataset: str) -> list[Any]:
        """Return a dataset's class names, which are all that pretraining sees of it; every split has the same."""
        for (name, _), info in sorted(self.datasets.items()):
            if name == dataset:
                return [info.group, info.classes]
        raise KeyError(dataset)
