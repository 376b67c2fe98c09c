"""Sentences on the course of a sweep: its state, costs and what is left; and commands that repeat its trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, SweepInfo, TrialRecord
from fpp_sweep.records.state import is_abandoned, last_change, progress_of
from fpp_sweep.records.texts import format_time, question_texts
from fpp_sweep.spec.messages import command_line, plural, runnable
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
    """Return how far a running sweep is: `7 trials ended, as of 2026-11-23 01:08 UTC, 43 % done, about 2:05 left`."""
    ended = [record for record in records if record.kind == "trial" and record.state in ENDED]
    parts = [
        f"{plural(len(ended), 'trial')} ended",
        f"as of {format_time(now)}",
        progress_of(info, records, info.spent).text,
    ]
    return ", ".join(part for part in parts if part)


def cost_sentences(info: SweepInfo, records: Sequence[TrialRecord]) -> list[str]:
    """Return sentences on what was spent, on the budget, and on other spaces that were asked."""
    seconds = 0.0
    last = info.created
    n_ended = 0
    for record in records:
        if record.finished is not None and record.state != "interrupted":
            n_ended += 1
            last = max(last, record.finished)
            seconds += record.worker_seconds
    elapsed = (info.finished or last) - info.created
    trials = plural(n_ended, "trial")
    sentences = [f"{seconds / 3600:.2f} worker hours for {trials}, including baselines, in {duration(elapsed)}."]
    changes = [f"Another space was asked at {text}." for text in question_texts(info)]
    return sentences + _budget_sentences(info) + changes


def _budget_sentences(info: SweepInfo) -> list[str]:
    """Return a sentence on the limits of the search and on its end, if it has limits."""
    search = info.search_settings
    limits = []
    for key in ("trials", "wall_clock"):
        if search.get(key) is not None:
            limits.append(f"{key} {search[key]}")
    if not limits:
        return []
    ending = f"; ended: {info.end_reason}" if info.end_reason else ""
    return [f"Budget: {', '.join(limits)}{ending}."]


# --- commands that evaluate trials again ---------------------------------------------------------------


def repeat_command(folder: SweepFolder, info: SweepInfo, record: TrialRecord) -> str:
    """Return the command that evaluates a trial again; results that are in the cache are not computed again."""
    if record.is_imported:
        words = [str(record.config.get("file")), "--as", record.label, "--into", str(folder.path)]
        return runnable(command_line("import", words))
    return runnable(command_line("evaluate", _words(folder, info, record.name)))


def use_command(folder: SweepFolder, info: SweepInfo, name: str) -> str:
    """Return the command that evaluates a trial on all images of the test split."""
    assignments = ["search.split=test"]
    if info.work_settings.get("limit") is not None:
        assignments.append("work.limit=null")
    return runnable(command_line("evaluate", [*_words(folder, info, name), "--set", *assignments]))


def _words(folder: SweepFolder, info: SweepInfo, name: str) -> list[str]:
    """Return the flags that name a trial and the plugins of its sweep."""
    return ["--trial", str(folder.path / name), *info.plugin_words]
