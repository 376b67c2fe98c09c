"""One trial: cut it into tasks, have them computed, join the results and score them.

Every command runs trials this way. A `Plan` has the datasets, seeds and images. An executor computes the tasks:
`trial.worker` in this process, or `workers.actors` on Ray. This module does not load torch, so that a trial's
process starts fast and takes little memory.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from fpp_sweep.core.metrics import Predictions, concatenate, score
from fpp_sweep.records.records import SplitResult
from fpp_sweep.space.work import Search
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import safetensors_metadata
from fpp_sweep.spec.specs import DatasetInfo, DatasetSeed
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task, cost
from fpp_sweep.spec.validation import MAX_NUMBER, at_key
from fpp_sweep.trial.posthoc import (
    FITTED_SPLIT,
    LOGITS,
    MapFit,
    PredictionsBySeed,
    map_predictions,
    needs_validation,
    with_conformal_sets,
)
from fpp_sweep.trial.results import TaskResult

DatasetKey = tuple[str, str]  # name and split of a dataset
Shards = dict[DatasetSeed, list[EvalTask]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Datasets, seeds and images that all trials of a run use."""

    datasets: Mapping[str, tuple[DatasetInfo, ...]]  # by split
    seeds: tuple[int, ...]
    shards: int | None = None  # number for each dataset and seed; None: by size
    columns: tuple[str, ...] = ()  # optional columns of the predictions that are stored
    ranges: Mapping[DatasetKey, range] = field(default_factory=dict)  # for datasets that use some of their images
    # seed -> the seed that draws the views instead; after the search, seeds draw the pretraining only
    view_seeds: Mapping[int, int] = field(default_factory=dict)
    posthoc: tuple[str, ...] = ()  # post-hoc maps
    gate: float | None = None  # largest drift of a pretraining; a trial with a larger one has collapsed
    later: Mapping[str, Plan] = field(default_factory=dict)  # plans of the final stage and the test split, by split

    @property
    def conformal(self) -> list[str]:
        """The requested columns of conformal sets, which are made after the tasks."""
        return [name for name in catalogue.CONFORMAL if name in self.columns]

    def datasets_by_key(self) -> dict[DatasetKey, DatasetInfo]:
        """Return the datasets of all splits by name and split, later stages included."""
        by_key = {}
        for datasets in self.datasets.values():
            for dataset in datasets:
                by_key[dataset.name, dataset.split] = dataset
        for plan in self.later.values():
            by_key |= plan.datasets_by_key()
        return by_key

    def range_of(self, dataset: DatasetInfo) -> range:
        """Return the images of a dataset that trials use."""
        return self.ranges.get((dataset.name, dataset.split), range(dataset.size))

    def images(self, split: str) -> int:
        """Return the number of images of a trial on a split, times its seeds."""
        if split in self.later:
            return self.later[split].images(split)
        return len(self.seeds) * sum(len(self.range_of(dataset)) for dataset in self.datasets[split])

    def on(self, split: str, config: TrialConfig) -> Plan:
        """Return the plan of a trial on a split: in a later stage with the same seeds if others would change nothing.

        The seed that draws the views draws the order of the images, too: where it does, each seed draws its own views.
        """
        if split not in self.later:
            return self
        later = self.later[split]
        if config.draws_order:
            return replace(later, view_seeds={})
        if config.pretrains:
            return later
        return replace(later, seeds=self.seeds)

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


ValuesByName = dict[str, float]  # names of metrics or of stages
ScoresBySeed = dict[int, dict[str, ValuesByName]]  # scores by seed and dataset


class Executor(Protocol):
    """Computes tasks."""

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """Yield tasks with their results as they end; raise TaskFailed at the first failure.

        Tasks begin in the given order, those of a trial with a lower `order` first. Closing the generator cancels the
        tasks that have not begun.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetResult:
    """A trial's predictions on one dataset with one seed."""

    dataset: DatasetInfo
    seed: int
    predictions: Predictions
    prompt: bytes | None  # a safetensors file, if a prompt was pretrained
    costs: Mapping[str, float] = field(default_factory=dict)  # seconds by stage, cached results included
    mapped: Mapping[str, Predictions] = field(default_factory=dict)  # by post-hoc map
    fits: tuple[MapFit, ...] = ()  # fits of the post-hoc maps
    fitted_on: Predictions | None = None  # predictions of the validation split, if a post-hoc map was fitted on them

    @property
    def drift(self) -> float:
        """Drift of the pretraining; 0 for a prompt that was not pretrained."""
        return drift_of(self.prompt)


