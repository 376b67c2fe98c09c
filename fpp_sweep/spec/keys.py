"""Every key: names for configs, tasks, adapters and cached features, from all that decides their bits.

Two things with one key are the same to the last bit, so a result that is kept under a key may be used by anybody who
asks for it. What does not change a result is left out: who computes it, in which order, settings that are not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task

ENGINE = 2  # to be raised when the same task gives other bits
VIEWS = 2  # to be raised when the same names give other pixels
FEATURES = "fpp_sweep features 2"  # the form of cached features
REMEMBERED = 4096  # texts that keys are made from; those of a trial are asked for again and again


def digest(*facts: Any, length: int = 24) -> str:
    """A short name for some plain values."""
    return hashlib.sha256(_text(facts).encode()).hexdigest()[:length]


def _text(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True)


@lru_cache
def of_config(config: TrialConfig) -> str:
    """A config's name everywhere.

    >>> of_config(TrialConfig()) == of_config(TrialConfig()) != of_config(TrialConfig(prompt="a photo of a"))
    True
    """
    return digest(config.flat(), length=12)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureKey:
    """Everything that a sample's image features depend on, apart from the sample.

    Threads and images per batch are left out: they move last bits only, far below half precision.
    """

    image_digest: str  # of the image tower's weights and preprocessing
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
        return digest(FEATURES, asdict(self), length=16)


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """Keys of tasks on one model and some datasets."""

    model: ModelInfo
    datasets: Mapping[tuple[str, str], DatasetInfo]  # by name and split
    prompts: Mapping[str, str] = field(default_factory=dict)  # digests of prompts that are files
    _texts: dict[Any, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, task: Task) -> str:
        """Equal for tasks with equal results: settings that are not read do not matter."""
        if isinstance(task, PretrainTask):
            return self._named("pretrain", task, lambda: (self._prompt(task), self._classes(task.dataset)))
        cut = (task.split, task.start, task.stop, sorted(task.columns))
        return self._named("evaluate", task, lambda: (self._evaluation(task),), cut)

    def serving(self, task: Task) -> Iterator[str]:
        """Its key, then those of the same task with more optional columns, whose results hold this one's."""
        yield self.of(task)
        if isinstance(task, PretrainTask):
            return
        others = [name for name in catalogue.COLUMNS if name not in task.columns]
        for size in range(1, len(others) + 1):
            for more in combinations(others, size):
                yield self.of(replace(task, columns=(*task.columns, *more)))

    def of_adapter(self, task: EvalTask) -> str:
        """Equal for tasks that start from the same method set up for the same prompt and classes."""
        return self._named("adapter", task, lambda: self._adapter(task))

    def _named(self, kind: str, task: Task, facts: Callable[[], tuple[Any, ...]], *cut: Any) -> str:
        """Facts of a task that are the same for all its shards, and where this one is cut."""
        columns = getattr(task, "columns", ())
        known = (kind, task.config, task.dataset, task.seed, task.prompt_seed, getattr(task, "split", ""), columns)
        text = self._texts.get(known)
        if text is None:
            if len(self._texts) >= REMEMBERED:
                self._texts.clear()
            model, device, precision = self.model, self.model.device.partition(":")[0], task.config.precision
            shared = (ENGINE, model.digest, device, model.arithmetic, precision, kind, *facts())
            text = self._texts[known] = _text(shared).removesuffix("]")
        text = ", ".join([text, *map(_text, cut)])
        return hashlib.sha256(f"{text}]".encode()).hexdigest()[:24]

    def _adapter(self, task: EvalTask) -> tuple[Any, ...]:
        row, read = self._read(task)
        adapt = {key: value for key, value in read.items() if key.startswith("adapt.")}
        size = self.datasets[task.dataset, task.split].size
        return self._prompt(task), row.name, row.digest, adapt, self._classes(task.dataset), size

    def _prompt(self, task: PretrainTask | EvalTask) -> list[Any]:
        config = task.config
        prompt, anchor = (self.prompts.get(name, name) for name in (config.prompt, config.anchor_prompt))
        if config.prompt != "fpp":
            return [prompt, config.deep_prompts]
        return [prompt, anchor, config.deep_prompts, asdict(config.fpp), task.dataset, task.prompt_seed]

    def _evaluation(self, task: EvalTask) -> list[Any]:
        row, read = self._read(task)
        facts = self.datasets[task.dataset, task.split]
        data = [self._classes(task.dataset), facts.size, facts.digest, facts.images]
        if row.ordered and read["adapt.order"] == "file":
            data.append(facts.places)
        return [self._prompt(task), row.name, row.digest, read, task.dataset, data, VIEWS, task.seed]

    def _read(self, task: EvalTask) -> tuple[catalogue.MethodRow, dict[str, Any]]:
        """The method, and the settings that it and the columns read."""
        row = catalogue.method(task.config.method)
        reads = sum((catalogue.READ_FOR.get(column, ()) for column in task.columns), row.reads)
        return row, {key: value for key, value in task.config.flat().items() if key.startswith(reads)}

    def _classes(self, dataset: str) -> list[Any]:
        """Pretraining looks at the names of the classes only."""
        facts = self._facts(dataset)
        return [facts.group, facts.classes]

    def _facts(self, dataset: str) -> DatasetInfo:
        return next(facts for (name, _), facts in sorted(self.datasets.items()) if name == dataset)
