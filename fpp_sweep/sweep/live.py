"""A running sweep on the terminal: its announcement, then a block that is redrawn, or in a log a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metric_of, values_of
from fpp_sweep.records.pareto import hypervolume
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.state import SweepProgress, progress_of
from fpp_sweep.records.texts import format_metric, format_values
from fpp_sweep.report.formatting import labelled_lines
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.spec.validation import as_mapping

if TYPE_CHECKING:
    from fpp_sweep.search.searcher import (
        SweepSearcher,  # loads Ray
        TrialChange,
    )
    from fpp_sweep.workers.status import SchedulerStatus

SUBJECT_COLUMNS = 10


def print_heading(folder: SweepFolder, space: Mapping[str, Any], objectives: Sequence[Objective], split: str) -> None:
    """Print the announcement on stderr."""
    screen = Screen(sys.stderr)
    screen.draw(heading(folder, space, objectives, split, width=screen.columns()))


def heading(
    folder: SweepFolder, space: Mapping[str, Any], objectives: Sequence[Objective], split: str, *, width: int
) -> list[str]:
    """Return lines that begin with their subject, wrapped to a number of columns.

    `space` has plain values, as it is recorded.
    """
    work, search = as_mapping(space.get("work", {})), as_mapping(space.get("search", {}))
    goals = " and ".join(f"{objective.metric} ({objective.goal})" for objective in objectives)
    datasets = ", ".join(work.get("datasets", ())) or work.get("dataset_file", "")
    purpose = "evaluates" if search.get("evaluate_only") else "searches"
    rows = {
        "sweep": folder.path.name,
        "question": " ".join(str(space.get("question", "")).split()),
        purpose: f"{goals} on {split}",
        "work": f"{work.get('model', '')} on {datasets}",
        "budget": ", ".join(_budgets(search)),
        "then": _final_stage(search, split),
        "folder": str(folder.path),
        "page": (folder.report / "sweep.html").as_uri(),
    }
    lines = []
    for subject, text in rows.items():
        if text:
            lines += labelled_lines(subject, escaped(text), width, indent=SUBJECT_COLUMNS)
    return lines


def _budgets(search: Mapping[str, Any]) -> list[str]:
    budgets = []
    if search.get("trials"):
        budgets.append(plural(search["trials"], "trial"))
    if search.get("wall_clock"):
        budgets.append(f"{duration(search['wall_clock'])} of wall clock")
    if search.get("gpu_hours"):
        budgets.append(f"{search['gpu_hours']} GPU-hours")
    return budgets


def _final_stage(search: Mapping[str, Any], split: str) -> str:
    """Return what runs after the search; empty if nothing does."""
    finalists = as_mapping(search.get("finalists", {}))
    if search.get("evaluate_only"):
        return ""
    seeds = finalists.get("seeds", 1)
    if seeds == 1:
        return "" if split == "test" else "the front on test"
    text = f"up to {plural(finalists.get('count', 0), 'finalist')} with {seeds} seeds each"
    if split != "test":
        text += ", the best of them on test"
    if search.get("wall_clock") or search.get("gpu_hours"):
        text += "; beyond the budget of time"  # it ends the search only
    return text


@dataclass(frozen=True)
class Status:
    """Progress, rates, front and troubles of a running sweep."""

    phase: str  # baselines, search, test, ...
    ended: Mapping[str, int]  # number of trials by state
    running: int
    total: int | None  # trials; None: as many as the time allows
    images_per_second: float | None
    front_size: int
    best: Sequence[float]  # the front's best value in each objective; empty without members
    hypervolume: float | None
    whole: SweepProgress  # with the stages after the search
    workers: int
    note: str  # empty if there is none
    baselines: Mapping[str, Sequence[float]] = field(default_factory=dict)  # values, by name
    doing: Sequence[str] = ()  # long tasks of the workers

    @property
    def n_ended(self) -> int:
        return sum(self.ended.values())


def live_status(searcher: SweepSearcher, scheduler: SchedulerStatus, info: SweepInfo, *, seconds: float) -> Status:
    """Return the state of a sweep whose driver has worked for `seconds`."""
    front = front_of(info, searcher.records())
    baselines = {baseline.label: values_of(baseline) for baseline in front.baselines}
    notes = list(scheduler.notes)
    images_per_second = None
    if scheduler.counts.images:
        images_per_second = scheduler.counts.images / seconds
    return Status(
        phase=searcher.phase,
        ended=searcher.ended(),
        running=searcher.n_running,
        total=searcher.total,
        images_per_second=images_per_second,
        front_size=len(front.members),
        best=_best_values(front),
        hypervolume=_hypervolume(front),
        whole=progress_of(info, searcher.records(), info.spent + seconds),
        workers=scheduler.workers,
        note="; ".join(notes),
        baselines=baselines,
        doing=scheduler.doing,
    )


def _best_values(front: Front) -> list[float]:
    """Return the best value in each objective of the front."""
    if not front.members:
        return []
    best = []
    for index, goal in enumerate(front.goals):
        column = [values_of(member)[index] for member in front.members]
        choose = max if goal == "max" else min
        best.append(choose(column))
    return best


def _hypervolume(front: Front) -> float | None:
    if front.reference is None or not front.members:
        return None
    return hypervolume([values_of(member) for member in front.members], front.goals, front.reference)


REDRAW_INTERVAL = 0.2  # seconds between two states of the block on a terminal
LOG_INTERVAL = 30.0  # seconds between two lines of status in a log
BAR_WIDTH = 20  # terminal columns
MIN_COLUMNS_FOR_BAR = 60
TASKS_SHOWN = 3  # long tasks that have a line each


class Display:
    """Writes to a stream, from any thread."""

    def __init__(
        self,
        stream: TextIO,
        interactive: bool | None = None,
        *,
        objectives: Sequence[Objective],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = Screen(stream, interactive)
        self.objectives = objectives
        self._clock = clock
        self._lock = threading.RLock()
        self._status: Status | None = None
        self._last_drawn: tuple[str, float] | None = None  # phase and time of the last status that was drawn

    def update(self, status: Status) -> None:
        """Draw the status if its phase is new or the last one has been there for long enough."""
        with self._lock:
            self._status = status
            now = self._clock()
            if self._is_due(status, now):
                self._last_drawn = (status.phase, now)
                self._draw(status)

    def _is_due(self, status: Status, now: float) -> bool:
        if self._last_drawn is None:
            return True
        phase, drawn = self._last_drawn
        interval = REDRAW_INTERVAL if self._screen.terminal else LOG_INTERVAL
        return phase != status.phase or now - drawn >= interval

    def on_change(self, change: TrialChange) -> None:
        """Write a line for a trial that has ended on a split."""
        if not change.has_ended:
            return
        if not change.on_search_split:
            self.event(split_line(change.record, change.split, self.objectives))
            return
        style = ""
        if change.record.state == "failed":
            style = "red"
        elif change.joins_front:
            style = "green"
        self.event(trial_line(change.record, self.objectives, on_front=change.joins_front), style)

    def event(self, line: str, style: str = "") -> None:
        """Write a line that stays."""
        self._screen.draw([Text(escaped(line), style)])

    def close(self) -> None:
        """Leave the last status on the terminal; in a log it is the last line."""
        with self._lock:
            if self._status is not None:
                self._draw(self._status, last=True)
                self._status = None

    def _draw(self, status: Status, *, last: bool = False) -> None:
        if not self._screen.terminal:
            self._screen.draw([status_line(status, self.objectives)])
            return
        lines = list(status_block(status, self.objectives, self._screen.columns()))
        if last:
            self._screen.draw(lines, [])
        else:
            self._screen.draw([], lines)


def status_line(status: Status, objectives: Sequence[Objective]) -> str:
    """Return the status on one line, for a log."""
    texts = [f"{status.phase}: {_counts(status)}", *_rates(status), *_tasks(status), *_front_notes(status, objectives)]
    if status.note:
        texts.append(status.note)
    return escaped("; ".join(texts))


def status_block(status: Status, objectives: Sequence[Objective], columns: int) -> Iterator[RenderableType]:
    """Yield the lines of the status, for a terminal; the first has a bar if the total is known and there is room."""
    cells: list[RenderableType] = [Text(f"{escaped(status.phase):<9}", "bold")]
    if status.whole.total and columns >= MIN_COLUMNS_FOR_BAR:
        bar = ProgressBar(
            status.whole.total, status.whole.done, BAR_WIDTH, complete_style="green", finished_style="green"
        )
        cells.append(bar)
    cells.append(Text(_counts(status), no_wrap=True))
    first_line = Table.grid(padding=(0, 1, 0, 0))
    first_line.add_row(*cells)
    yield first_line
    lines = [", ".join(_rates(status)), *_tasks(status), *_front_notes(status, objectives)]
    if status.note:
        lines.append(status.note)
    for line in lines:
        yield Text(f"{'':<9} {escaped(line)}")


def _counts(status: Status) -> str:
    ended = plural(status.n_ended, "trial")
    if status.total is not None:
        ended = f"{status.n_ended}/{plural(status.total, 'trial')}"
    counts = [ended]
    for state in ("failed", "stopped", "collapsed"):
        if status.ended.get(state):
            counts.append(f"{status.ended[state]} {state}")
    return ", ".join([*counts, f"{status.running} running"])


def _rates(status: Status) -> list[str]:
    rates = [plural(status.workers, "worker")]
    if status.images_per_second is not None:
        rates = [f"{status.images_per_second:.3g} images/s on {rates[0]}"]
    if status.whole.text:
        rates.append(status.whole.text)
    return rates


def _tasks(status: Status) -> list[str]:
    lines = list(status.doing[:TASKS_SHOWN])
    if len(status.doing) > TASKS_SHOWN:
        lines.append(f"and {plural(len(status.doing) - TASKS_SHOWN, 'task')} more")
    return lines


def _front_notes(status: Status, objectives: Sequence[Objective]) -> list[str]:
    """Return the best value of the front in each objective, and the hypervolume."""
    notes = []
    if status.best:
        best = ", ".join(_best_value(status, index, objective) for index, objective in enumerate(objectives))
        notes.append(f"front of {status.front_size}, best {best}")
    if status.hypervolume is not None:
        note = f"hypervolume {status.hypervolume:.4g}"
        if not status.hypervolume:
            note += " (no trial beats its corner in every objective)"
        notes.append(note)
    return notes


def _best_value(status: Status, index: int, objective: Objective) -> str:
    """Return the front's best value in an objective, with the best baseline if that is better."""
    choose = max if objective.goal == "max" else min
    best = status.best[index]
    text = f"{objective.metric} {format_metric(objective.metric, best)}"
    if not status.baselines:
        return text
    name, values = choose(status.baselines.items(), key=lambda item: item[1][index])
    if choose(best, values[index]) == best:
        return text
    return f"{text} ({name} {format_metric(objective.metric, values[index])})"


def trial_line(record: TrialRecord, objectives: Sequence[Objective], *, on_front: bool = False) -> str:
    """Return the outcome of a trial on the search split, on one line."""
    if record.state != "complete" or record.values is None:
        return escaped(f"{record.name}  {record.state}: {record.reason or 'no reason on record'}")
    parts = [record.name, format_values(objectives, record.values)]
    if record.duration is not None:
        parts.append(duration(record.duration))
    if record.broken:
        parts.append(f"breaks {', '.join(record.broken)}")
    elif on_front:
        parts.append("joins the front")
    return escaped("  ".join(parts))


def split_line(record: TrialRecord, split: str, objectives: Sequence[Objective]) -> str:
    """Return the outcome of a trial on another split than the one that is searched, on one line."""
    if split not in record.results:
        return escaped(f"{record.name}  {record.reason}")
    values = []
    for objective in objectives:
        value = metric_of(record.results[split], objective.metric)
        if value is not None:
            values.append(f"{objective.metric} {format_metric(objective.metric, value)}")
    return escaped(f"{record.name}  on {split}: {', '.join(values)}")
