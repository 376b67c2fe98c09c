"""The course of a sweep: what each worker did when, what the trials cost, and how much is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import MIN_GROWTH, Front
from fpp_sweep.records.records import ENDED, SweepInfo, TrialRecord
from fpp_sweep.records.state import is_abandoned, last_change
from fpp_sweep.records.texts import format_time, growth_text, is_number
from fpp_sweep.records.time_left import search_seconds_left
from fpp_sweep.report.document import Plot
from fpp_sweep.report.plots import LEGEND, MARGIN, plot_text
from fpp_sweep.spec.files import files_inside, read_end_inside
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.palette import BLUE, GREEN, GREY, RED
from fpp_sweep.spec.progress import duration

LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.+), config (\w+): (.*)")
MAX_LOG_BYTES = 2**26  # read of a log, from its end; a worker writes 2**26 bytes in some 300,000 tasks
MAX_PAUSE = 2.0  # seconds between two tasks of a config that are drawn as one period
COLORS = {"trial": BLUE, "baseline": RED, "pretraining": GREEN, "other": GREY}


@dataclass(frozen=True, slots=True)
class WorkPeriod:
    """Work of a worker for one config without a longer pause."""

    start: float  # seconds since 1970
    end: float
    key: str  # key of the config
    is_pretraining: bool

    def is_continued_by(self, start: float, key: str, *, is_pretraining: bool) -> bool:
        """Return True for a task of the same work that begins after no long pause."""
        is_same_work = key == self.key and is_pretraining == self.is_pretraining
        return is_same_work and start - self.end <= MAX_PAUSE


def read_work_periods(log_text: str) -> list[WorkPeriod]:
    """Return the periods in the text of a worker's log; tasks without an end and damaged lines are left out."""
    starts: dict[tuple[str, str], float] = {}
    periods: list[WorkPeriod] = []
    for line in log_text.splitlines():
        match = LOG_LINE.match(line)
        if match is None:
            continue
        time_text, task, key, event = match.groups()
        time = _read_time(time_text)
        if time is None:
            continue
        if event == "begins":
            starts[task, key] = time
        elif (task, key) in starts:
            start = starts.pop((task, key))
            is_pretraining = "pretraining" in task
            if periods and periods[-1].is_continued_by(start, key, is_pretraining=is_pretraining):
                start = periods.pop().start
            periods.append(WorkPeriod(start, time, key, is_pretraining))
    return periods


def _read_time(text: str) -> float | None:
    """Return seconds since 1970; None for a date or time that does not exist."""
    try:
        return datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        return None


def read_workers(logs: Path) -> dict[str, list[WorkPeriod]]:
    """Return the periods of each worker that has ended a task, by the name of its log."""
    workers = {}
    for path in files_inside(logs, logs, "*.log"):
        try:
            text = read_end_inside(logs, path, MAX_LOG_BYTES)
        except OSError:  # no file, or unreadable; the log is no result
            continue
        periods = read_work_periods(text)
        if periods:
            workers[path.stem] = periods
    return workers


def timeline_plot(workers: Mapping[str, Sequence[WorkPeriod]], records: Sequence[TrialRecord]) -> Plot:
    """Return a row for each worker, with a bar for each period."""
    if not workers:
        return Plot(name="timeline", placeholder="No worker has ended a task yet.")
    records_by_key = {record.key: record for record in records}
    traces = {}
    for kind, color in COLORS.items():
        traces[kind] = {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "y": [],
            "base": [],
            "x": [],
            "text": [],
            "customdata": [],
            "textposition": "none",
            "hovertemplate": "%{text}<extra>" + kind + "</extra>",
            "marker": {"color": color},
        }
    for worker, periods in workers.items():
        for period in periods:
            record = records_by_key.get(period.key)
            _add_bar(traces[_kind(period, record)], worker, period, record)
    layout = {
        "barmode": "overlay",
        "height": 110 + 24 * len(workers),
        "margin": {**MARGIN, "l": 110},
        "legend": LEGEND,
        "xaxis": {"type": "date"},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    return Plot(
        name="timeline",
        traces=[trace for trace in traces.values() if trace["y"]],
        layout=layout,
        description=f"periods of work of {plural(len(workers), 'worker')} over time",
        min_width=560,
    )


def _kind(period: WorkPeriod, record: TrialRecord | None) -> str:
    if period.is_pretraining:
        return "pretraining"
    if record is None:
        return "other"
    return record.kind


def _add_bar(trace: dict[str, Any], worker: str, period: WorkPeriod, record: TrialRecord | None) -> None:
    trace["y"].append(plot_text(worker))
    trace["base"].append(round(1000 * period.start))  # milliseconds
    trace["x"].append(round(1000 * max(period.end - period.start, 0.5)))  # half a second is still visible
    if record is None:
        trace["text"].append(plot_text(period.key))
        trace["customdata"].append("")
    else:
        trace["text"].append(plot_text(record.name))
        trace["customdata"].append(record.name)


def busy_share(workers: Mapping[str, Sequence[WorkPeriod]]) -> str:
    """Return how much of the time between their first and last task workers had a task.

    >>> busy_share({"a": [WorkPeriod(0, 40, "", False), WorkPeriod(60, 100, "", False)]})
    '1 worker, busy for 80 % of the time between the first and the last task.'
    """
    if not workers:
        return ""
    busy = 0.0
    total = 0.0
    for periods in workers.values():
        for period in periods:
            busy += period.end - period.start
        total += periods[-1].end - periods[0].start
    share = 100 * busy / (total or 1.0)
    return f"{plural(len(workers), 'worker')}, busy for {share:.0f} % of the time between the first and the last task."


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
    for state in ("stopped", "waiting", "interrupted"):
        if counts[state]:
            texts.append(f"{counts[state]} {state}")
    return ", ".join(texts)


def progress_line(info: SweepInfo, records: Sequence[TrialRecord], now: float) -> str:
    """Return how far a running sweep is: `7 of 16 trials, as of 2026-11-23 01:08 UTC, about 2:05 of search left`."""
    trials = [record for record in records if record.kind == "trial"]
    n_ended = len([trial for trial in trials if trial.state in ENDED])
    total = info.search_settings.get("trials")
    progress = plural(n_ended, "trial")
    if total is not None:
        progress = f"{n_ended} of {plural(total, 'trial')}"
    parts = [progress, f"as of {format_time(now)}"]
    seconds = _search_seconds_left(info, trials)
    if seconds:
        parts.append(f"about {duration(seconds)} of search left")
    return ", ".join(parts)


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
        trials_left = search["trials"] - len([trial for trial in trials if trial.state in ENDED])
    durations = []
    for trial in trials:
        if trial.state == "complete" and trial.duration is not None:
            durations.append(trial.duration)
    return search_seconds_left(
        trials_left=trials_left,
        running=len([trial for trial in trials if trial.state == "running"]),
        durations=durations,
        budget_left=budget_left,
    )


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


def growth_sentences(info: SweepInfo, front: Front) -> list[str]:
    """Return a sentence on the growth of hypervolume that `search.patience` goes by, if the sweep has it."""
    patience = info.search_settings.get("patience")
    if not patience:
        return []
    share = front.growth(patience)
    state = f"{plural(2 * patience, 'trial')} have to finish first"
    if share is not None:
        state = f"it {growth_text(share, patience)}"
    rule = f"The search ends if hypervolume grows by no more than {MIN_GROWTH:.0%} in {plural(patience, 'trial')}"
    return [f"{rule}: {state}."]
