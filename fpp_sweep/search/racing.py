"""Racing: a trial is stopped after a part of its images where all of them, by what is known, will not do.

All trials of a sweep run block by block, the same blocks of all datasets for all. After each block a trial leaves the
sums of what it has seen in `race/<name>/`, and is compared with trials that have finished: they have seen the same
images, so that differences are paired, and what they came to on all images is what it is expected to come to, less
those differences. What it decides is written there before anybody acts on it, and is not decided again.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from fpp_sweep.core.metrics import concatenate
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_metric
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.work import Race
from fpp_sweep.spec.catalogue import Goal, sign
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.files import write_json, written_whole
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.spec.tasks import BATCH, EvalTask, Task
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, BlockStats, Numbers, from_bytes, to_bytes
from fpp_sweep.statistics.old_bootstrap import BootstrapSamples, averaged, resampled, stacked
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.trial import Plan, StoppingPolicy, measured

DRAWS = 200
LEAST_SD = 1e-6
NEAREST = 3  # finished trials that say what another will come to
NEVER_STOPPED = ("point", "code", "paper")  # origins of trials that somebody asked for by their values


# --- what is decided, of numbers alone --------------------------------------------------------------


def expected(row: BootstrapSamples, known: Numbers, left: float, nearest: int = NEAREST) -> tuple[float, float]:
    """What the first trial's value on all images will be, and its standard deviation.

    The others have finished, and `known` are their values; of the nearest ones each says its own, less what it is ahead
    on the images that both have seen. `left` is the share that the first has not seen: the rest is no matter of chance.
    """
    precise = np.maximum(row.against(0)[1][1:], LEAST_SD) ** -2
    near = np.argsort(-precise, kind="stable")[:nearest]
    shares = precise[near] / precise[near].sum()
    values, draws = (np.stack([each[0], shares @ each[1 + near]]) for each in (row.values, row.draws))
    gap = BootstrapSamples(values, draws, row.image).difference(1, 0)
    return float(shares @ known[near]) - gap.value, max(math.sqrt(left) * gap.sd, LEAST_SD)


def beaten(
    own: Sequence[tuple[float, float]], others: Numbers, goals: Sequence[Goal], least: float
) -> tuple[int, list[float]] | None:
    """Which of the others, (trials, objectives), is ahead most clearly of what is expected, and by how much in each.

    One must be ahead in every objective by so many standard deviations.
    """
    if not len(others):
        return None
    gains = (others - [value for value, _ in own]) * [sign(goal) for goal in goals]
    clearness = (gains / [sd for _, sd in own]).min(axis=1)
    best = int(clearness.argmax())
    return (best, gains[best].tolist()) if clearness[best] > least else None


# --- blocks -----------------------------------------------------------------------------------------


def rungs(race: Race, datasets: Sequence[DatasetInfo]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Where the blocks of each dataset end: whole batches, and one at least; the same number for all."""
    cuts = [
        tuple(min(facts.size, BATCH * math.ceil(max(share * facts.size, 1) / BATCH)) for facts in datasets)
        for share in race.rungs
    ]
    whole = tuple(facts.size for facts in datasets)
    kept = [cut for cut in dict.fromkeys(cuts) if cut != whole]
    most, name = max((facts.size, facts.name) for facts in datasets)
    if not kept:
        told = f"{name} has {most} images in split {datasets[0].split}, which is one block"
        raise InputError(f"{told}; a race needs two, of {BATCH} images: raise work.limit, or leave it", "search.race")
    if len(race.rungs) >= most:
        raise InputError(f"{len(race.rungs) + 1} blocks of {most} images; ask for fewer", "search.race.rungs")
    return {(facts.name, facts.split): ends for facts, ends in zip(datasets, zip(*kept, strict=True), strict=True)}


