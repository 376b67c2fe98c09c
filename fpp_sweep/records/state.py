"""The state of a sweep by its record and its lock, and how much of the whole is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, FINAL, REFERENCES, SweepInfo, TrialRecord
from fpp_sweep.spec.files import files_in
from fpp_sweep.spec.progress import duration
from fpp_sweep.spec.validation import as_mapping

WRITTEN = {"": "sweep.json", "trials": "*", "logs": "*"}  # files that drivers, trials and workers write, by subfolder


def state_text(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the state on record, `stopped without notice 1:02 ago` if the driver was killed, or `starting`."""
    if is_abandoned(folder, info):
        return f"stopped without notice {time_since_change(folder)}"
    if info.state == "interrupted" and folder.is_locked():  # its driver checks its inputs
        return "starting"
    return info.state


def is_running(folder: SweepFolder, info: SweepInfo) -> bool:
    """Return True if a driver runs the sweep now."""
    return info.state == "running" and not is_abandoned(folder, info)


def is_abandoned(folder: SweepFolder, info: SweepInfo) -> bool:
    """Return True if the record says that the sweep runs, although no driver holds its lock."""
    if info.state != "running" or folder.is_locked():
        return False
    return folder.info().state == "running"  # else a driver has ended it since the record was read


def time_since_change(folder: SweepFolder) -> str:
    """Return the time since the last change, as in `1:02 ago`; `0 s ago` if the clock that wrote it is ahead."""
    seconds = max(0.0, time.time() - last_change(folder))
    return f"{duration(seconds)} ago"


def last_change(folder: SweepFolder) -> float:
    """Return when the driver, a trial or a worker last wrote, on any machine."""
    latest = 0.0
    for subfolder, pattern in WRITTEN.items():
        with suppress(OSError):  # a folder that cannot be listed
            for path in files_in(folder.path / subfolder, pattern):
                latest = max(latest, path.lstat().st_mtime)  # lstat: the link's own time
    return latest


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
    limit = info.search_settings.get("trials")
    time_limit = info.search_settings.get("wall_clock")
    trials_left = _left(limit, ended)
    budget_left = _left(time_limit, spent)
    if info.end_reason or 0 in (trials_left, budget_left) or _is_after_search(asked, info.search_split):
        trials_left, budget_left = 0, None
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


def _left(limit: float | None, used: float) -> float | None:
    """Return what is left of a budget; None if it has no limit."""
    if limit is None:
        return None
    return max(0, limit - used)


def _is_after_search(records: Sequence[TrialRecord], search_split: str) -> bool:
    """Return True if later stages have begun, and no trial of a search that was resumed waits or runs."""
    if any(record.kind == "trial" and record.state in ("waiting", "running") for record in records):
        return False
    return any(not record.results.keys() <= {search_split} for record in records)


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
    trials: Sequence[TrialRecord], trials_left: float | None, later: float, budget_left: float | None, info: SweepInfo
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