class Collapsed(Exception):
    """End of a trial whose pretraining has a drift above the plan's gate."""

    def __init__(self, task: Task, drift: float, gate: float) -> None:
        super().__init__(f"{task.title}: drift {drift:.3g} above search.gate ({gate:g})")
        self.drift = drift


def drift_of(prompt: bytes | None) -> float:
    """Return the drift in the metadata of a pretrained prompt; 0 if it has none."""
    if prompt is None:
        return 0.0
    return float(safetensors_metadata(prompt).get("drift", 0.0))


def run_trial(
    plan: Plan, config: TrialConfig, split: str, executor: Executor, *, order: int = 0
) -> tuple[SplitResult, list[DatasetResult]]:
    """Return a trial's numbers on one split, and the predictions that they are computed from.

    `order` is the trial's rank among those that run: tasks of lower ranks begin first. If the plan has a gate, all
    pretrainings run before the first evaluation; raise Collapsed if one has a larger drift.
    """
    shards = plan.tasks(config, split)
    done: dict[Task, TaskResult] = {}
    if plan.gate is not None and config.pretrains:
        done = _run_pretrainings(flatten(shards.values()), plan.gate, executor, order)
    posthoc_tasks = plan.posthoc_tasks(config, split)
    for evaluations in (largest_first(plan, flatten(shards.values())), flatten(posthoc_tasks.values())):
        tasks = [task for task in with_pretrainings(evaluations) if task not in done]
        done |= _run_tasks(tasks, executor, order)
    datasets = []
    for seed in plan.seeds:
        for dataset in plan.datasets[split]:
            images = plan.range_of(dataset)
            datasets.append(_dataset_result(dataset, seed, shards[dataset.name, seed], done, images))
    if plan.posthoc or plan.conformal:
        validation = _predictions_of(plan, FITTED_SPLIT, posthoc_tasks, done) if posthoc_tasks else None
        datasets = with_maps(plan.posthoc, plan.conformal, datasets, validation)
    return summarize(datasets, list(done.values())), datasets


def _run_tasks(tasks: Sequence[Task], executor: Executor, order: int) -> dict[Task, TaskResult]:
    with closing(executor.results(tasks, order)) as results:
        return dict(results)


def _run_pretrainings(
    evaluations: Sequence[EvalTask], gate: float, executor: Executor, order: int
) -> dict[Task, TaskResult]:
    """Return the results of all pretrainings; raise Collapsed at the first one that has collapsed.

    The order of the tasks, and not that in which they end, decides the drift that the sampler learns.
    """
    tasks = [task for task in with_pretrainings(evaluations) if isinstance(task, PretrainTask)]
    done: dict[Task, TaskResult] = {}
    unchecked = deque(tasks)
    with closing(executor.results(tasks, order)) as results:
        for task, result in results:
            done[task] = result
            while unchecked and unchecked[0] in done:
                first = unchecked.popleft()
                drift = drift_of(done[first].prompt)
                if drift > gate:
                    raise Collapsed(first, drift, gate)
    return done


def with_maps(
    maps: Sequence[str],
    conformal: Sequence[str],
    datasets: Sequence[DatasetResult],
    validation: PredictionsBySeed | None,
) -> list[DatasetResult]:
    """Return the results with conformal sets, with their predictions after each post-hoc map, and the maps' fits."""
    measured = {(result.dataset.name, result.seed): result.predictions for result in datasets}
    results = []
    for result in datasets:
        key = (result.dataset.name, result.seed)
        fitted_on = None if validation is None else validation[key]
        mapped, fits = {}, []
        for name in maps:
            mapped[name], fit = map_predictions(name, key, measured, validation)
            if fit is not None:
                fits.append(fit)
        predictions = with_conformal_sets(conformal, result.dataset.name, result.predictions, fitted_on)
        results.append(replace(result, predictions=predictions, mapped=mapped, fits=tuple(fits), fitted_on=fitted_on))
    return results


def _predictions_of(
    plan: Plan, split: str, shards: Shards, done: Mapping[Task, TaskResult]
) -> dict[DatasetSeed, Predictions]:
    """Return the joined predictions of each dataset and seed."""
    ranges = {dataset.name: plan.range_of(dataset) for dataset in plan.datasets[split]}
    predictions = {}
    for (dataset, seed), tasks in shards.items():
        evaluations = [(task, done[task]) for task in tasks]
        predictions[dataset, seed] = join_shards(evaluations, ranges[dataset])
    return predictions


