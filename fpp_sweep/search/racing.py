"""Racing: stop a trial after a part of its images when it is unlikely to reach the front.

All trials of a sweep run rung by rung, on the same images. After each rung a trial writes the block statistics of the
images so far to `race/<name>/` and predicts its final values from the finished trials that differ from it least: their
final values, minus their lead on the images that both have seen. The trial is stopped if a finished trial is ahead of
this prediction in every objective by more than chance explains, or if a constraint is broken by more than that. The
standard errors come from the spread of paired differences between blocks; nothing is resampled. A decision is written
to `race/<name>/decisions.json` before it takes effect, and is not taken again after a kill.
"""

from __future__ import annotations

import json
import math
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from fpp_sweep.core.metrics import concatenate
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import REQUESTED_ORIGINS, SplitResult, TrialRecord, baseline_name, measured_value
from fpp_sweep.records.texts import format_metric
from fpp_sweep.space.objectives import Constraint, Objective, goals_of, metrics_of
from fpp_sweep.space.work import Race
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import ACCURACY, Goal, sign
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.files import read_inside, write_json, written_whole
from fpp_sweep.spec.specs import DatasetInfo, DatasetSeed
from fpp_sweep.spec.tasks import BATCH, EvalTask, Task
from fpp_sweep.statistics.block_stats import (
    BLOCKWISE_METRICS,
    BlockStats,
    Numbers,
    StatsBySeed,
    block_contributions,
    calibrated_bias,
    from_bytes,
    to_bytes,
)
from fpp_sweep.statistics.bootstrap import is_near_calibration
from fpp_sweep.trial.plan import Plan, StoppingPolicy
from fpp_sweep.trial.results import TaskResult

MIN_SD = 1e-6  # points
N_NEIGHBOURS = 3  # finished trials that a prediction rests on; more or fewer saved less (benchmarks/RESULTS.md, Racing)


# --- rungs ------------------------------------------------------------------------------------------


