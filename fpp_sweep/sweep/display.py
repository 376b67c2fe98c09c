"""A sweep on the terminal: its header, a few lines kept up to date, or plain lines for a log; the table at its end."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TextIO

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import (
    Front,
    format_metric,
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
from fpp_sweep.space.validation import as_mapping
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import Screen, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fpp_sweep.report.evidence import Evidence

REFRESH = 0.2  # seconds between two states of the block on a terminal
LOG = 30.0  # seconds between two lines of status elsewhere
WIDTH = 100  # columns of the last table
REMARKS = 20  # of its last column, at least
_BAR = 20  # cells, on a terminal wide enough for them
_WIDE_ENOUGH = 60  # columns
_TASKS = 3  # that have lines of their own


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
    baselines: Mapping[str, Sequence[float]] = field(default_factory=dict)  # values, by name
    doing: Sequence[str] = ()  # what takes workers long

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.stopped


def heading(folder: SweepFolder, space: Mapping[str, Any], objectives: Sequence[Objective], split: str) -> list[str]:
    """What a sweep is, from what the space says: lines that begin with their subject."""
    work, search = (as_mapping(space.get(part, {})) for part in ("work", "search"))
    goals = " and ".join(f"{objective.metric} ({objective.goal})" for objective in objectives)
    trials, clock, hours = (search.get(key) for key in ("trials", "wall_clock", "gpu_hours"))
    budget = [f"{trials} trials" * bool(trials), f"{duration(clock or 0)} of wall clock" * bool(clock)]
    rows = {
        "sweep": folder.path.name,
        "question": " ".join(str(space.get("question", "")).split()),
        "searches": f"{goals} on {split}",
        "work": f"{work.get('model', '')} on {', '.join(work.get('datasets', ())) or work.get('dataset_file', '')}",
        "budget": ", ".join(filter(None, [*budget, f"{hours} GPU-hours" * bool(hours)])),
        "folder": str(folder.path),
        "page": (folder.report / "sweep.html").as_uri(),
    }
    return [escaped(f"{subject:<9} {text}") for subject, text in rows.items() if text]


class Display:
    """Writes to a stream from any thread."""

    def __init__(
        self,
        stream: TextIO,
        interactive: bool | None = None,
        *,
        objectives: Sequence[Objective],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = Screen(stream, interactive)
        self._objectives = objectives
        self._clock = clock
        self._lock = threading.RLock()
        self._status: Status | None = None
        self._last: tuple[str, float] | None = None  # phase and time of the last status written

    def update(self, status: Status) -> None:
        """Show it, if the last one has been there for long enough; a new phase at once."""
        with self._lock:
            self._status = status
            now = self._clock()
            pause = REFRESH if self._screen.terminal else LOG
            if self._last is None or self._last[0] != status.phase or now - self._last[1] >= pause:
                self._last = (status.phase, now)
                self._draw(status)

    def event(self, line: str, style: str = "") -> None:
        """A line that stays."""
        from rich.text import Text

        self._screen.draw([Text(escaped(line), style)])

    def close(self) -> None:
        """Leave the last state where it is; in a log it is the last line."""
        with self._lock:
            if self._status is not None:
                self._draw(self._status, last=True)
                self._status = None

    def _draw(self, status: Status, *, last: bool = False) -> None:
        if self._screen.terminal:
            lines = list(block(status, self._objectives, self._screen.columns()))
            self._screen.draw(*((lines, []) if last else ([], lines)))
        else:
            self._screen.draw([status_line(status, self._objectives)])


def status_line(status: Status, objectives: Sequence[Objective]) -> str:
    """Everything on one line, for a log."""
    rest = (*_rates(status), *_tasks(status), *_front_notes(status, objectives), status.note)
    return escaped("; ".join(text for text in (f"{status.phase}: {_counts(status)}", *rest) if text))


def block(status: Status, objectives: Sequence[Objective], columns: int) -> Iterator[RenderableType]:
    """The same on a few lines, with a bar where there is room and an end."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    first = Table.grid(padding=(0, 1, 0, 0))
    cells: list[RenderableType] = [Text(f"{escaped(status.phase):<9}", "bold"), Text(_counts(status), no_wrap=True)]
    if status.total and columns >= _WIDE_ENOUGH:
        bar = ProgressBar(status.total, status.ended, _BAR, complete_style="green", finished_style="green")
        cells.insert(1, bar)
    first.add_row(*cells)
    yield first
    for line in (", ".join(_rates(status)), *_tasks(status), *_front_notes(status, objectives), status.note):
        if line:
            yield Text(f"{'':<9} {escaped(line)}")


def _counts(status: Status) -> str:
    of = "" if status.total is None else f"/{status.total}"
    failed = f", {status.failed} failed" if status.failed else ""
    stopped = f", {status.stopped} stopped" if status.stopped else ""
    return f"{status.ended}{of} trials{failed}{stopped}, {status.running} running"


