"""A running sweep on the terminal: a block of lines that is redrawn, or in a log a line from time to time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fpp_sweep.records.front import metric_of
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.records.texts import format_metric, format_values
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.sweep.live_status import Status

if TYPE_CHECKING:  # imports Ray
    from fpp_sweep.search.searcher import TrialChange

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
    elif status.front_size:
        notes.append(f"front of {status.front_size}, all below the floor of accuracy")
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