def rung_ends(race: Race, datasets: Sequence[DatasetInfo]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the images after which each rung ends, by dataset and split; a rung ends with a whole batch.

    All datasets have the same number of rungs.
    """
    sizes = tuple(info.size for info in datasets)
    rungs: list[tuple[int, ...]] = []  # the end of each rung in each dataset
    for share in race.rungs:
        ends = []
        for size in sizes:
            batches = math.ceil(max(share * size, 1) / BATCH)
            ends.append(min(size, BATCH * batches))
        rung = tuple(ends)
        if rung != sizes and rung not in rungs:
            rungs.append(rung)
    largest = max(datasets, key=lambda info: info.size)
    if not rungs:
        raise InputError(
            f"{largest.name} has {largest.size} images in split {largest.split}, and a race needs more than {BATCH}; "
            f"raise work.limit above {BATCH}, or remove search.race",
            "search.race",
        )
    if len(race.rungs) >= largest.size:
        raise InputError(f"{len(race.rungs) + 1} rungs of {largest.size} images; give fewer", "search.race.rungs")
    ends_by_dataset = {}
    for index, info in enumerate(datasets):
        ends_by_dataset[info.name, info.split] = tuple(rung[index] for rung in rungs)
    return ends_by_dataset


def _raced_metrics(objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> list[str]:
    """Return the metrics of objectives and constraints, each once."""
    names = metrics_of(objectives)
    for constraint in constraints:
        if constraint.metric not in names:
            names.append(constraint.metric)
    return names


# --- prediction, from numbers alone -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """A metric on the images so far, as what each block adds to it."""

    by_dataset: Sequence[Numbers]  # (blocks,) each; all of them sum to the metric
    extra_variance: float = 0.0  # two pseudo-images (Agresti), which a difference on the same images counts once
    # error of a calibrated model on as many images, the mean over datasets; 0 for those that are far from calibration
    calibrated_bias: float = 0.0

    @property
    def value(self) -> float:
        total = 0.0
        for part in self.by_dataset:
            total += float(part.sum())
        return total

    def minus(self, other: Contributions) -> Contributions:
        differences = []
        for minuend, subtrahend in zip(self.by_dataset, other.by_dataset, strict=True):
            differences.append(minuend - subtrahend)
        return Contributions(differences, self.extra_variance)

    @property
    def sd(self) -> float:
        """The standard deviation of the sum, for images drawn anew; datasets are drawn independently."""
        variance = self.extra_variance
        for part in self.by_dataset:
            blocks = len(part)
            variance += float(np.square(part - part.mean()).sum()) * blocks / max(blocks - 1, 1)
        return max(math.sqrt(variance), MIN_SD)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A trial's final value of a metric, as predicted."""

    value: float
    sd: float


def extrapolate_final(
    trial: Contributions, finished: Sequence[Contributions], finals: Numbers, share_left: float
) -> Prediction:
    """Predict a trial's final value from the finished trials most like it.

    `finals` are the final values of the finished trials; the trial has not run on `share_left` of the images. A
    calibration error falls with the number of images, to nothing for a calibrated model and not at all far from
    calibration: the prediction subtracts what a calibrated model would lose, and is uncertain by half of it.
    """
    leads = []
    for rival in finished:
        leads.append(rival.minus(trial))
    difference_sd = np.array([lead.sd for lead in leads])
    nearest = np.argsort(difference_sd, kind="stable")[:N_NEIGHBOURS]
    weights = difference_sd[nearest] ** -2.0  # inverse variance
    weights /= weights.sum()
    lead = _weighted_sum([leads[index] for index in nearest], weights)
    # the bias falls with the root of the number of images
    removed_share = 1 - math.sqrt(1 - share_left)
    own_bias = removed_share * trial.calibrated_bias
    bias_of_finished = removed_share * float(weights @ [finished[index].calibrated_bias for index in nearest])
    value = float(weights @ finals[nearest]) - lead.value - (own_bias - bias_of_finished)
    sd = math.hypot(math.sqrt(share_left) * lead.sd, own_bias / 2, bias_of_finished / 2)
    return Prediction(value, max(sd, MIN_SD))


def _weighted_sum(leads: Sequence[Contributions], weights: Numbers) -> Contributions:
    """Return the sum of leads over one trial, each times its weight; all have the extra variance of the same images."""
    by_dataset = []
    for dataset in range(len(leads[0].by_dataset)):
        total = weights[0] * leads[0].by_dataset[dataset]
        for lead, weight in zip(leads[1:], weights[1:], strict=True):
            total = total + weight * lead.by_dataset[dataset]
        by_dataset.append(total)
    return Contributions(by_dataset, leads[0].extra_variance)


def find_dominating(
    predictions: Sequence[Prediction], finals: Numbers, goals: Sequence[Goal], min_deviations: float
) -> tuple[int, list[float]] | None:
    """Return the finished trial that is ahead most clearly, and its leads by objective; None if none is clearly ahead.

    `finals` is (trials, objectives). A trial is clearly ahead if it leads by `min_deviations` standard deviations in
    every objective.
    """
    if not len(finals):
        return None
    predicted = np.array([prediction.value for prediction in predictions])
    deviations = np.array([prediction.sd for prediction in predictions])
    signs = np.array([sign(goal) for goal in goals])
    leads = (finals - predicted) * signs
    clearness = (leads / deviations).min(axis=1)
    best = int(clearness.argmax())
    if not clearness[best] > min_deviations:  # also if a prediction is not a number
        return None
    return best, leads[best].tolist()


# --- metrics at a rung ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RungMetrics:
    """A trial's metrics on the images up to a rung."""

    images: Mapping[str, int]  # by dataset
    digests: tuple[tuple[str, bytes], ...]  # digests of the images, by dataset
    metrics: Mapping[str, Contributions]

    @classmethod
    def of(cls, table: StatsBySeed, metrics: Sequence[str]) -> RungMetrics:
        by_dataset: dict[str, list[BlockStats]] = {}  # by seed
        for dataset, seed in sorted(table):
            by_dataset.setdefault(dataset, []).append(table[dataset, seed])
        images = {}
        digests = []
        for dataset, stats_of_seeds in by_dataset.items():
            images[dataset] = stats_of_seeds[0].total
            digests.append((dataset, b"".join(stats.digests.tobytes() for stats in stats_of_seeds)))
        contributions = {metric: _contributions(metric, by_dataset) for metric in metrics}
        return cls(images, tuple(digests), contributions)


def _contributions(metric: str, by_dataset: Mapping[str, Sequence[BlockStats]]) -> Contributions:
    """Return the mean over seeds, which all trials share, and over datasets unless the metric names one."""
    parts = catalogue.parts_of(metric)
    datasets = list(by_dataset)
    if parts.dataset:
        datasets = [parts.dataset]
    contributions = []
    points_per_image = 0.0
    calibrated_biases = []
    for dataset in datasets:
        stats_of_seeds = by_dataset[dataset]
        over_seeds = np.mean([block_contributions(parts.stem, stats) for stats in stats_of_seeds], axis=0)
        contributions.append(over_seeds / len(datasets))
        calibrated_biases.append(_bias_near_calibration(parts.stem, float(over_seeds.sum()), stats_of_seeds))
        if parts.stem == ACCURACY:
            points_per_image = max(points_per_image, 100 / stats_of_seeds[0].total / len(datasets))
    return Contributions(contributions, 2 * points_per_image**2, float(np.mean(calibrated_biases)))


def _bias_near_calibration(metric: str, value: float, stats_of_seeds: Sequence[BlockStats]) -> float:
    """Return the calibration error of a calibrated model; 0 for other metrics, and far from calibration."""
    if not BLOCKWISE_METRICS[metric].calibration_error:
        return 0.0
    bias = float(np.mean([calibrated_bias(metric, stats) for stats in stats_of_seeds]))
    if is_near_calibration(metric, value, bias):
        return bias
    return 0.0


@lru_cache(maxsize=4096)  # every trial reads the files of those that finished before it
def _read_rung(file: Path, stamp: int, metrics: tuple[str, ...]) -> RungMetrics:
    """Read a file of block statistics once for each `stamp`, its time of change; ValueError if it is damaged."""
    return RungMetrics.of(from_bytes(read_inside(file.parent, file)), metrics)


# --- a trial in its race ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRules:
    """The rules of a sweep's race, the same for all trials."""

    race: Race
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    split: str

    @property
    def min_deviations(self) -> float:
        """Standard deviations that a lead must have."""
        return NormalDist().inv_cdf(self.race.confidence)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(_raced_metrics(self.objectives, self.constraints))


@dataclass(frozen=True, slots=True, kw_only=True)
class RungDecision:
    """The decision of a trial after a rung."""

    share: float = 0.0  # share of the images that the trial has seen
    reason: str | None = None  # why it was stopped; none: it goes on
    rival: str = ""  # the trial that is ahead
    leads: Sequence[float] = ()  # lead of the rival over the prediction, by objective
    deviations: Sequence[float] = ()  # standard deviation of the prediction, by objective
    estimate: Sequence[float] | None = None  # predicted objectives on all images
    constraints: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FinishedTrial:
    """Another trial or a baseline, and its metrics at the same rung."""

    record: TrialRecord
    rung: RungMetrics


class RacePolicy(StoppingPolicy):
    """The policy that runs a trial rung by rung, and decides after each rung if the trial goes on."""

    def __init__(self, rules: RaceRules, folder: SweepFolder, record: TrialRecord) -> None:
        self._rules = rules
        self._folder = folder
        self._record = record
        self._decisions_file = folder.race(record.name) / "decisions.json"
        self._decisions = self._read_decisions()
        self._results: dict[EvalTask, TaskResult] = {}  # so far
        self._stages: list[list[EvalTask]] = []  # tasks by rung; the last stage ends with the trial
        self._sizes: dict[str, int] = {}  # images by dataset
        self._rung = 0  # number of rungs that have ended
        self._total_images = 0  # over all tasks
        self._last_decision: RungDecision | None = None

    def stages(self, plan: Plan, tasks: Sequence[EvalTask]) -> Sequence[Sequence[EvalTask]]:
        """Return the tasks by rung, over all datasets and seeds."""
        by_rung: dict[int, list[EvalTask]] = {}
        for task in self.ordered(plan, tasks):
            ends = plan.rung_ends[task.dataset, task.split]
            rung = bisect_left(ends, task.stop)
            by_rung.setdefault(rung, []).append(task)
        self._total_images = _image_count(tasks)
        self._sizes = {info.name: info.size for info in plan.datasets[self._rules.split]}
        self._stages = [by_rung[rung] for rung in sorted(by_rung)]
        return self._stages

    def reason_to_stop(self, task: Task, result: TaskResult) -> str | None:
        """Return why the trial is stopped; None if it goes on."""
        if isinstance(task, EvalTask):
            self._results[task] = result
        is_last_stage = self._rung + 1 >= len(self._stages)
        if is_last_stage or any(task not in self._results for task in self._stages[self._rung]):
            return None
        self._rung += 1
        try:
            self._last_decision = self._end_rung()
        except OSError as error:  # the disk failed, which says nothing about the trial
            raise MachineError.of(error) from error
        return self._last_decision.reason

    def with_estimate(self, record: TrialRecord) -> TrialRecord:
        """Return the record of a stopped trial with its estimate; unchanged if the user stopped the trial."""
        decision = self._last_decision
        if decision is None or decision.reason is None:
            return record
        return replace(record, estimate=decision.estimate, fidelity=decision.share, constraints=decision.constraints)

    def _end_rung(self) -> RungDecision:
        """Write the rung's block statistics; return the decision of an earlier process, else decide and write."""
        table = self._table()
        if table is not None:  # other trials are compared with this one
            with written_whole(self._rung_file(self._record.name)) as partial:
                partial.write_bytes(to_bytes(table))
        share = _image_count(self._results) / self._total_images
        if self._record.estimate is not None:  # stopped before, and continued at the user's request
            return RungDecision(share=share)
        if self._rung <= len(self._decisions):
            return self._decisions[self._rung - 1]
        decision = self._decide(table, share)
        self._decisions.append(decision)
        rows = [asdict(row) for row in self._decisions]
        write_json(self._decisions_file, {"config": self._record.key, "decisions": rows})
        return decision

    def _decide(self, table: StatsBySeed | None, share: float) -> RungDecision:
        """Return the decision after a share of the images; baselines and requested settings are never stopped."""
        may_be_stopped = self._record.kind == "trial" and self._record.origin not in REQUESTED_ORIGINS
        if table is None or not may_be_stopped:
            return RungDecision(share=share)
        return self._compared(RungMetrics.of(table, self._rules.metrics), share)

    def _read_decisions(self) -> list[RungDecision]:
        """Return the decisions of an earlier process; none if the file is damaged or of other settings."""
        try:
            document = json.loads(read_inside(self._decisions_file.parent, self._decisions_file))
            if document["config"] == self._record.key:
                return [RungDecision(**row) for row in document["decisions"]]
        except (OSError, ValueError, TypeError, KeyError):
            pass
        shutil.rmtree(self._decisions_file.parent, ignore_errors=True)
        return []

    def _table(self) -> StatsBySeed | None:
        """Return the block statistics so far by dataset and seed; None if a dataset has no readable image."""
        parts: dict[DatasetSeed, list[Any]] = {}
        for task in sorted(self._results, key=lambda task: (task.dataset, task.prompt_seed, task.start)):
            shards = parts.setdefault((task.dataset, task.prompt_seed), [])
            shard = self._results[task].read_predictions()
            if shard is not None:
                shards.append(shard)
        if not all(parts.values()):
            return None
        table = {}
        for (dataset, seed), shards in parts.items():
            table[dataset, seed] = BlockStats.of_predictions(dataset, concatenate(shards))
        return table

    def _rung_file(self, name: str) -> Path:
        return self._folder.race(name) / f"rung-{self._rung}.npz"

    # --- the decision

    def _compared(self, own_rung: RungMetrics, share: float) -> RungDecision:
        """Return the decision by comparison with the finished trials, with the trial's estimate if it stops."""
        going_on = RungDecision(share=share)
        finished = self._finished_at(own_rung)
        trials = [rival.record for rival in finished if rival.record.kind == "trial"]
        if len(trials) < self._rules.race.reserve:
            return going_on
        predictions = self._predictions(own_rung, finished)
        violations = {}
        for constraint in self._rules.constraints:
            violations[constraint.name] = self._violation(constraint, predictions[constraint.metric])
        feasible = [record for record in trials if record.feasible]
        decision = self._stop_if_dominated(predictions, feasible)
        if decision is None:
            decision = self._stop_if_infeasible(violations)
        if decision is None:
            return going_on
        return replace(
            decision,
            share=share,
            reason=f"{decision.reason}, after {share:.0%} of the images",
            estimate=[predictions[metric].value for metric in metrics_of(self._rules.objectives)],
            constraints={name: violation.value for name, violation in violations.items()},
        )

    def _predictions(self, own_rung: RungMetrics, finished: Sequence[FinishedTrial]) -> dict[str, Prediction]:
        """Return the trial's predicted final value of each metric."""
        shares = [images / self._sizes[name] for name, images in own_rung.images.items()]
        predictions = {}
        for metric in self._rules.metrics:
            finals = []
            rivals = []
            for rival in finished:
                finals.append(self._final(rival.record, metric))
                rivals.append(rival.rung.metrics[metric])
            predictions[metric] = extrapolate_final(own_rung.metrics[metric], rivals, np.array(finals), 1 - min(shares))
        return predictions

    def _stop_if_dominated(
        self, predictions: Mapping[str, Prediction], rivals: Sequence[TrialRecord]
    ) -> RungDecision | None:
        metrics = metrics_of(self._rules.objectives)
        goals = goals_of(self._rules.objectives)
        finals = []
        for record in rivals:
            finals.append([self._final(record, metric) for metric in metrics])
        own_predictions = [predictions[metric] for metric in metrics]
        ahead = find_dominating(own_predictions, np.array(finals), goals, self._rules.min_deviations)
        if ahead is None:
            return None
        index, leads = ahead
        name = rivals[index].name
        parts = []
        for metric, lead, prediction in zip(metrics, leads, own_predictions, strict=True):
            half_width = self._rules.min_deviations * prediction.sd
            parts.append(f"{format_metric(metric, lead)} ± {format_metric(metric, half_width)} in {metric}")
        return RungDecision(
            reason=f"beaten by {name} by {' and '.join(parts)}",
            rival=name,
            leads=leads,
            deviations=[prediction.sd for prediction in own_predictions],
        )

    def _stop_if_infeasible(self, violations: Mapping[str, Prediction]) -> RungDecision | None:
        parts = []
        for name, violation in violations.items():
            half_width = self._rules.min_deviations * violation.sd
            if violation.value > half_width:
                parts.append(f"breaks {name} by {violation.value:.2f} ± {half_width:.2f}")
        if not parts:
            return None
        return RungDecision(reason=" and ".join(parts))

    def _violation(self, constraint: Constraint, prediction: Prediction) -> Prediction:
        """Return by how much the trial will break a constraint.

        Until the constraint's baseline has finished the prediction is infinitely uncertain, so that it stops no trial.
        """
        baseline_value = None
        if constraint.baseline is not None:
            record = self._folder.trial(baseline_name(constraint.baseline))
            if record.state != "complete":
                return Prediction(0.0, math.inf)
            baseline_value = self._final(record, constraint.metric)
        return Prediction(constraint.violation(prediction.value, baseline_value), prediction.sd)

    def _finished_at(self, own_rung: RungMetrics) -> list[FinishedTrial]:
        """Return the finished trials and baselines that saw the same images up to this rung."""
        finished = []
        for file in self._folder.trial_files():
            name = file.stem
            if name == self._record.name:
                continue
            rung = self._rung_of(name)
            if rung is None or rung.digests != own_rung.digests:
                continue
            with suppress(InputError):  # a damaged record, which --resume names
                record = self._folder.trial(name)
                if record.state == "complete":
                    finished.append(FinishedTrial(record, rung))
        return finished

    def _final(self, record: TrialRecord, metric: str) -> float:
        return measured_value(record.results[self._rules.split], metric)

    def _rung_of(self, name: str) -> RungMetrics | None:
        """Return a trial's metrics at the present rung; None if it stopped before, or its file is damaged."""
        file = self._rung_file(name)
        try:
            return _read_rung(file, file.stat().st_mtime_ns, self._rules.metrics)
        except (FileNotFoundError, ValueError):
            return None


# --- what a race saves ------------------------------------------------------------------------------


def savings_text(records: Sequence[TrialRecord], split: str) -> str:
    """Return a line that says how much work early stopping has saved."""
    finished = []
    stopped = []
    spent = 0.0
    for record in records:
        if record.kind == "trial" and split in record.results:
            finished.append(record)
        if record.state == "stopped" and record.estimate is not None:
            stopped.append(record)
        spent += record.worker_seconds
    if not finished or not stopped:
        return "no trial was stopped early; nothing was saved"
    skipped = math.fsum(1 - record.fidelity for record in stopped)  # in trials
    adaptation_seconds = [_adaptation_seconds(record.results[split]) for record in finished]
    saved_seconds = skipped * fmean(adaptation_seconds)
    ended = len(finished) + len(stopped)
    share_of_all = saved_seconds / max(spent + saved_seconds, 1e-9)
    return (
        f"{len(stopped)} of {ended} trials stopped early; that saved {skipped / ended:.0%} of adaptation, "
        f"{share_of_all:.0%} of all worker time (pretraining is not saved)"
    )


def _image_count(tasks: Iterable[EvalTask]) -> int:
    """Return the number of images over all tasks."""
    count = 0
    for task in tasks:
        count += task.stop - task.start
    return count


def _adaptation_seconds(result: SplitResult) -> float:
    """Return the seconds of adaptation over all datasets and seeds."""
    seconds = math.fsum(stages.get("adapt", 0.0) for stages in result.costs.values())
    return seconds * max(1, len(result.by_seed))
