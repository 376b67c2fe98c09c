"""One trial: cut it into tasks, have them computed, join what comes back and score it.

The one path of every command. Who computes is an executor: `trial.inline` in this process, `workers.pool` on Ray.
Nothing here loads torch, so that a trial's process starts fast and takes little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from fpp_sweep.core.images.chunks import Skipped
from fpp_sweep.core.metrics import Predictions, concatenate, score
from fpp_sweep.records.records import FINAL, SplitResult
from fpp_sweep.space.work import Search
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.spec.tasks import EvalTask, Task, cost
from fpp_sweep.statistics.block_stats import BlockStats
from fpp_sweep.trial.results import TaskResult


class Executor(Protocol):
    """Who computes tasks."""

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """Tasks with their results as they end; they are begun in the order given, those of a lower `order` first.

        Raises TaskFailed at the first that has none. To close the iterator gives up what has not begun.
        """
        ...


class StoppingPolicy:
    """Decides when each of a trial's tasks is begun, and whether the trial goes on after one has ended."""

    def ordered(self, plan: Plan, tasks: Sequence[EvalTask]) -> Sequence[EvalTask]:
        """The largest first: the smallest then fill the gaps at the end."""
        sizes = {(facts.name, facts.split): len(facts.classes) for split in plan.datasets.values() for facts in split}
        return sorted(tasks, key=lambda task: -cost(task, sizes[task.dataset, task.split]))

    def stages(self, plan: Plan, tasks: Sequence[EvalTask]) -> Sequence[Sequence[EvalTask]]:
        """The same in parts, each of which is begun when the one before is done."""
        return [self.ordered(plan, tasks)]

    def stops(self, task: Task, result: TaskResult) -> str | None:
        """Why the trial ends here, before all its tasks are done; None: it goes on."""
        return None


