"""A running sweep on the terminal: its announcement, then a block that is redrawn, or in a log a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metric_of, values_of
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
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
    from fpp_sweep.workers.session import SchedulerStatus

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
    if search.get("wall_clock"):
        text += "; beyond the budget of time"  # it ends the search only
    return text


@dataclass(frozen=True, slots=True)
class Status:
    """A running sweep as the terminal shows it."""

    phase: str  # baselines, search, final stage, ...
    whole: SweepProgress  # with the stages after the search
    lines: Sequence[str]  # trials, rates, long tasks, the front, problems


def live_status(searcher: SweepSearcher, scheduler: SchedulerStatus, info: SweepInfo, *, seconds: float) -> Status:
    """Return the state of a sweep whose driver has worked for `seconds`."""
    records = searcher.records()
    whole = progress_of(info, records, info.spent + seconds)
    rates = [plural(scheduler.workers, "worker")]
    if scheduler.counts.images:
        rates = [f"{scheduler.counts.images / seconds:.3g} images/s on {rates[0]}"]
    if whole.text:
        rates.append(whole.text)
    lines = [_counts(searcher), ", ".join(rates), *_tasks(scheduler.doing)]
    front = front_of(info, records)
    if front.members:
        lines.append(_front_text(front))
    return Status(searcher.phase, whole, [*lines, *scheduler.notes])


def _counts(searcher: SweepSearcher) -> str:
    states = searcher.ended()
    ended = plural(states.total(), "trial")
    if searcher.total is not None:
        ended = f"{states.total()}/{plural(searcher.total, 'trial')}"
    counts = [ended]
    for state in ("failed", "stopped", "collapsed"):
        if states[state]:
            counts.append(f"{states[state]} {state}")
    return ", ".join([*counts, f"{searcher.n_running} running"])


def _tasks(doing: Sequence[str]) -> list[str]:
    lines = list(doing[:TASKS_SHOWN])
    if len(doing) > TASKS_SHOWN:
        lines.append(f"and {plural(len(doing) - TASKS_SHOWN, 'task')} more")
    return lines


def _front_text(front: Front) -> str:
    """Return the size of the front and its best value in each objective."""
    best = []
    for index, objective in enumerate(front.objectives):
        choose = max if objective.goal == "max" else min
        value = choose(values_of(member)[index] for member in front.members)
        best.append(f"{objective.metric} {format_metric(objective.metric, value)}")
    return f"front of {len(front.members)}, best {', '.join(best)}"


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
            self._screen.draw([status_line(status)])
            return
        lines = list(status_block(status, self._screen.columns()))
        if last:
            self._screen.draw(lines, [])
        else:
            self._screen.draw([], lines)


def status_line(status: Status) -> str:
    """Return the status on one line, for a log."""
    return escaped(f"{status.phase}: {'; '.join(status.lines)}")


def status_block(status: Status, columns: int) -> Iterator[RenderableType]:
    """Yield the lines of the status, for a terminal; the first has a bar if the total is known and there is room."""
    cells: list[RenderableType] = [Text(f"{escaped(status.phase):<9}", "bold")]
    if status.whole.total and columns >= MIN_COLUMNS_FOR_BAR:
        bar = ProgressBar(
            status.whole.total, status.whole.done, BAR_WIDTH, complete_style="green", finished_style="green"
        )
        cells.append(bar)
    cells.append(Text(escaped(status.lines[0]), no_wrap=True))
    first_line = Table.grid(padding=(0, 1, 0, 0))
    first_line.add_row(*cells)
    yield first_line
    for line in status.lines[1:]:
        yield Text(f"{'':<9} {escaped(line)}")


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
    where = "in the final stage" if split == FINAL else f"on {split}"
    return escaped(f"{record.name}  {where}: {', '.join(values)}")
