"""A sweep on the terminal: a few lines kept up to date in place, or plain lines for a log; and the table at its end."""

from __future__ import annotations

import os
import textwrap
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from fpp_sweep.progress import duration
from fpp_sweep.records.front import Front, format_metric, format_setting, front_of, metric_of, metrics_shown, splits_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective

REFRESH = 0.2  # seconds between two states of the block on a terminal
LOG = 30.0  # seconds between two lines of status elsewhere
WIDTH = 100  # columns of the last table
_BAR = 20  # cells, on a terminal wide enough for them
_WIDE_ENOUGH = 60  # columns


@dataclass(frozen=True)
class Status:
    """How a sweep is doing."""

    phase: str  # baselines, search, test, ...
    finished: int  # trials that ended well
    failed: int
    running: int
    total: int | None  # trials; none: until time is up
    images_per_second: float | None
    front: Sequence[Sequence[float]]  # values of its members
    hypervolume: float | None
    seconds_left: float | None
    workers: int
    note: str | None  # such as how far MLflow is behind


class Display:
    """Writes to a stream from any thread; one that is closed or full is left alone from then on."""

    def __init__(
        self,
        stream: TextIO,
        interactive: bool | None = None,
        *,
        objectives: Sequence[Objective] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._terminal = _is_terminal(stream) if interactive is None else interactive
        self._objectives = objectives
        self._clock = clock
        self._lock = threading.RLock()
        self._block: list[str] = []  # the lines that stand on the terminal now
        self._status: Status | None = None
        self._told: tuple[str, float] | None = None  # phase and time of the last status
        self._open = True

    def update(self, status: Status) -> None:
        """Show it, if the last one has been there for long enough; a new phase at once."""
        with self._lock:
            self._status = status
            now = self._clock()
            since = None if self._told is None or self._told[0] != status.phase else now - self._told[1]
            if since is None or since >= (REFRESH if self._terminal else LOG):
                self._told = (status.phase, now)
                self._write(self._redrawn([]) if self._terminal else self._fitting(status_line(status, self._best)))

    def event(self, line: str) -> None:
        """A line that stays."""
        with self._lock:
            self._write(self._redrawn([line]) if self._terminal else self._fitting(_printable(line)))

    def close(self) -> None:
        """Leave the last state of the block where it is; in a log it is the last line."""
        with self._lock:
            if self._status is not None:
                line = self._fitting(status_line(self._status, self._best))
                self._write(self._redrawn([]) if self._terminal else line)
            self._block, self._status = [], None

    def _best(self, points: Sequence[Sequence[float]]) -> str:
        columns = zip(*points, strict=True)
        return ", ".join(
            f"{objective.metric} {format_metric(objective.metric, (max if objective.goal == 'max' else min)(column))}"
            for objective, column in zip(self._objectives, columns, strict=False)
        )

    def _redrawn(self, above: Sequence[str]) -> str:
        """What takes the block away, writes lines where it stood, and puts it below them as it is now."""
        columns = self._columns()
        rows = sum(-(-max(_width(line), 1) // columns) for line in self._block)  # a narrowed window wraps lines
        erase = f"\033[{rows}F\033[J" if rows else "\r\033[J"
        self._block = []
        if self._status is not None:
            # the last column stays free: to write there makes some terminals wrap
            lines = block(self._status, self._best, columns, fancy=self._can_show("█·"))
            more = "…" if self._can_show("…") else "."
            self._block = [_cut(self._shown(_printable(line)), columns - 1, more) for line in lines]
        stay = [self._shown(_printable(line)) for line in above]
        return erase + "".join(f"{line}\n" for line in (*stay, *self._block))

    def _fitting(self, line: str) -> str:
        return f"{self._shown(line)}\n"

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0  # not a terminal, or one that does not say
        return max(columns or 80, 2)

    def _can_show(self, text: str) -> bool:
        return self._shown(text) == text

    def _shown(self, text: str) -> str:
        """The text with what the stream has no letters for replaced."""
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
    notes = [status.note] if status.note else []
    return _printable(
        "; ".join([f"{status.phase}: {_counts(status)}", *_rates(status), *_front_notes(status, best), *notes])
    )


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
    cells = min(_BAR, _BAR * (status.finished + status.failed) // (status.total or 1))
    return full * cells + empty * (_BAR - cells)


def _counts(status: Status) -> str:
    of = "" if status.total is None else f"/{status.total}"
    failed = f", {status.failed} failed" if status.failed else ""
    return f"{status.finished + status.failed}{of} trials{failed}, {status.running} running"


def _rates(status: Status) -> list[str]:
    workers = f"{status.workers} worker{'' if status.workers == 1 else 's'}"
    rate = None if status.images_per_second is None else f"{status.images_per_second:.3g} images/s on {workers}"
    left = None if status.seconds_left is None else f"{duration(status.seconds_left)} left"
    return [text for text in (rate or workers, left) if text]


def _front_notes(status: Status, best: Best) -> list[str]:
    notes = []
    if status.front:
        values = best(status.front)
        notes.append(f"front of {len(status.front)}{f', best {values}' if values else ''}")
    if status.hypervolume is not None:
        notes.append(f"hypervolume {status.hypervolume:.4g}")
    return notes


def trial_line(record: TrialRecord, objectives: Sequence[Objective], *, on_front: bool = False) -> str:
    """What became of a trial, on one line."""
    if record.state != "complete" or record.values is None:
        return _printable(f"{record.name}  {record.state}: {record.reason or 'no reason on record'}")
    values = ", ".join(
        f"{objective.metric} {format_metric(objective.metric, value)}"
        for objective, value in zip(objectives, record.values, strict=True)
    )
    took = "" if record.finished is None else f"  {duration(record.finished - record.started)}"
    broken = ", ".join(name for name, value in record.constraints.items() if value > 0)
    remark = f"  breaks {broken}" if broken else "  joins the front" if on_front else ""
    return _printable(f"{record.name}  {values}{took}{remark}")


def final_table(info: SweepInfo, records: Sequence[TrialRecord]) -> str:
    """The front and the baselines beside it, on every split, within 100 columns."""
    front = front_of(info, records)
    goals = " and ".join(f"{objective.metric} ({objective.goal})" for objective in info.objectives)
    count = sum(record.kind == "trial" for record in records)
    title = f"front of {info.name}: {len(front.members)} of {count} trials, by {goals} on {info.search_split}"
    if not (front.members or front.baselines):
        return "\n".join(_wrapped(title))
    table = _columns(info, front, spread=True)
    if max(map(_width, table)) > WIDTH:
        table = _columns(info, front, spread=False)
    settings = [line for record in front.members if record.params for line in _wrapped(_settings(record))]
    lines = [
        *_wrapped(title),
        *(_cut(_printable(line), WIDTH) for line in table),
        *([""] if settings else []),
        *settings,
    ]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(_printable(text), WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)


def _columns(info: SweepInfo, front: Front, *, spread: bool) -> list[str]:
    """Lines of the table; splits stand above their metrics."""
    records = [*front.members, *front.baselines]
    splits, metrics = splits_of(info, records), metrics_shown(info.objectives)
    cells = [[_cell(record, split, metric, spread) for split in splits for metric in metrics] for record in records]
    names = [record.name.removeprefix("baseline-") for record in records]
    marks = [", ".join(_marks(front, record)) for record in records]
    heads = metrics * len(splits)
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    first = max(map(len, names))
    spans = [sum(widths[start : start + len(metrics)]) + 2 * (len(metrics) - 1) for start in _starts(splits, metrics)]
    lines = [
        "  ".join([" " * first, *(f" {split} ".center(span, "-") for split, span in zip(splits, spans, strict=True))]),
        _line("", heads, "", first, widths),
        *(_line(*row, first, widths) for row in zip(names, cells, marks, strict=True)),
    ]
    if front.members and front.baselines:
        lines.insert(2 + len(front.members), "")
    return lines


def _starts(splits: Sequence[str], metrics: Sequence[str]) -> range:
    return range(0, len(splits) * len(metrics), len(metrics))


def _line(name: str, cells: Sequence[str], mark: str, first: int, widths: Sequence[int]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([name.ljust(first), *numbers, mark]).rstrip()


def _cell(record: TrialRecord, split: str, metric: str, spread: bool) -> str:
    result = record.results.get(split)
    deviation = result.deviation.get(metric) if result and spread else None
    return format_metric(metric, metric_of(result, metric), deviation) or "-"


def _marks(front: Front, record: TrialRecord) -> list[str]:
    """What stands out; the points that were to be tried first are told by their origin."""
    origin = [record.origin] if record.origin in ("code", "paper", "point") else []
    broken = [] if record.feasible else ["breaks a constraint"]
    return [*front.marks.get(record.name, []), *origin, *broken]


def _settings(record: TrialRecord) -> str:
    return f"{record.name}  {', '.join(f'{key}={format_setting(value)}' for key, value in record.params.items())}"


def _printable(text: str) -> str:
    """On one line, and without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _width(text: str) -> int:
    """Columns on a terminal.

    >>> _width("a"), _width("字"), _width("e\u0301")
    (1, 2, 1)
    """
    return sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


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
