"""Keys: short names for configs, tasks, adapters and cached features, made from everything that decides their bits.

Two things with one key are equal to the last bit, so a result that is stored under a key serves everyone who asks for
that key. Whatever does not change a result stays out of its key: the worker, the order, settings that are not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal, cast

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.released import fill_released, resolved_templates
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, adaptation_precision, pretraining_precision
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task

ENGINE = 2  # raise this when the same task gives other bits
VIEWS = 2  # raise this when the same names give other pixels
FEATURES = "fpp_sweep features 2"  # the format of cached features
MAX_TEXTS = 512  # texts that are kept; not more, since each has the names of all classes
MAX_COLUMN_TASKS = 64  # tasks for which the texts with more columns are kept, up to eight for each

TextKind = Literal["pretrain", "evaluate", "adapter"]

CONFIG_LENGTH, FEATURES_LENGTH, TASK_LENGTH = 12, 16, 24  # hexadecimal digits of a key


def digest(*values: Any, length: int = TASK_LENGTH) -> str:
    """Return a short name for plain values."""
    return _digest_of_text(_text(values), length)


def _digest_of_text(text: str, length: int = TASK_LENGTH) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _text(values: Any) -> str:
    return json.dumps(values, sort_keys=True)


@lru_cache
def config_key(config: TrialConfig) -> str:
    """Return the name of a config, the same everywhere.

    >>> config_key(TrialConfig()) == config_key(TrialConfig()) != config_key(TrialConfig(prompt="a photo of a"))
    True
    """
    return digest(config.flat(), length=CONFIG_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureKey:
    """Everything that a sample's image features depend on, apart from the sample.

    Threads and images per batch are left out: they move last bits only, far below half precision.
    """

    image_digest: str  # digest of the image tower's weights and preprocessing
    dataset: str
    split: str
    count: int
    min_area: float
    max_area: float
    augmix: bool
    flip: bool
    seed: int
    dtype: str
    compute: str  # precision of the image tower, and what else it computes otherwise than open_clip's
    views_version: int = VIEWS

    def name(self) -> str:
        return digest(FEATURES, asdict(self), length=FEATURES_LENGTH)


def _precision_of(task: Task) -> str:
    """Return the precision that decides a task's bits; precisions that differ in other stages share results."""
    precision = task.config.precision
    if isinstance(task, PretrainTask):
        return pretraining_precision(precision)
    if task.config.pretrains:  # the bits of the pretrained prompt depend on it
        return precision
    return adaptation_precision(precision)


def _shared_parts(kind: TextKind, task: Task) -> tuple[Any, ...]:
    """Return the parts of a task that are equal in all shards of its dataset."""
    parts: tuple[Any, ...] = (kind, task.config, task.dataset, task.seed, task.prompt_seed)
    if isinstance(task, EvalTask):
        parts += (task.split, task.columns)
    return parts


def _key_of_shard(task: EvalTask, columns: Sequence[str], shared_text: str) -> str:
    shard = [task.split, task.start, task.stop, sorted(columns)]
    return _digest_of_text(shared_text + _text(shard))


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """Keys of the tasks on one model and some datasets."""

    model: ModelInfo
    datasets: Mapping[tuple[str, str], DatasetInfo]  # by name and split
    prompts: Mapping[str, str] = field(default_factory=dict)  # digests of files of prompts and templates
    # two caches, by the parts of a task that are equal in all shards of its dataset (`_shared_parts`)
    _texts: dict[Any, str] = field(default_factory=dict, init=False, compare=False, repr=False)
    _column_texts: dict[Any, Mapping[tuple[str, ...], str]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def of(self, task: Task) -> str:
        """Return a key that is equal for tasks with equal results."""
        if isinstance(task, PretrainTask):
            return _digest_of_text(self._shared_text("pretrain", task))
        return _key_of_shard(task, task.columns, self._shared_text("evaluate", task))

    def of_adapter(self, task: EvalTask) -> str:
        """Return a key that is equal for tasks that start from one method, set up for one prompt and its classes."""
        return _digest_of_text(self._shared_text("adapter", task))

    def compatible_keys(self, task: Task) -> Iterator[str]:
        """Yield the keys whose results hold the task's: its own, then those of the task with more optional columns."""
        if isinstance(task, PretrainTask):
            yield self.of(task)
            return
        for columns, shared_text in self._texts_by_columns(task).items():
            yield _key_of_shard(task, columns, shared_text)

    def _texts_by_columns(self, task: EvalTask) -> Mapping[tuple[str, ...], str]:
        """Return the shared texts of a task and of the same task with more optional columns."""
        shared = _shared_parts("evaluate", task)
        texts = self._column_texts.get(shared)
        if texts is None:
            texts = {}
            absent = [name for name in catalogue.COLUMNS if name not in task.columns]
            for size in range(len(absent) + 1):
                for more in combinations(absent, size):
                    columns = (*task.columns, *more)
                    texts[columns] = self._shared_text("evaluate", replace(task, columns=columns))
            if len(self._column_texts) >= MAX_COLUMN_TASKS:
                self._column_texts.clear()
            self._column_texts[shared] = texts
        return texts

    def _shared_text(self, kind: TextKind, task: Task) -> str:
        """Return what decides a result apart from the cut into shards: a trial's shards share this text."""
        shared = _shared_parts(kind, task)
        text = self._texts.get(shared)
        if text is None:
            if kind == "pretrain":
                key_parts = [self._prompt(task), self._classes(task.dataset)]
            elif kind == "evaluate":
                key_parts = self._evaluation(cast(EvalTask, task))
            else:
                key_parts = self._adapter(cast(EvalTask, task))
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            text = self._texts[shared] = _text([kind, self._machine(task), key_parts])
        return text

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
            return [prompt, config.deep_prompts]
        anchor = self.prompts.get(config.anchor_prompt, config.anchor_prompt)
        return [prompt, anchor, config.deep_prompts, asdict(config.fpp), task.dataset, task.prompt_seed]

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
        if row.ordered and settings["adapt.order"] == "file":
            data.append(dataset.file_order_digest)
        return [self._prompt(task), row.name, row.digest, settings, task.dataset, data, VIEWS, task.seed]

    def _method(self, task: EvalTask) -> tuple[catalogue.MethodRow, dict[str, Any]]:
        """Return a task's method, and the settings that the method and the requested columns read."""
        row = catalogue.method(task.config.method)
        read = list(row.reads)
        for column in task.columns:
            read += catalogue.SETTINGS_OF_COLUMN.get(column, ())
        flat = task.config.flat()
        settings = {key: value for key, value in flat.items() if key.startswith(tuple(read))}
        settings.pop("adapt.templates", None)  # `_prompt` has them
        return row, fill_released(row.released, task.dataset, settings)

    def _classes(self, dataset: str) -> list[Any]:
        """Return a dataset's class names, which are all that pretraining sees of it; every split has the same."""
        for (name, _), info in sorted(self.datasets.items()):
            if name == dataset:
                return [info.group, info.classes]
        raise KeyError(dataset)