def _dataset_result(
    dataset: DatasetInfo, seed: int, shards: Sequence[EvalTask], done: Mapping[Task, TaskResult], images: range
) -> DatasetResult:
    costs = []  # seconds by stage, of each task
    prompt = None
    if shards[0].pretrain is not None:
        pretraining = done[shards[0].pretrain]
        prompt = pretraining.prompt
        costs.append(pretraining.spent)
    evaluations = []
    for task in shards:
        result = done[task]
        evaluations.append((task, result))
        costs.append(result.spent)
    return DatasetResult(
        dataset=dataset,
        seed=seed,
        predictions=join_shards(evaluations, images),
        prompt=prompt,
        costs=sum_by_stage(costs),
    )


def join_shards(shards: Sequence[tuple[EvalTask, TaskResult]], images: range) -> Predictions:
    """Return the predictions of all shards in order; raise ValueError if there are too few for the images."""
    ordered = sorted(shards, key=lambda shard: shard[0].start)
    predictions = concatenate([result.read_predictions() for _, result in ordered])
    if len(predictions) != len(images):  # a sample that came twice is noticed by `Predictions`
        raise ValueError(f"{ordered[0][0].dataset}: {len(predictions)} predictions of {len(images)} samples")
    return predictions


def summarize(datasets: Sequence[DatasetResult], done: Sequence[TaskResult]) -> SplitResult:
    """Return a trial's scores, their averages and its costs; `done` are the results of all its tasks."""
    scores: ScoresBySeed = {}
    images_by_seed: dict[int, int] = {}
    costs: dict[str, list[Mapping[str, float]]] = {}  # by dataset, for each seed
    for result in datasets:
        name, seed = result.dataset.name, result.seed
        with at_key(name):
            scores.setdefault(seed, {})[name] = scores_of(result)
        images_by_seed[seed] = images_by_seed.get(seed, 0) + len(result.predictions)
        costs.setdefault(name, []).append(result.costs)
    averages = [mean(list(by_dataset.values())) for by_dataset in scores.values()]  # over datasets, for each seed
    by_seed = {}
    deviation: ValuesByName = {}
    if len(scores) > 1:
        by_seed = {str(seed): by_dataset for seed, by_dataset in scores.items()}
        deviation = {name: statistics.stdev([row[name] for row in averages]) for name in averages[0]}
    fits = chain.from_iterable(result.fits for result in datasets)
    return SplitResult(
        average=mean(averages),
        datasets=_mean_over_seeds(scores, costs),
        deviation=deviation,
        samples=images_by_seed[datasets[0].seed],  # every seed has the same images
        seconds=sum_by_stage([result.seconds for result in done]),
        worker_seconds=math.fsum(result.worker_seconds for result in done),
        features=sum_by_stage([result.features for result in done]),
        by_seed=by_seed,
        notes=[fit.sentence for fit in fits if fit.problem],
        costs={name: mean(of_seeds) for name, of_seeds in costs.items()},
    )


def _mean_over_seeds(scores_by_seed: ScoresBySeed, datasets: Iterable[str]) -> dict[str, ValuesByName]:
    """Return the mean scores of each dataset."""
    means = {}
    for name in datasets:
        means[name] = mean([by_dataset[name] for by_dataset in scores_by_seed.values()])
    return means


def scores_of(result: DatasetResult) -> ValuesByName:
    """Return all metrics of a dataset, and those after each post-hoc map as `ece@temperature_val`.

    Accuracies after maps are left out, as maps do not change them.
    """
    scores = score(result.predictions)
    for map_name, predictions in result.mapped.items():
        for metric, value in score(predictions).items():
            if metric not in catalogue.ACCURACIES:
                scores[f"{metric}@{map_name}"] = value
    for metric, value in scores.items():
        if not abs(value) <= MAX_NUMBER:  # a record with it could not be read
            raise InputError(f"metric {metric} is {value:g}, beyond {MAX_NUMBER:g}; return a smaller number")
    return scores


def mean(rows: Sequence[Mapping[str, float]]) -> ValuesByName:
    """Return the unweighted mean of every number over the rows, as the papers print it."""
    means = {}
    for name in rows[0]:
        means[name] = math.fsum([row[name] for row in rows]) / len(rows)
    return means


def sum_by_stage(rows: Iterable[Mapping[str, float]]) -> ValuesByName:
    """Return the seconds of each stage, summed over the rows."""
    totals: dict[str, float] = {}
    for seconds_by_stage in rows:
        for stage, seconds in seconds_by_stage.items():
            totals[stage] = totals.get(stage, 0.0) + seconds
    return totals
