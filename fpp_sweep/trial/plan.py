"""The plan of a run's trials: datasets, seeds and images, the tasks that follow for each trial, and their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from fpp_sweep.space.work import Search
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.specs import DatasetInfo, DatasetSeed
from fpp_sweep.spec.tasks import EvalTask, Task, cost
from fpp_sweep.trial.posthoc import FITTED_SPLIT, LOGITS, needs_validation

DatasetKey = tuple[str, str]  # name and split of a dataset
Shards = dict[DatasetSeed, list[EvalTask]]


@dataclass(frozen=True, slots=True)
class ImageRange:
    """Images of a dataset from `start` up to, and without, `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Datasets, seeds and images that all trials of a run use."""

    datasets: Mapping[str, tuple[DatasetInfo, ...]]  # by split
    seeds: tuple[int, ...]
    shards: int | None = None  # number for each dataset and seed; None: by size
    columns: tuple[str, ...] = ()  # optional columns of the predictions that are stored
    ranges: Mapping[DatasetKey, ImageRange] = field(default_factory=dict)  # for datasets that use some of their images
    # seed -> the seed that draws the views instead; after the search, seeds draw the pretraining only
    view_seeds: Mapping[int, int] = field(default_factory=dict)
    posthoc: tuple[str, ...] = ()  # post-hoc maps
    gate: float | None = None  # largest drift of a pretraining; a trial with a larger one has collapsed

    @property
    def conformal(self) -> list[str]:
        """The requested columns of conformal sets, which are made after the tasks."""
        return [name for name in catalogue.CONFORMAL if name in self.columns]

    def datasets_by_key(self) -> dict[DatasetKey, DatasetInfo]:
        """Return the datasets of all splits by name and split."""
        by_key = {}
        for datasets in self.datasets.values():
            for dataset in datasets:
                by_key[dataset.name, dataset.split] = dataset
        return by_key

    def range_of(self, dataset: DatasetInfo) -> ImageRange:
        """Return the images of a dataset that trials use."""
        return self.ranges.get((dataset.name, dataset.split), ImageRange(0, dataset.size))

    def images(self, split: str) -> int:
        """Return the number of images of a trial on a split, times its seeds."""
        ranges = [self.range_of(dataset) for dataset in self.datasets[split]]
        return len(self.seeds) * sum(images.stop - images.start for images in ranges)

    def for_config(self, config: TrialConfig, search_seeds: tuple[int, ...]) -> Plan:
        """Return a later stage's plan for one trial: the seeds of the search if other seeds would change nothing.

        The seed that draws the views draws the order of the images, too: where it does, each seed draws its own views.
        """
        if config.draws_order:
            return replace(self, view_seeds={})
        if config.pretrains:
            return self
        return replace(self, seeds=search_seeds)

    def concurrent_trials(self, search: Search, workers: int) -> int:
        """Return how many trials run at a time: two, so that workers are busy when one ends, or as many as they need.

        Each trial offers one task per dataset, seed and shard, and there should be two for each worker.
        """
        if search.concurrency is not None:
            return search.concurrency
        tasks_per_trial = len(self.datasets[search.split]) * len(self.seeds) * (self.shards or 1)
        return max(2, math.ceil(2 * workers / tasks_per_trial))

    def tasks(self, config: TrialConfig, split: str) -> Shards:
        """Return the shards of every dataset and seed."""
        columns = {*self.columns}.difference(self.conformal)
        if self.conformal:
            columns.add(LOGITS)
        for metric in catalogue.dataset_metrics():
            columns.update(metric.columns)
        tasks = {}
        for seed in self.seeds:
            for dataset in self.datasets[split]:
                tasks[dataset.name, seed] = self._shards(config, dataset, seed, tuple(sorted(columns)))
        return tasks

    def posthoc_tasks(self, config: TrialConfig, split: str) -> Shards:
        """Return the tasks on validation that maps and conformal sets of a trial are fitted on; none: cross-fitted."""
        if needs_validation([*self.posthoc, *self.conformal], split):
            return self.tasks(config, FITTED_SPLIT)
        return {}

    def _shards(self, config: TrialConfig, dataset: DatasetInfo, seed: int, columns: tuple[str, ...]) -> list[EvalTask]:
        images = self.range_of(dataset)
        pretraining_seed = None
        if seed in self.view_seeds:
            pretraining_seed = seed
        whole = EvalTask(
            config=config,
            dataset=dataset.name,
            split=dataset.split,
            seed=self.view_seeds.get(seed, seed),
            start=images.start,
            stop=images.stop,
            columns=columns,
            pretraining_seed=pretraining_seed,
            gate=self.gate,
        )
        return whole.shards(self.shards)


def flatten(lists: Iterable[Sequence[EvalTask]]) -> list[EvalTask]:
    return list(chain.from_iterable(lists))


def with_pretrainings(evaluations: Sequence[EvalTask]) -> list[Task]:
    """Return the tasks, each after its pretraining: the trial needs the prompt, and is charged for it."""
    tasks: dict[Task, None] = {}  # in order, without duplicates
    for evaluation in evaluations:
        if evaluation.pretrain is not None:
            tasks[evaluation.pretrain] = None
        tasks[evaluation] = None
    return list(tasks)


def largest_first(plan: Plan, tasks: Sequence[EvalTask]) -> list[EvalTask]:
    """Sort tasks by size, the largest first: small tasks fill the gaps at the end."""
    sizes = {key: len(dataset.classes) for key, dataset in plan.datasets_by_key().items()}
    return sorted(tasks, key=lambda task: -cost(task, sizes[task.dataset, task.split]))
