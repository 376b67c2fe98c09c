"""What is kept up to date while one looks: a block in place on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TextIO

from fpp_sweep.spec.errors import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH = 0.1  # seconds between two states of the line on a terminal
LOG = 10.0  # seconds between two lines elsewhere
KEEP = 1.0  # seconds: what was faster leaves no line behind on a terminal
ENDLESS = 10_000  # columns of a log
MOST_LINES = 12  # of a block: what is higher than the window cannot be cleared


class Screen:
    """Lines that stay and, on a terminal, a block below them, drawn anew in place; from any thread.

    Rich draws and measures. It is written here, so that a window that was narrowed, which wraps the block, is cleared,
    the cursor stays visible however the process ends, and a stream that is closed or full is left alone from then on.
    """

    def __init__(self, stream: TextIO, terminal: bool | None = None) -> None:
        self.terminal = _is_terminal(stream) if terminal is None else terminal
        self._stream = stream
        self._lock = threading.RLock()
        self._block: Sequence[RenderableType] = ()
        self._widths: list[int] = []  # of the block's lines as they stand there
        self._open = True

    def draw(self, stay: Iterable[RenderableType] = (), block: Sequence[RenderableType] | None = None) -> None:
        """Lines that stay, above the block; another block, or the same again. Texts must be `escaped`."""
        with self._lock:
            self._block = self._block if block is None else block
            standing = sum(-(-max(width, 1) // self.columns()) for width in self._widths)
            erase = f"\033[{standing}F\033[J" if standing else "\r\033[J" if self._block else ""
            try:
                if self._open:
                    self._stream.write(erase + self.text(stay))
                    self._stream.flush()
            except (OSError, ValueError):  # its reader went away, its disk is full, or it was closed
                self._open = False

    def text(self, stay: Iterable[RenderableType]) -> str:
        """What stays and the block, with a question mark for each character that the stream's encoding lacks."""
        from rich.console import Console
        from rich.segment import Segment, Segments
        from rich.text import Text

        memory = io.BytesIO()
        file = io.TextIOWrapper(memory, self._stream.encoding or "utf-8", "replace", newline="")
        columns = self.columns()
        console = Console(file=file, width=columns, height=100, force_terminal=self.terminal, highlight=False)
        for one in stay:
            console.print(one, soft_wrap=isinstance(one, str | Text), markup=False, emoji=False)
        # the last column stays free: to write there makes some terminals wrap
        options = console.options.update(width=columns - 1, no_wrap=True)
        options.overflow = "crop" if options.ascii_only else "ellipsis"
        lines = [line for one in self._block for line in console.render_lines(one, options, pad=False)][:MOST_LINES]
        self._widths = [Segment.get_line_length(line) for line in lines]
        console.print(Segments([part for line in lines for part in (*line, Segment.line())]), end="", soft_wrap=True)
        file.flush()
        text = memory.getvalue().decode(file.encoding)
        return text if self.terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def columns(self) -> int:
        if not self.terminal:
            return ENDLESS
        with suppress(OSError, ValueError):
            return max(2, os.get_terminal_size(self._stream.fileno()).columns or 80)
        return 80  # one that does not say


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


class Bar:
    """Counts units of work on stderr; to be closed, best by `with`.

    >>> with Bar("features", 3, stream=sys.stdout, clock=iter(range(0, 100, 15)).__next__) as bar:
    ...     bar.found(1)
    ...     bar.advance(1)
    features: 2/3 images, 0.1/s, 15 s left
    features: 2/3 images in 30 s, 0.0/s
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "images",
        *,
        shown: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self.closed = False
        self._screen = Screen(stream or sys.stderr) if shown else None
        self._pause, self._least = (REFRESH, KEEP) if self._screen and self._screen.terminal else (LOG, LOG)
        self._clock = clock
        self._worked = 0
        self.started = self._drawn = self._now = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        return self._now - self.started

    @property
    def rate(self) -> float:
        """Units a second, of those that took work."""
        return self._worked / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds, once some work has shown the rate."""
        return max(0, self.total - self.done) / self.rate if self.rate else None

    def __str__(self) -> str:
        left = "" if self.remaining is None else f", {duration(self.remaining)} left"
        return f"{self.label}: {self.done}/{self.total} {self.unit}, {self.rate:.1f}/s{left}"

    def found(self, count: int) -> None:
        """Units that are done and needed no work: they say nothing about the rate."""
        self.done += count

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._worked += count
        self._now = self._clock()
        if self._now - self._drawn >= self._pause:
            self._drawn = self._now
            self._draw(escaped(str(self)))

    def note(self, line: str) -> None:
        """A line of its own."""
        if self._screen:
            self._screen.draw([escaped(line)])

    def close(self) -> None:
        """The last state, where the work was long enough to be of interest."""
        self.closed = True
        if not self._worked:
            return
        self._now = self._clock()
        last = f"{self.label}: {self.done}/{self.total} {self.unit} in {duration(self.seconds)}, {self.rate:.1f}/s"
        if self._screen:
            self._screen.draw([escaped(last)] if self.seconds >= self._least else [], [])

    def _draw(self, text: str) -> None:
        if self._screen:
            self._screen.draw(*(([], [text]) if self._screen.terminal else ([text],)))


def duration(seconds: float) -> str:
    """
    >>> duration(7384), duration(75), duration(4)
    ('2:03:04', '1:15', '4 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def shares(seconds: Mapping[str, float]) -> str:
    """What time went to, the longest first.

    >>> shares({"disk": 1.0, "tower": 3.0})
    'tower 75 %, disk 25 %'
    """
    total = sum(seconds.values())
    return ", ".join(
        f"{name} {100 * each / total:.0f} %" for name, each in sorted(seconds.items(), key=lambda i: -i[1])
    )