def _rates(status: Status) -> list[str]:
    workers = plural(status.workers, "worker")
    rate = None if status.images_per_second is None else f"{status.images_per_second:.3g} images/s on {workers}"
    left = None if status.seconds_left is None else f"{duration(status.seconds_left)} left"
    return [text for text in (rate or workers, left) if text]


def _tasks(status: Status) -> list[str]:
    more = len(status.doing) - _TASKS
    return [*status.doing[:_TASKS], *([f"and {plural(more, 'task')} more"] if more > 0 else [])]


def _front_notes(status: Status, objectives: Sequence[Objective]) -> list[str]:
    """The best of the front in each objective, with the baseline that is better, if one is."""
    notes = []
    if status.front:
        best = ", ".join(_best(status, place, objective) for place, objective in enumerate(objectives))
        notes.append(f"front of {len(status.front)}, best {best}")
    if status.hypervolume is not None:
        none = "" if status.hypervolume else " (no trial beats its corner in every objective)"
        notes.append(f"hypervolume {status.hypervolume:.4g}{none}")
    return notes


def _best(status: Status, place: int, objective: Objective) -> str:
    better = max if objective.goal == "max" else min
    best = better(point[place] for point in status.front)
    text = f"{objective.metric} {format_metric(objective.metric, best)}"
    name, values = better(status.baselines.items(), key=lambda item: item[1][place], default=("", ()))
    if not values or better(best, values[place]) == best:
        return text
    return f"{text} ({name} {format_metric(objective.metric, values[place])})"


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
        splits = splits_of(info, front.compared)
        table = _table(info, front, evidence, splits, deviation=True)
        if max(map(_width, table)) > WIDTH:
            table = _table(info, front, evidence, splits, deviation=False)
        if max(map(_width, table)) > WIDTH:
            table = [line for one in splits for line in ("", *_table(info, front, evidence, [one], deviation=False))]
        lines += [_cut(escaped(line), WIDTH) for line in table]
    if evidence and front.members:
        told = [*sentences(info, front, evidence), *(f"note: {line}" for line in remarks(info, front, evidence))]
        lines += ["", *(part for line in told for part in _wrapped(line))]
    if any(record.params for record in front.chosen):
        lines.append("")
    for record in front.chosen:
        if record.params:
            settings = ", ".join(f"{key}={format_setting(value)}" for key, value in record.params.items())
            lines += _wrapped(f"{record.name}  {settings}")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(escaped(text), WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)


def _table(
    info: SweepInfo, front: Front, evidence: Evidence | None, splits: Sequence[str], *, deviation: bool
) -> list[str]:
    """Lines of the table; splits stand above their metrics, and intervals below them."""
    metrics = metrics_shown(info.objectives)
    columns = [(split, metric) for split in splits for metric in metrics]
    head = ["", *metrics * len(splits)]
    pairs = {}  # of lines: values, and what stands below them
    for record in front.compared:
        cells = [format_result(name, record.results.get(split), deviation=deviation) or "-" for split, name in columns]
        below = [beside(evidence, record.name, split, metric) for split, metric in columns]
        pairs[record.name] = [[record.label, *cells], *([["", *below]] if any(below) else [])]
    widths = [max(map(len, column)) for column in zip(head, *chain(*pairs.values()), strict=True)]
    room = max(REMARKS, WIDTH - sum(widths) - 2 * len(widths))
    rows = [[*head, ""]]
    for record in front.compared:
        # the points that were to be tried first are recognised by their origin
        origin = [record.origin] if record.origin in ("code", "paper", "point") else []
        standing = [evidence.standing(record.name)] if evidence else []
        words = ", ".join(filter(None, [*standing, *front.remarks(record), *origin]))
        told = zip_longest(pairs[record.name], textwrap.wrap(words, room))
        rows += [[*(line or [""] * len(head)), part or ""] for line, part in told]
        if front.chosen and front.baselines and record is front.chosen[-1]:
            rows.append([""] * len(rows[0]))
    above = [" " * widths[0]]
    for start in range(1, len(widths), len(metrics)):
        span = sum(widths[start : start + len(metrics)]) + 2 * (len(metrics) - 1)
        above.append(f" {splits[start // len(metrics)]} ".center(span, "-"))
    return ["  ".join(above), *aligned(rows, words=(0, len(widths)))]


def _width(text: str) -> int:
    """Columns on a terminal.

    >>> _width("a"), _width("字"), _width("e\u0301")
    (1, 2, 1)
    """
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, columns: int) -> str:
    """
    >>> _cut("accuracy", 4), _cut("ece", 4)
    ('acc…', 'ece')
    """
    from rich.text import Text

    cut = Text(text)
    cut.truncate(columns, overflow="ellipsis")
    return cut.plain