class TrialStopped(Exception):
    """A driver ended the trial between two tasks; what was done stays on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all trials of a run are run on."""

    datasets: Mapping[str, tuple[DatasetInfo, ...]]  # by split
    seeds: tuple[int, ...]
    shards: int | None = None  # per dataset and seed; none: by size
    columns: tuple[str, ...] = ()  # optional columns of the predictions that are kept
    # of a race: where the blocks of a dataset and split end, the last left out, as many for each
    rungs: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    # of the final stage: the seed that draws the views, for seeds that draw the pretraining only
    view_seeds: Mapping[int, int] = field(default_factory=dict)
    final_range: tuple[int, int] | None = None  # of the final stage: the images of each dataset; none: all

    def known(self) -> dict[tuple[str, str], DatasetInfo]:
        """The datasets by name and split, as keys of tasks look them up."""
        return {(facts.name, facts.split): facts for datasets in self.datasets.values() for facts in datasets}

    def image_range(self, facts: DatasetInfo, split: str) -> tuple[int, int]:
        """The images of a dataset that a trial is run on."""
        if split == FINAL and self.final_range is not None:
            return self.final_range
        return 0, facts.size

    def for_config(self, config: TrialConfig, search_seeds: tuple[int, ...]) -> Plan:
        """The plan of one trial: without a pretrained prompt, seeds that draw the pretraining only change nothing."""
        return self if config.prompt == "fpp" else replace(self, seeds=search_seeds)

    def at_once(self, search: Search, workers: int) -> int:
        """Trials at a time: two, so that the end of one does not leave workers idle, or as many as feed them all."""
        if search.concurrency is not None:
            return search.concurrency
        return max(
            2, math.ceil(2 * workers / (len(self.datasets[search.split]) * len(self.seeds) * (self.shards or 1)))
        )

    def tasks(self, config: TrialConfig, split: str) -> dict[tuple[str, int], list[EvalTask]]:
        """The shards of every (dataset, seed)."""
        columns = {*self.columns, *(name for row in catalogue.qualities() for name in row.columns)}
        return {
            (facts.name, seed): [
                shard
                for shard in EvalTask(
                    config=config,
                    dataset=facts.name,
                    split=facts.split,
                    seed=self.view_seeds.get(seed, seed),
                    start=self.image_range(facts, split)[0],
                    stop=self.image_range(facts, split)[1],
                    columns=tuple(sorted(columns)),
                    pretraining_seed=seed if seed in self.view_seeds else None,
                ).shards(self.shards, self.rungs.get((facts.name, facts.split), ()))
            ]
            for seed in self.seeds
            for facts in self.datasets[split]
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetResult:
    """A trial's predictions on one dataset with one seed."""

    facts: DatasetInfo
    seed: int
    predictions: Predictions
    prompt: bytes | None  # where one was pretrained
    skipped: tuple[Skipped, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage
    costs: Mapping[str, float] = field(default_factory=dict)  # the same, whoever asked for the work first

    @property
    def sums(self) -> BlockStats:
        return BlockStats.of_predictions(self.facts.name, self.predictions)


def run_trial(
    plan: Plan,
    config: TrialConfig,
    split: str,
    executor: Executor,
    *,
    order: int = 0,
    driver: StoppingPolicy | None = None,
) -> tuple[SplitResult, list[DatasetResult]]:
    """A trial's numbers on one split, and the predictions that they are made from."""
    driver = driver or StoppingPolicy()
    cut = plan.tasks(config, split)
    wanted = [task for tasks in cut.values() for task in tasks]
    stages = driver.stages(plan, wanted)
    evaluations = [task for stage in stages for task in stage]
    if len(evaluations) != len(wanted) or set(evaluations) != set(wanted):
        raise ValueError("a driver must give each of a trial's tasks back, once")
    total = len(with_pretrainings(evaluations))
    done: dict[Task, TaskResult] = {}
    for stage in stages:
        tasks = [task for task in with_pretrainings(stage) if task not in done]
        with closing(executor.results(tasks, order)) as results:
            for task, result in results:
                done[task] = result
                if len(done) < total and (reason := driver.stops(task, result)):
                    raise TrialStopped(reason)
    datasets = [
        _dataset_result(facts, seed, cut[facts.name, seed], done, plan.image_range(facts, split))
        for seed in plan.seeds
        for facts in plan.datasets[split]
    ]
    return summary(datasets, list(done.values())), datasets


def with_pretrainings(evaluations: Sequence[EvalTask]) -> list[Task]:
    """Pretrainings are asked for as well, so that the trial pays for them and has their prompts."""
    return list(dict.fromkeys(task for evaluation in evaluations for task in (evaluation.pretrain, evaluation) if task))


def _dataset_result(
    facts: DatasetInfo, seed: int, tasks: Sequence[EvalTask], done: Mapping[Task, TaskResult], images: tuple[int, int]
) -> DatasetResult:
    parts = [(task, done[task]) for task in tasks]
    pretrain = tasks[0].pretrain
    made = [done[pretrain]] if pretrain else []
    return DatasetResult(
        facts=facts,
        seed=seed,
        predictions=joined(parts, images[1], images[0]),
        prompt=made[0].prompt if made else None,
        skipped=tuple(sample for _, result in parts for sample in result.skipped),
        seconds=added(result.seconds for result in (*made, *(result for _, result in parts))),
        costs=added(result.spent for result in (*made, *(result for _, result in parts))),
    )


def joined(parts: Sequence[tuple[EvalTask, TaskResult]], stop: int, start: int = 0) -> Predictions:
    """The shards' predictions in order; each sample between start and stop is there once, or was skipped."""
    ordered = sorted(parts, key=lambda part: part[0].start)
    cuts = [(task.start, task.stop) for task, _ in ordered]
    if [start, *(end for _, end in cuts)] != [*(begin for begin, _ in cuts), stop]:
        raise ValueError(f"{ordered[0][0].dataset}: shards {cuts} are not its {stop - start} samples, each once")
    for task, result in ordered:
        count = len(result.skipped) + (len(result.predictions) if result.predictions else 0)
        if count != task.stop - task.start:
            raise ValueError(f"{task.dataset}: samples {task.start}..{task.stop} came back as {count}")
    shards = [result.predictions for _, result in ordered if result.predictions]
    if not shards:
        reason = ordered[0][1].skipped[0].reason
        raise InputError(f"{ordered[0][0].dataset}: none of its {stop - start} images can be read, such as {reason}")
    return concatenate(shards)


def summary(datasets: Sequence[DatasetResult], done: Sequence[TaskResult]) -> SplitResult:
    """Scores per dataset over seeds, their averages over datasets, and what it took."""
    scores: dict[int, dict[str, dict[str, float]]] = {}
    for result in datasets:
        scores.setdefault(result.seed, {})[result.facts.name] = score(result.predictions)
    by_seed = [mean(list(numbers.values())) for numbers in scores.values()]
    costs: dict[str, list[Mapping[str, float]]] = {}
    for result in datasets:
        costs.setdefault(result.facts.name, []).append(result.costs)
    return SplitResult(
        average=mean(by_seed),
        datasets={dataset: mean([numbers[dataset] for numbers in scores.values()]) for dataset in costs},
        deviation={name: statistics.stdev(numbers[name] for numbers in by_seed) for name in by_seed[0]}
        if len(by_seed) > 1
        else {},
        samples=sum(len(result.predictions) for result in datasets if result.seed == datasets[0].seed),
        seconds=added(result.seconds for result in done),
        device_seconds=math.fsum(result.held for result in done),
        features=added(result.features for result in done),
        by_seed={str(seed): numbers for seed, numbers in scores.items()} if len(scores) > 1 else {},
        costs={
            dataset: {stage: seconds / len(scores) for stage, seconds in added(stages).items()}
            for dataset, stages in costs.items()
        },
        devices=sorted({result.device for result in done if result.device}),
    )


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of every number, its unweighted mean, as the papers print it."""
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def added(times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by stage, summed."""
    total: dict[str, float] = {}
    for stages in times:
        for stage, seconds in stages.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def measured(result: SplitResult, metric: str) -> float:
    """A metric by name: an average, one dataset's (`ece/dtd`), or what the trial took."""
    name, slash, dataset = metric.partition("/")
    if not catalogue.metric(name).of_dataset:
        return result.device_seconds if name == "device_seconds" else math.fsum(result.seconds.values())
    if slash and dataset not in result.datasets:
        known = ", ".join(result.datasets)
        raise InputError(f"objective {metric!r}: the sweep has no dataset {dataset!r}; it has {known}")
    value = result.datasets[dataset][name] if slash else result.average[name]
    if not math.isfinite(value):
        raise FloatingPointError(f"{metric} is {value}")
    return value
