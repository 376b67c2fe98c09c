"""The final stage: after the search its finalists run again, with more pretraining seeds and on fresh images.

The search picks trials by one seed, so that a lucky seed can win. Finalists therefore run with other seeds, which had
no part in the choice: first on images of the search split that the search did not use (if there are any), then the
best of them on the test split. A seed draws the pretraining only: views stay as drawn, so that image features and
baselines that start from words are computed once.

Who takes part follows from the records alone, so that a resumed driver decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.records import FINAL, TrialRecord
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Finalists
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import EMBEDDED_LIMIT
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.spec.tasks import BATCH
from fpp_sweep.statistics.front_support import FrontSupport, front_support
from fpp_sweep.statistics.paired import seed_variances
from fpp_sweep.trial.trial import ImageRange, Plan

MAX_COMPARED = 200  # trials nearest to the front that finalists are chosen from
MAX_TESTED = 3  # finalists on the test split: more of them make a larger family of tests, which shows less
UNLIKELY = "unlikely"

Describe = Callable[[Sequence[str], str], Sequence[DatasetInfo]]


# --- what the final stage runs on ------------------------------------------------------------------


def final_seeds(search_seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the seeds of the final stage: the first ones that are not the search's.

    >>> final_seeds([0], 3), final_seeds([1, 5], 2)
    ((1, 2, 3), (0, 2))
    """
    seeds: list[int] = []
    candidate = 0
    while len(seeds) < count:
        if candidate not in search_seeds:
            seeds.append(candidate)
        candidate += 1
    return tuple(seeds)


def fresh_images(finalists: Finalists, used: Mapping[str, int], available: Mapping[str, int]) -> ImageRange | None:
    """Return the images after the search's images, the same range in each dataset; None if too few are left.

    `used` and `available` count the images of each dataset, without and with what the limit leaves out.
    """
    left = min(available[name] - used[name] for name in used)
    first = max(used.values())  # datasets of equal limits; a smaller one has nothing left
    wanted = finalists.images or first
    count = min(wanted, left)
    if len(set(used.values())) > 1 or count < min(BATCH, first):
        return None
    return ImageRange(first, first + count)


def final_plan(plan: Plan, space: Space, describe: Describe) -> Plan | None:
    """Return what finalists run on; None without a final stage (`search.finalists.seeds: 1`, or evaluation only).

    `describe` returns the datasets of a split; a split `val:400` is the first 400 images of `val`.
    """
    finalists = space.search.finalists
    if finalists.seeds == 1 or space.search.evaluate_only:
        return None
    split = space.search.split
    searched = plan.datasets[split]
    seeds = final_seeds(plan.seeds, finalists.seeds)
    view_seeds = dict.fromkeys(seeds, plan.seeds[0])
    final = replace(plan, seeds=seeds, view_seeds=view_seeds, rung_ends={}, datasets={**plan.datasets, FINAL: searched})
    if any(catalogue.method(name).stateful for name in space.methods()):
        return final  # a stream cannot begin in its middle
    limit = space.work.limit or EMBEDDED_LIMIT
    larger = tuple(describe(space.work.datasets, f"{split}:{limit + (finalists.images or limit)}"))
    images = fresh_images(finalists, _sizes(searched), _sizes(larger))
    if images is None:
        return final
    ranges = {}
    for info in larger:
        ranges[info.name, info.split] = images
    return replace(final, datasets={**plan.datasets, FINAL: larger}, ranges=ranges)


def _sizes(datasets: Sequence[DatasetInfo]) -> dict[str, int]:
    return {info.name: info.size for info in datasets}


# --- the choice of finalists ---------------------------------------------------------------------------------


def choose_finalists(folder: SweepFolder, front: Front, count: int) -> list[TrialRecord]:
    """Return the trials that run in the final stage, at most `count`: the front first, then its closest rivals.

    Left out are trials with the settings of a baseline, which runs anyway, and trials below the floor, which cannot be
    recommended, as long as there are others.
    """
    baseline_keys = {baseline.key for baseline in front.baselines}
    candidates = []
    for record in front.layers(MAX_COMPARED):
        if record.feasible and record.key not in baseline_keys:
            candidates.append(record)
    above_floor = [record for record in candidates if not front.is_below_floor(record)]
    if above_floor:
        candidates = above_floor
    support = support_of(folder, front, candidates, front.search_split)
    ranks: list[tuple[tuple[float, ...], TrialRecord]] = []
    for position, record in enumerate(front.by_trade_off(candidates)):
        on_front = record in front.members
        trial = support.trials.get(record.name)
        if not on_front and (trial is None or trial.word == UNLIKELY):
            continue
        has_mark = bool(front.marks.get(record.name))
        share = 0.0
        if trial is not None:
            share = trial.share
        ranks.append(((-has_mark, -on_front, -share, position), record))
    ranks.sort(key=lambda row: row[0])
    return [record for _, record in ranks[:count]]


