"""The share of a whole sweep that is done, over search, final stage and test split, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fpp_sweep.records.records import ENDED, FINAL, SweepInfo, TrialRecord
from fpp_sweep.spec.progress import duration
from fpp_sweep.spec.validation import as_mapping

REFERENCES = 2  # baselines that a finalist must beat
LATER_AT_ONCE = 2  # trials of later stages at a time, unless `search.concurrency` sets it


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """The work of a sweep, in trials of its search, and the time that is left."""

    done: float
    total: float | None  # None: the number of trials has no limit
    seconds_left: float | None  # None: unknown

    @property
    def text(self) -> str:
        """Such as `43 % done, about 2:05 left`."""
        parts = []
        if self.total:
            parts.append(f"{100 * self.done / self.total:.0f} % done")
        if self.seconds_left:
            parts.append(f"about {duration(self.seconds_left)} left")
        return ", ".join(parts)


def progress_of(info: SweepInfo, records: Sequence[TrialRecord], spent: float) -> SweepProgress:
    """Return how far a sweep is; `spent` are the seconds that drivers have worked on it.

    A job of a later stage counts as its images, times its seeds, are to those of the search.
    """
    asked = [record for record in records if not record.outside and not record.is_imported]
    trials = [record for record in asked if record.kind == "trial"]
    baselines = [record for record in asked if record.kind == "baseline"]
    ended = _count_ended(trials)
    search_is_over = bool(info.end_reason) or any(not record.results.keys() <= {info.search_split} for record in asked)
    limit = info.search_settings.get("trials")
    time_limit = info.search_settings.get("wall_clock")
    trials_left = None
    budget_left = None
    if search_is_over:
        trials_left = 0
    else:
        if limit is not None:
            trials_left = max(0, limit - ended)
        if time_limit is not None:
            budget_left = time_limit - spent
    baselines_done = _count_ended(baselines)
    baselines_left = max(0, len(info.requested_baselines) - baselines_done)
    done = float(ended + baselines_done)
    later = 0.0
    for split, jobs in _later_jobs(info).items():
        weight = info.images_by_split[split] / info.images_by_split[info.search_split]
        finished = len([record for record in asked if split in record.results])
        done += weight * finished
        later += weight * max(0, jobs - finished)
    total = None
    if info.state == "finished":
        total = done
    elif trials_left is not None:
        total = done + trials_left + baselines_left + later
    return SweepProgress(done, total, _seconds_left(trials, trials_left, later, budget_left, info))


def _count_ended(records: Sequence[TrialRecord]) -> int:
    return len([record for record in records if record.state in ENDED])


def _later_jobs(info: SweepInfo) -> dict[str, int]:
    """Return the largest number of jobs on each split after the search."""
    if info.evaluate_only:
        return {}
    baselines = len(info.requested_baselines)
    jobs = {}
    if FINAL in info.images_by_split:
        finalists = as_mapping(info.search_settings.get("finalists", {})).get("count", 1)
        jobs[FINAL] = finalists + (baselines if info.search_split == "test" else min(REFERENCES, baselines))
    if "test" in info.images_by_split and info.search_split != "test":
        jobs["test"] = baselines + 1  # the champion
    return jobs


def _seconds_left(
    trials: Sequence[TrialRecord], trials_left: int | None, later: float, budget_left: float | None, info: SweepInfo
) -> float | None:
    """Return the seconds until search and later stages end; None if no trial has ended and there is no limit of time.

    `later` is the work of the later stages in trials.
    """
    durations = [trial.duration for trial in trials if trial.state == "complete" and trial.duration is not None]
    limits = []
    if budget_left is not None:
        limits.append(budget_left)
    if trials_left is not None and durations:
        running = len([trial for trial in trials if trial.state == "running"])
        limits.append(fmean(durations) * trials_left / max(1, min(running, trials_left)))
    if not limits:
        return None
    seconds = max(0.0, min(limits))
    if durations:
        seconds += fmean(durations) * later / (info.search_settings.get("concurrency") or LATER_AT_ONCE)
    return seconds
