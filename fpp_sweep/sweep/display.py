"""A sweep on the terminal: a few lines kept up to date in place, or plain lines for a log; and the table at its end."""

from __future__ import annotations

import os
import textwrap
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from fpp_sweep.errors import escaped
from fpp_sweep.progress import duration
from fpp_sweep.records.front import (
    Front,
    format_result,
    format_setting,
    format_values,
    front_of,
    metrics_shown,
    splits_of,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.tables import aligned
from fpp_sweep.report.words import beside, remarks, sentences
from fpp_sweep.space.objectives import Objective

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence

REFRESH = 0.2  # seconds between two states of the block on a terminal
LOG = 30.0  # seconds between two lines of status elsewhere
WIDTH = 100  # columns of the last table
_BAR = 20  # cells, on a terminal wide enough for them
_WIDE_ENOUGH = 60  # columns


@dataclass(frozen=True)
class Status:
    """How a sweep is doing."""

    phase: str  # baselines, search, test, ...
    finished: int  # trials that are complete
    failed: int
    running: int
    total: int | None  # trials; none: until time is up
    images_per_second: float | None
    front: Sequence[Sequence[float]]  # values of its members
    hypervolume: float | None
    seconds_left: float | None
    workers: int
    note: str | None  # such as how far MLflow is behind
    stopped: int = 0

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.stopped


class Display:
    """Writes to a stream from any thread; one that is closed or full is left alone from then on."""

    def __init__(
        self,
        stream: TextIO,
        interactive: bool | None = None,
        *,
        objectives: Sequence[Objective],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._terminal = _is_terminal(stream) if interactive is None else interactive
        self._objectives = objectives
        self._clock = clock
        self._lock = threading.RLock()
        self._block: list[str] = []  # the lines that stand on the terminal now
        self._status: Status | None = None
        self._last: tuple[str, float] | None = None  # phase and time of the last status written
        self._open = True

    def update(self, status: Status) -> None:
        """Show it, if the last one has been there for long enough; a new phase at once."""
        with self._lock:
            self._status = status
            now = self._clock()
            if (
                self._last is None
                or self._last[0] != status.phase
                or now - self._last[1] >= (REFRESH if self._terminal else LOG)
            ):
                self._last = (status.phase, now)
                self._write_status()

    def event(self, line: str) -> None:
        """A line that stays."""
        with self._lock:
            self._write(self._redrawn([line]) if self._terminal else f"{self._encodable(escaped(line))}\n")

    def close(self) -> None:
        """Leave the last state of the block where it is; in a log it is the last line."""
        with self._lock:
            if self._status is not None:
                self._write_status()
            self._block, self._status = [], None

    def _write_status(self) -> None:
        assert self._status is not None
        line = status_line(self._status, self._best)
        self._write(self._redrawn([]) if self._terminal else f"{self._encodable(line)}\n")

    def _best(self, points: Sequence[Sequence[float]]) -> str:
        columns = zip(self._objectives, zip(*points, strict=True), strict=True)
        best = [max(values) if objective.goal == "max" else min(values) for objective, values in columns]
        return format_values(self._objectives, best)

    def _redrawn(self, above: Sequence[str]) -> str:
        """Erases the block, writes lines where it stood, and draws it again below them."""
        columns = self._columns()
        rows = sum(-(-max(_width(line), 1) // columns) for line in self._block)  # a narrowed window wraps lines
        erase = f"\033[{rows}F\033[J" if rows else "\r\033[J"
        self._block = []
        if self._status is not None:
            # the last column stays free: to write there makes some terminals wrap
            lines = block(self._status, self._best, columns, fancy=self._can_encode("█·"))
            more = "…" if self._can_encode("…") else "."
            self._block = [_cut(self._encodable(escaped(line)), columns - 1, more) for line in lines]
        stay = [self._encodable(escaped(line)) for line in above]
        return erase + "".join(f"{line}\n" for line in (*stay, *self._block))

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0  # not a terminal, or one that does not say
        return max(columns or 80, 2)

    def _can_encode(self, text: str) -> bool:
        return self._encodable(text) == text

    def _encodable(self, text: str) -> str:
        """The text with a question mark for each character that the stream's encoding lacks."""
        encoding = self._stream.encoding or "utf-8"
        return text.encode(encoding, "replace").decode(encoding, "replace")

    def _write(self, text: str) -> None:
        if not self._open:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # its reader went away, its disk is full, or it was closed
            self._open = False


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


Best = Callable[[Sequence[Sequence[float]]], str]


def status_line(status: Status, best: Best) -> str:
    """Everything on one line, for a log."""
    fields = [f"{status.phase}: {_counts(status)}", *_rates(status), *_front_notes(status, best), status.note]
    return escaped("; ".join(field for field in fields if field))


def block(status: Status, best: Best, columns: int, *, fancy: bool) -> Iterator[str]:
    """The same on a few lines, with a bar where there is room and an end."""
    bar = f"{_bar(status, fancy=fancy)} " if status.total and columns >= _WIDE_ENOUGH else ""
    yield f"{status.phase:<9} {bar}{_counts(status)}"
    if rates := _rates(status):
        yield f"{'':<9} {', '.join(rates)}"
    if lines := _front_notes(status, best):
        yield f"{'':<9} {'; '.join(lines)}"
    if status.note:
        yield f"{'':<9} {status.note}"


def _bar(status: Status, *, fancy: bool) -> str:
    full, empty = "█·" if fancy else "#-"
    cells = min(_BAR, _BAR * status.ended // (status.total or 1))
    return full * cells + empty * (_BAR - cells)


def _counts(status: Status) -> str:
    of = "" if status.total is None else f"/{status.total}"
    failed = f", {status.failed} failed" if status.failed else ""
    stopped = f", {status.stopped} stopped" if status.stopped else ""
    return f"{status.ended}{of} trials{failed}{stopped}, {status.running} running"


def _rates(status: Status) -> list[str]:
    workers = f"{status.workers} worker{'' if status.workers == 1 else 's'}"
    rate = None if status.images_per_second is None else f"{status.images_per_second:.3g} images/s on {workers}"
    left = None if status.seconds_left is None else f"{duration(status.seconds_left)} left"
    return [text for text in (rate or workers, left) if text]


def _front_notes(status: Status, best: Best) -> list[str]:
    notes = []
    if status.front:
        notes.append(f"front of {len(status.front)}, best {best(status.front)}")
    if status.hypervolume is not None:
        notes.append(f"hypervolume {status.hypervolume:.4g}")
    return notes


def trial_line(record: TrialRecord, objectives: Sequence[Objective], *, on_front: bool = False) -> str:
    """What became of a trial, on one line."""
    if record.state != "complete" or record.values is None:
        return escaped(f"{record.name}  {record.state}: {record.reason or 'no reason on record'}")
    took = "" if record.finished is None else f"  {duration(record.finished - record.started)}"
    remark = f"  breaks {', '.join(record.broken)}" if record.broken else "  joins the front" if on_front else ""
    return escaped(f"{record.name}  {format_values(objectives, record.values)}{took}{remark}")


def final_table(info: SweepInfo, records: Sequence[TrialRecord], evidence: Evidence | None = None) -> str:
    """The front and the baselines beside it, on every split, within 100 columns, and what these numbers bear."""
    front = front_of(info, records)
    count = sum(record.kind == "trial" for record in records)
    title = f"front of {info.name}: {len(front.members)} of {count} trials, by {info.goals} on {info.search_split}"
    lines = _wrapped(title)
    if front.compared:
        table = _table(info, front, evidence, deviation=True)
        if max(map(_width, table)) > WIDTH:
            table = _table(info, front, evidence, deviation=False)
        lines += [_cut(escaped(line), WIDTH) for line in table]
    if evidence and front.members:
        told = [*sentences(info, front, evidence), *(f"note: {line}" for line in remarks(info, front, evidence))]
        lines += ["", *(part for line in told for part in _wrapped(line))]
    if any(record.params for record in front.members):
        lines.append("")
    for record in front.members:
        if record.params:
            settings = ", ".join(f"{key}={format_setting(value)}" for key, value in record.params.items())
            lines += _wrapped(f"{record.name}  {settings}")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(escaped(text), WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)


def _table(info: SweepInfo, front: Front, evidence: Evidence | None, *, deviation: bool) -> list[str]:
    """Lines of the table; splits stand above their metrics, and intervals below them."""
    splits, metrics = splits_of(info, front.compared), metrics_shown(info.objectives)
    rows = [["", *metrics * len(splits), ""]]
    for record in front.compared:
        columns = [(split, metric) for split in splits for metric in metrics]
        cells = [format_result(name, record.results.get(split), deviation=deviation) or "-" for split, name in columns]
        below = [beside(evidence, record.name, split, metric) for split, metric in columns]
        # the points that were to be tried first are recognised by their origin
        origin = [record.origin] if record.origin in ("code", "paper", "point") else []
        standing = [evidence.standing(record.name)] if evidence else []
        rows.append([record.label, *cells, ", ".join(filter(None, [*standing, *front.remarks(record), *origin]))])
        if any(below):
            rows.append(["", *below, ""])
        if front.members and front.baselines and record is front.members[-1]:
            rows.append([""] * len(rows[0]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    above = [" " * widths[0]]
    for start in range(1, len(widths) - 1, len(metrics)):
        span = sum(widths[start : start + len(metrics)]) + 2 * (len(metrics) - 1)
        above.append(f" {splits[start // len(metrics)]} ".center(span, "-"))
    return ["  ".join(above), *aligned(rows, words=(0, len(widths) - 1))]


def _width(text: str) -> int:
    """Columns on a terminal.

    >>> _width("a"), _width("字"), _width("e\u0301")
    (1, 2, 1)
    """
    letters = (letter for letter in text if not unicodedata.combining(letter))
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in letters)


def _cut(text: str, columns: int, more: str = "…") -> str:
    """
    >>> _cut("accuracy", 4), _cut("ece", 4)
    ('acc…', 'ece')
    """
    if _width(text) <= columns:
        return text
    while text and _width(text) > columns - 1:
        text = text[:-1]
    return f"{text}{more}"