def require_additive(objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> None:
    """A part of the images must say something of the metric."""
    for metric in [goal.metric for goals in (objectives, constraints) for goal in goals]:
        if metric.partition("/")[0] not in BLOCKWISE_METRICS:
            problem = f"{metric} of a part of the images says nothing of {metric} of all"
            raise InputError(f"{problem}; race with {', '.join(BLOCKWISE_METRICS)}, or not", "search.race")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A trial's metrics on its first blocks, by dataset: of all images, then of every draw."""

    images: tuple[tuple[str, bytes, int], ...]  # which ones, and how many: by dataset
    values: Mapping[str, Mapping[str, Numbers]]


@lru_cache(maxsize=4096)  # every trial looks at those that ended before
def _seen(file: Path, at: int, split: str, metrics: tuple[str, ...]) -> Seen:
    """ValueError if that is no file of sums."""
    seeds: dict[str, list[BlockStats]] = {}
    for (dataset, _), one in sorted(from_bytes(file.read_bytes()).items(), key=lambda item: item[0]):
        seeds.setdefault(dataset, []).append(one)
    stems = sorted({metric.partition("/")[0] for metric in metrics})
    images = [(name, b"".join(one.digests.tobytes() for one in given), given[0].total) for name, given in seeds.items()]
    return Seen(tuple(images), {name: _over_seeds(name, split, given, stems) for name, given in seeds.items()})


def _over_seeds(dataset: str, split: str, seeds: Sequence[BlockStats], metrics: Sequence[str]) -> dict[str, Numbers]:
    """The mean over seeds, which are not drawn: all trials have the same, and have seen all of them."""
    rows = [resampled(dataset, split, [one], metrics, DRAWS) for one in seeds]
    return {metric: np.mean([row[metric] for row in rows], axis=0) for metric in metrics}


def together(trials: Sequence[Seen], metrics: Sequence[str]) -> dict[str, BootstrapSamples]:
    """Metrics of trials that have seen the same images, by name: averages, or of one dataset."""
    counts = {dataset: images for dataset, _, images in trials[0].images}
    datasets = {name: stacked([trial.values[name] for trial in trials], count) for name, count in counts.items()}
    average = averaged(list(datasets.values()))
    split = {metric: metric.partition("/") for metric in metrics}
    return {metric: (datasets[name] if name else average)[stem] for metric, (stem, _, name) in split.items()}


# --- a trial in its race ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all trials of a sweep race by."""

    race: Race
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    split: str

    @property
    def least(self) -> float:
        """How many standard deviations make a difference."""
        return NormalDist().inv_cdf(self.race.confidence)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(goal.metric for goals in (self.objectives, self.constraints) for goal in goals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a trial decided after a block."""

    share: float = 0.0  # of its images, so far
    reason: str | None = None  # why it was stopped there
    against: str = ""  # the trial that beats it
    gains: Sequence[float] = ()  # of that one, by objective, over what is expected of this
    deviations: Sequence[float] = ()  # of what is expected
    estimate: Sequence[float] | None = None  # of its own objectives on all images
    constraints: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """Another trial or a baseline, and what it had seen after the same block."""

    record: TrialRecord
    seen: Seen


class Racer(StoppingPolicy):
    """Runs a trial in stages, and looks after each whether it goes on."""

    def __init__(self, rules: Rules, folder: SweepFolder, record: TrialRecord) -> None:
        self._rules, self._folder, self._record = rules, folder, record
        self._looks_file = folder.race(record.name) / "looks.json"
        self._looks = self._known_looks()
        self._done: dict[EvalTask, TaskResult] = {}
        self._stages: list[list[EvalTask]] = []
        self._sizes: dict[str, int] = {}  # of the datasets
        self._block = 0
        self._total = 0
        self._last: Look | None = None

    def stages(self, plan: Plan, tasks: Sequence[EvalTask]) -> Sequence[Sequence[EvalTask]]:
        """Block by block, across all datasets and seeds."""
        blocks: dict[int, list[EvalTask]] = {}
        for task in self.ordered(plan, tasks):
            ends = plan.rungs[task.dataset, task.split]
            blocks.setdefault(sum(end < task.stop for end in ends), []).append(task)
        self._total = sum(task.stop - task.start for task in tasks)
        self._sizes = {facts.name: facts.size for facts in plan.datasets[self._rules.split]}
        self._stages = [blocks[block] for block in sorted(blocks)]
        return self._stages

    def stops(self, task: Task, result: TaskResult) -> str | None:
        if isinstance(task, EvalTask):
            self._done[task] = result
        if self._block + 1 >= len(self._stages) or not all(task in self._done for task in self._stages[self._block]):
            return None
        self._block += 1
        try:
            self._last = self._look()
        except OSError as error:  # no verdict on the trial
            raise MachineError.of(error) from error
        return self._last.reason

    def marked(self, record: TrialRecord) -> TrialRecord:
        """The record of a trial that was stopped here, or by somebody."""
        look = self._last
        if look is None or look.reason is None:
            return record
        return replace(record, estimate=look.estimate, fidelity=look.share, constraints=look.constraints)

    def _look(self) -> Look:
        """As it was decided before, else now."""
        sums = dict(self._sums())
        readable = all(sums.values())
        if readable:
            with written_whole(self._file(self._record.name)) as partial:
                partial.write_bytes(to_bytes({key: one for key, one in sums.items() if one}))
        share = sum(task.stop - task.start for task in self._done) / self._total
        if self._record.estimate is not None:  # it was stopped before, and is to be finished
            return Look(share=share)
        if self._block <= len(self._looks):
            return self._looks[self._block - 1]
        may_stop = readable and self._record.kind == "trial" and self._record.origin not in NEVER_STOPPED
        look = self._decided(share) if may_stop else Look(share=share)
        self._looks.append(look)
        write_json(self._looks_file, {"config": self._record.key, "looks": [asdict(each) for each in self._looks]})
        return look

    def _known_looks(self) -> list[Look]:
        """Those of an earlier process; of a damaged file none, nor where the trial's values have been drawn anew."""
        try:
            known = json.loads(self._looks_file.read_text("utf-8"))
            if known["config"] == self._record.key:
                return [Look(**row) for row in known["looks"]]
        except (OSError, ValueError, TypeError, KeyError):
            pass
        shutil.rmtree(self._looks_file.parent, ignore_errors=True)
        return []

    def _sums(self) -> Iterator[tuple[tuple[str, int], BlockStats | None]]:
        """By dataset and seed, of all blocks so far; none where no image could be read."""
        parts: dict[tuple[str, int], list[Any]] = {}
        for task in sorted(self._done, key=lambda task: (task.dataset, task.seed, task.start)):
            found = parts.setdefault((task.dataset, task.seed), [])
            if (predictions := self._done[task].predictions) is not None:
                found.append(predictions)
        for (dataset, seed), given in parts.items():
            yield (dataset, seed), BlockStats.of_predictions(dataset, concatenate(given)) if given else None

    def _file(self, name: str) -> Path:
        return self._folder.race(name) / f"block-{self._block}.npz"

    def _decided(self, share: float) -> Look:
        rules, own = self._rules, self._seen_of(self._record.name)
        finished = list(self._finished(own))
        trials = [one.record for one in finished if one.record.kind == "trial"]
        if own is None or len(trials) < rules.race.reserve:
            return Look(share=share)
        left = 1 - min(images / self._sizes[name] for name, _, images in own.images)
        rows = together([own, *(one.seen for one in finished)], rules.metrics)
        found = {
            metric: expected(row, np.array([self._measured(one.record, metric) for one in finished]), left)
            for metric, row in rows.items()
        }
        broken = {
            constraint.name: self._violation(constraint, found[constraint.metric]) for constraint in rules.constraints
        }
        look = self._lost(found, [record for record in trials if record.feasible]) or self._broke(broken)
        if look is None:
            return Look(share=share)
        estimate = [found[objective.metric][0] for objective in rules.objectives]
        constraints = {name: value for name, (value, _) in broken.items()}
        reason = f"{look.reason}, after {share:.0%} of the images"
        return replace(look, share=share, reason=reason, estimate=estimate, constraints=constraints)

    def _lost(self, found: Mapping[str, tuple[float, float]], others: Sequence[TrialRecord]) -> Look | None:
        """Whether one of them is ahead in every objective."""
        metrics = [objective.metric for objective in self._rules.objectives]
        own = [found[metric] for metric in metrics]
        values = np.array([[self._measured(record, metric) for metric in metrics] for record in others])
        lost = beaten(own, values, [objective.goal for objective in self._rules.objectives], self._rules.least)
        if lost is None:
            return None
        index, gains = lost
        name, deviations = others[index].name, [sd for _, sd in own]
        shown = [
            f"{format_metric(metric, gain)} ± {format_metric(metric, self._rules.least * sd)} in {metric}"
            for metric, gain, sd in zip(metrics, gains, deviations, strict=True)
        ]
        reason = f"beaten by {name} by {' and '.join(shown)}"
        return Look(reason=reason, against=name, gains=gains, deviations=deviations)

    def _broke(self, broken: Mapping[str, tuple[float, float]]) -> Look | None:
        """Whether it breaks a constraint."""
        reach = {name: self._rules.least * sd for name, (_, sd) in broken.items()}
        told = [
            f"breaks {name} by {value:.2f} ± {reach[name]:.2f}"
            for name, (value, _) in broken.items()
            if value > reach[name]
        ]
        return Look(reason=" and ".join(told)) if told else None

    def _violation(self, constraint: Constraint, own: tuple[float, float]) -> tuple[float, float]:
        """By how much it will be broken, and the standard deviation."""
        known = None
        if constraint.baseline is not None:
            record = self._folder.trial(f"baseline-{constraint.baseline}")
            if record.state != "complete":
                return 0.0, math.inf  # nobody knows
            known = self._measured(record, constraint.metric)
        return constraint.violation(own[0], known), own[1]

    def _finished(self, own: Seen | None) -> Iterator[Finished]:
        """Trials and baselines that saw the same images in these blocks."""
        for file in self._folder.trial_files():
            seen = self._seen_of(file.stem)
            if own is None or seen is None or seen.images != own.images or file.stem == self._record.name:
                continue
            with suppress(InputError):  # damaged: --resume mends it
                record = self._folder.trial(file.stem)
                if record.state == "complete":
                    yield Finished(record, seen)

    def _measured(self, record: TrialRecord, metric: str) -> float:
        return measured(record.results[self._rules.split], metric)

    def _seen_of(self, name: str) -> Seen | None:
        file = self._file(name)
        try:
            return _seen(file, file.stat().st_mtime_ns, self._rules.split, self._rules.metrics)
        except (FileNotFoundError, ValueError):  # stopped before, or damaged
            return None


# --- what it saves ----------------------------------------------------------------------------------


def saved(records: Sequence[TrialRecord], split: str) -> str:
    """What the trials that were stopped, and not finished later, did not cost, in a line."""
    finished = [record for record in records if record.kind == "trial" and split in record.results]
    stopped = [record for record in records if record.state == "stopped" and record.estimate is not None]
    if not finished or not stopped:
        return "no trial was stopped for good; nothing was saved"
    spent = math.fsum(record.held for record in records)
    spent += math.fsum(result.device_seconds for record in records for result in record.results.values())
    less = math.fsum(1 - record.fidelity for record in stopped)
    seconds = less * fmean(_adaptation(record.results[split]) for record in finished)
    of_all = seconds / (spent + seconds or 1.0)
    ended = len(finished) + len(stopped)
    told = f"{len(stopped)} of {ended} trials stopped early; that saved {less / ended:.0%} of adaptation"
    return f"{told}, {of_all:.0%} of all device time (pretraining is not saved)"


def _adaptation(result: SplitResult) -> float:
    """Seconds, over all datasets and seeds."""
    return math.fsum(stages.get("adapt", 0.0) for stages in result.costs.values()) * max(1, len(result.by_seed))
