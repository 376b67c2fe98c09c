"""The final stage: after the search its finalists run again, with more pretraining seeds and on fresh images.

The search picks trials by one seed, so that a lucky seed can win. Finalists therefore run with other seeds, which had
no part in the choice: first on images of the search split that the search did not use (if there are any), then one
of them, the champion, on the test split, with other seeds again. A seed draws the pretraining only: views stay as
drawn, so that image features and baselines that start from words are computed once.

The choice of finalists depends on the records alone, so that a resumed driver chooses the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fpp_sweep.records.answer import MAX_COMPARED
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of
from fpp_sweep.records.measurements import measure
from fpp_sweep.records.recommendation import chances, references_of, testable_metrics
from fpp_sweep.records.records import FINAL, TrialRecord, baseline_name
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Finalists, later_seeds
from fpp_sweep.spec.config import EMBEDDED_LIMIT
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.spec.tasks import BATCH
from fpp_sweep.trial.trial import Plan

# (names of datasets, split) -> those datasets; a split `val:400` is the first 400 images of `val`
Describe = Callable[[Sequence[str], str], Sequence[DatasetInfo]]


class Job(NamedTuple):
    """A trial or baseline on one split."""

    name: str  # name of the record
    split: str


# --- what the final stage runs on ------------------------------------------------------------------


def fresh_images(finalists: Finalists, used: Mapping[str, int], available: Mapping[str, int]) -> range | None:
    """Return the images after the search's images, the same range in each dataset; None if too few are left.

    `used` has the number of images of each dataset that the search uses, `available` the number with fresh images.
    """
    start = max(used.values())
    if min(used.values()) < start:  # the search used all images of the smaller dataset
        return None
    left = min(available[name] for name in used) - start
    wanted = finalists.images or start  # by default as many as the search used
    count = min(wanted, left)
    if count < min(BATCH, wanted):
        return None
    return range(start, start + count)


def later_plans(plan: Plan, space: Space, describe: Describe) -> dict[str, Plan]:
    """Return the plans of the final stage and of the test split, by split; others use the plan of the search."""
    seeds = later_seeds(space.search, space.work)
    plans = {}
    if seeds.final:
        plans[FINAL] = _final_plan(_with_seeds(plan, seeds.final), space, describe)
    if seeds.test:
        plans["test"] = _test_plan(_with_seeds(plan, seeds.test), space, describe)
    return plans


def _test_plan(plan: Plan, space: Space, describe: Describe) -> Plan:
    """Return the plan of the test split, with as many images of each limited dataset as are asked for."""
    images = space.search.finalists.images
    limited = plan.datasets["test"]
    if images is None or min(info.size for info in limited) >= images:
        return plan
    by_name = {info.name: info for info in describe(space.work.datasets, f"test:{images}")}
    larger = [max(info, by_name[info.name], key=lambda either: either.size) for info in limited]
    return replace(plan, datasets={**plan.datasets, "test": tuple(larger)})


def _with_seeds(plan: Plan, seeds: tuple[int, ...]) -> Plan:
    """Return the plan with other seeds and the same views."""
    return replace(plan, seeds=seeds, view_seeds=dict.fromkeys(seeds, plan.seeds[0]))


def _final_plan(plan: Plan, space: Space, describe: Describe) -> Plan:
    """Return the plan of the final stage, with fresh images if there are enough."""
    finalists = space.search.finalists
    split = space.search.split
    searched = plan.datasets[split]
    on_searched_images = replace(plan, datasets={**plan.datasets, FINAL: searched})
    if space.has_state:
        return on_searched_images  # a stateful method adapts to the stream of images from its first image on
    # without a limit only embedded datasets have images that the search did not use
    limit = space.work.limit or EMBEDDED_LIMIT
    with_fresh_images = limit + (finalists.images or limit)
    larger = tuple(describe(space.work.datasets, f"{split}:{with_fresh_images}"))
    images = fresh_images(finalists, _sizes(searched), _sizes(larger))
    if images is None:
        return on_searched_images
    ranges = {}
    for info in larger:
        ranges[info.name, info.split] = images
    return replace(plan, datasets={**plan.datasets, FINAL: larger}, ranges=ranges)


def _sizes(datasets: Sequence[DatasetInfo]) -> dict[str, int]:
    return {info.name: info.size for info in datasets}


# --- the choice of finalists, and of the champion that runs on the test split ------------------------


def choose_finalists(folder: SweepFolder, front: Front, count: int) -> list[TrialRecord]:
    """Return the trials that run in the final stage, at most `count`: members of the front and its closest rivals.

    Front members with a mark (the knee, the best in an objective) come first. Then the order is by the chance of a
    recommendation (see `chances`), then front members before rivals, then by trade-off.

    Trials with the settings of a baseline are left out, because the baseline runs anyway. Of trials with equal settings
    or equal results the first one is chosen.
    """
    baseline_keys = {baseline.key for baseline in front.baselines}
    nearest = _distinct(front.nearest(MAX_COMPARED), key=lambda record: record.key)
    feasible = [record for record in nearest if record.feasible and record.key not in baseline_keys]
    candidates = front.by_trade_off(feasible)
    by_name = chances_on(folder, front, candidates, front.info.search_split)

    def rank(record: TrialRecord) -> tuple[bool, tuple[float, float], bool]:
        """Return a sort key: the smallest key comes first, trials with equal keys stay in the order of trade-off."""
        has_no_mark = not front.marks.get(record.name)
        return (has_no_mark, by_name[record.name], record not in front.members)

    in_order = sorted(candidates, key=rank)
    return _distinct(in_order, key=lambda record: repr(record.results[front.info.search_split].datasets))[:count]


def _distinct(records: Sequence[TrialRecord], key: Callable[[TrialRecord], str]) -> list[TrialRecord]:
    """Return the records without those that repeat the key of an earlier one."""
    first: dict[str, TrialRecord] = {}
    for record in records:
        first.setdefault(key(record), record)
    return list(first.values())


def choose_champion(folder: SweepFolder, front: Front, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the finalist that runs on the test split, alone, by its chance of a recommendation in the final stage.

    Finalists that break a constraint with fresh seeds and images are left out if others keep all. A finalist whose
    seeds disagree comes late, even if its mean is the best: its standard error is large.
    """
    feasible = [record for record in finalists if front.keeps_constraints(record, FINAL)]
    candidates = feasible or finalists
    by_name = chances_on(folder, front, candidates, FINAL)
    return sorted(candidates, key=lambda record: by_name[record.name])[:1]