def choose_tested(folder: SweepFolder, front: Front, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the finalists that go to the test split: at most MAX_TESTED, those most often on the front come first.

    A finalist that another one is clearly ahead of is left out.
    """
    support = support_of(folder, front, finalists, FINAL)
    ranked = []
    for position, record in enumerate(finalists):
        trial = support.trials.get(record.name)
        if trial is None:
            ranked.append((0.0, position, record))
        elif trial.word != UNLIKELY:
            ranked.append((-trial.share, position, record))
    ranked.sort(key=lambda row: row[:2])
    return [record for _, _, record in ranked[:MAX_TESTED]]


def support_of(folder: SweepFolder, front: Front, records: Sequence[TrialRecord], split: str) -> FrontSupport:
    """Return the support of trials for the front of these trials, on one split."""
    metrics = metrics_of(front.objectives)
    stems = {metric.partition("/")[0] for metric in metrics}
    if len(resampled_metrics(metrics)) < len(stems):
        return FrontSupport()  # an objective that cannot be resampled may hold up any trial
    samples = measure(folder, records, split, metrics).samples
    names = [record.name for record in records]
    return front_support(samples, names, metrics, seed_variances(samples, metrics))


class FinalJobs:
    """The jobs that follow the search, in order: (record's name, split)."""

    def __init__(self, space: Space, folder: SweepFolder, *, has_final_stage: bool) -> None:
        self._space = space
        self._folder = folder
        self._has_final_stage = has_final_stage
        self._begun: set[tuple[str, str]] = set()
        self._finalists: list[TrialRecord] | None = None
        self._tested: list[TrialRecord] | None = None

    def next(self, records: Mapping[str, TrialRecord], running: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
        """Return the next job; None if there is none now, though there may be one when a running job has ended.

        The finalists are chosen once no job of the search is running. Finalists for the test split are chosen once the
        final stage has ended.
        """
        split = self._space.search.split
        running_splits = {job_split for _, job_split in running}
        if self._finalists is None:
            if split in running_splits:
                return None
            self._finalists = self._choose(records)
        jobs = self._jobs_of_baselines(split) + self._jobs_of_finalists()
        if self._tested is None and FINAL not in running_splits and not self._has_final_job(jobs, records):
            self._tested = self._choose_tested(records)
        for record in self._tested or ():
            jobs.append((record.name, "test"))
        for job in jobs:
            if not self._is_done(job, records):
                self._begun.add(job)
                return job
        return None

    def _has_final_job(self, jobs: Sequence[tuple[str, str]], records: Mapping[str, TrialRecord]) -> bool:
        """Return True if a job of the final stage has not begun."""
        for job in jobs:
            _, split = job
            if split == FINAL and not self._is_done(job, records):
                return True
        return False

    def reset(self) -> None:
        """Choose again: the budget was raised, and the search goes on."""
        self._begun.clear()
        self._finalists = None
        self._tested = None

    def _front(self, records: Mapping[str, TrialRecord]) -> Front:
        return front_of(self._folder.info(), list(records.values()))

    def _choose(self, records: Mapping[str, TrialRecord]) -> list[TrialRecord]:
        front = self._front(records)
        if not self._has_final_stage:
            return list(front.members)
        return choose_finalists(self._folder, front, self._space.search.finalists.count)

    def _choose_tested(self, records: Mapping[str, TrialRecord]) -> list[TrialRecord]:
        if self._space.search.split == "test":
            return []
        finalists = []
        finished = []
        for finalist in self._finalists or ():
            record = records[finalist.name]  # with the results of the final stage
            finalists.append(record)
            if FINAL in record.results:
                finished.append(record)
        if not self._has_final_stage:
            return finalists
        return choose_tested(self._folder, self._front(records), finished)

    def _jobs_of_baselines(self, search_split: str) -> list[tuple[str, str]]:
        split = "test"
        if search_split == "test":
            if not self._has_final_stage:
                return []
            split = FINAL
        return [(f"baseline-{name}", split) for name in self._space.baselines()]

    def _jobs_of_finalists(self) -> list[tuple[str, str]]:
        if not self._has_final_stage:
            return []
        return [(record.name, FINAL) for record in self._finalists or ()]

    def _is_done(self, job: tuple[str, str], records: Mapping[str, TrialRecord]) -> bool:
        """Return True for a job that has a result, has begun, or belongs to a trial that failed or was stopped."""
        name, split = job
        record = records.get(name)
        if record is None or record.state != "complete":
            return True
        return split in record.results or job in self._begun
