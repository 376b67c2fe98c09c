"""Sentences on the course of a sweep: its state, what the trials cost, and how much is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, SweepInfo, TrialRecord
from fpp_sweep.records.state import is_abandoned, last_change
from fpp_sweep.records.texts import format_time, is_number
from fpp_sweep.records.time_left import search_seconds_left
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import duration


def state_sentence(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the state and the times of start and end, such as `finished; started 2026-11-18 11:06 UTC`."""
    state: str = info.state
    until = ""
    if info.finished is not None:
        until = f", ended {format_time(info.finished)}"
    elif is_abandoned(folder, info):
        state = "stopped without notice"
        until = f", last change {format_time(last_change(folder))}"
    return f"{state}; started {format_time(info.created)}{until}"


def counts_of_states(records: Sequence[TrialRecord]) -> str:
    """Return such as `3 trials finished, 1 failed, 0 running`; other states only if a trial has them."""
    counts = Counter(record.state for record in records if record.kind == "trial")
    finished = plural(counts["complete"], "trial")
    texts = [f"{finished} finished", f"{counts['failed']} failed", f"{counts['running']} running"]
    for state in ("stopped", "collapsed", "waiting", "interrupted"):
        if counts[state]:
            texts.append(f"{counts[state]} {state}")
    return ", ".join(texts)


def progress_line(info: SweepInfo, records: Sequence[TrialRecord], now: float) -> str:
    """Return how far a running sweep is: `7 of 16 trials, as of 2026-11-23 01:08 UTC, about 2:05 of search left`."""
    trials = [record for record in records if record.kind == "trial"]
    n_ended = _count_ended(trials)
    total = info.search_settings.get("trials")
    progress = plural(n_ended, "trial")
    if total is not None:
        progress = f"{n_ended} of {plural(total, 'trial')}"
    parts = [progress, f"as of {format_time(now)}"]
    seconds = _search_seconds_left(info, trials)
    if seconds:
        parts.append(f"about {duration(seconds)} of search left")
    return ", ".join(parts)


def _count_ended(trials: Sequence[TrialRecord]) -> int:
    return len([trial for trial in trials if trial.state in ENDED])


def _search_seconds_left(info: SweepInfo, trials: Sequence[TrialRecord]) -> float | None:
    """Return the time of search that is left of a running sweep; None if it is unknown or the search has ended."""
    if info.end_reason:
        return None
    search = info.search_settings
    budget_left = None
    if search.get("wall_clock") is not None:
        budget_left = search["wall_clock"] - info.spent
    trials_left = None
    if search.get("trials") is not None:
        trials_left = search["trials"] - _count_ended(trials)
    n_running = 0
    durations = []
    for trial in trials:
        if trial.state == "running":
            n_running += 1
        if trial.state == "complete" and trial.duration is not None:
            durations.append(trial.duration)
    return search_seconds_left(trials_left=trials_left, running=n_running, durations=durations, budget_left=budget_left)


def cost_sentences(info: SweepInfo, records: Sequence[TrialRecord], *, is_running: bool) -> list[str]:
    """Return sentences on what was spent, how much is left at this rate while the sweep runs, and the budget."""
    seconds = 0.0
    last = info.created
    n_ended = Counter[str]()
    for record in records:
        if record.finished is not None and record.state != "interrupted":
            n_ended[record.kind] += 1
            last = max(last, record.finished)
            seconds += record.worker_seconds
    elapsed = (info.finished or last) - info.created
    trials = plural(n_ended.total(), "trial")
    sentences = [f"{seconds / 3600:.2f} worker hours for {trials}, including baselines, in {duration(elapsed)}."]
    search = info.search_settings
    n_trials = n_ended["trial"]
    if is_running and n_trials and is_number(search.get("trials")):
        n_left = max(0, search["trials"] - n_trials)
        hours = n_left / n_trials * seconds / 3600
        left = f"{n_left} of {plural(search['trials'], 'trial')}"
        sentences.append(f"Left: {left}, about {hours:.2f} worker hours at this rate.")
    return sentences + _budget_sentences(info)


def _budget_sentences(info: SweepInfo) -> list[str]:
    """Return a sentence on the limits of the search and on its end, if it has limits."""
    search = info.search_settings
    limits = []
    for key in ("trials", "wall_clock", "gpu_hours"):
        if search.get(key) is not None:
            limits.append(f"{key} {search[key]}")
    if not limits:
        return []
    ending = f"; ended: {info.end_reason}" if info.end_reason else ""
    return [f"Budget: {', '.join(limits)}{ending}."]