def chances_on(
    folder: SweepFolder, front: Front, trials: Sequence[TrialRecord], split: str
) -> dict[str, tuple[float, float]]:
    """Return the chance of a recommendation by trial, from their results on a split: see `chances`."""
    metrics = testable_metrics(front.objectives)
    samples = measure(folder, [*front.baselines, *trials], split, metrics)
    return chances(front, samples, trials)


# --- the jobs ---------------------------------------------------------------------------------------


class FinalJobs:
    """The jobs that follow the search: baselines, finalists in the final stage, their champion on the test split.

    Without a final stage, the front members take the role of the finalists and go to the test split directly.
    """

    def __init__(self, space: Space, folder: SweepFolder) -> None:
        self._space = space
        self._folder = folder
        self._begun: set[Job] = set()
        self._finalists: list[TrialRecord] | None = None  # None until they are chosen
        self._champions: list[TrialRecord] | None = None  # None until they are chosen

    @property
    def _has_final_stage(self) -> bool:
        return bool(later_seeds(self._space.search, self._space.work).final)

    def next(self, records: Mapping[str, TrialRecord], running: Sequence[Job]) -> Job | None:
        """Return the next job; None if no job can begin now. The end of a running job may make the next one possible.

        The finalists are chosen once no job of the search is running. Finalists for the test split are chosen once the
        final stage has ended. A record has one running job at a time, because each job writes the whole record.
        """
        search_split = self._space.search.split
        if self._finalists is None:
            if search_split in {job.split for job in running}:
                return None
            self._finalists = self._choose(records)
        jobs = self._jobs_of_baselines(search_split) + self._jobs_of_finalists(records)
        waiting = [job for job in jobs if self._must_begin(job, records)]
        if self._champions is None and FINAL not in {job.split for job in (*waiting, *running)}:
            self._champions = self._choose_champion(records)
        tests = [Job(record.name, "test") for record in self._champions or ()]
        waiting += [job for job in tests if self._must_begin(job, records)]
        busy = {job.name for job in running}
        for job in waiting:
            if job.name not in busy:
                self._begun.add(job)
                return job
        return None

    def reset(self, space: Space) -> None:
        """Forget all choices: another space is asked, and the search may go on."""
        self._space = space
        self._begun.clear()
        self._finalists = None
        self._champions = None

    def _front(self, records: Mapping[str, TrialRecord]) -> Front:
        return front_of(self._folder.info(), list(records.values()))

    def _choose(self, records: Mapping[str, TrialRecord]) -> list[TrialRecord]:
        """Return the finalists; without a final stage the front members."""
        front = self._front(records)
        if not self._has_final_stage:
            return _distinct(front.members, key=lambda record: record.key)
        return choose_finalists(self._folder, front, self._space.search.finalists.count)

    def _choose_champion(self, records: Mapping[str, TrialRecord]) -> list[TrialRecord]:
        """Return the finalists that run on the test split; none after a search on the test split."""
        if self._space.search.split == "test":
            return []
        finalists = []
        for finalist in self._finalists or ():
            finalists.append(records[finalist.name])  # with the results of the final stage
        if not self._has_final_stage:
            return finalists
        finished = []
        for record in finalists:
            if FINAL in record.results:
                finished.append(record)
        return choose_champion(self._folder, self._front(records), finished)

    def _jobs_of_baselines(self, search_split: str) -> list[Job]:
        """Return jobs of the baselines on the last split that finalists run on: test; after a search on test, final."""
        split = "test"
        if search_split == "test":
            if not self._has_final_stage:
                return []
            split = FINAL
        return [Job(baseline_name(name), split) for name in self._space.baselines()]

    def _jobs_of_finalists(self, records: Mapping[str, TrialRecord]) -> list[Job]:
        """Return the jobs of the final stage: the baselines that finalists must beat, and the finalists."""
        if not self._has_final_stage or not self._finalists:
            return []
        baselines = self._front(records).own_baselines
        names: dict[str, None] = {}
        for finalist in self._finalists:
            names |= dict.fromkeys(reference.name for reference in references_of(finalist, baselines))
        names |= dict.fromkeys(finalist.name for finalist in self._finalists)
        return [Job(name, FINAL) for name in names]

    def _must_begin(self, job: Job, records: Mapping[str, TrialRecord]) -> bool:
        """Return False for a job that has a result, has begun, or belongs to a trial that failed or was stopped."""
        record = records.get(job.name)
        if record is None or record.state != "complete":
            return False
        return job.split not in record.results and job not in self._begun
