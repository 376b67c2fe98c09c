"""Progress: a block of lines that is drawn anew on a terminal, or a plain line now and then in a log."""

from __future__ import annotations

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
    from rich.live_render import LiveRender

REFRESH_INTERVAL = 0.1  # seconds between two states of a line on a terminal
LOG_INTERVAL = 10.0  # seconds between two lines in a log
MIN_SECONDS_SHOWN = 1.0  # faster work leaves no line behind on a terminal
LOG_COLUMNS = 10_000  # width of a log, whose lines are never wrapped
DEFAULT_COLUMNS = 80  # width of a terminal that does not report one


class Screen:
    """A stream with lines that stay and, on a terminal, a block below them that is drawn anew; safe from any thread.

    A stream that is closed or full is left alone.
    """

    def __init__(self, stream: TextIO, terminal: bool | None = None) -> None:
        if terminal is None:
            terminal = _is_terminal(stream)
        self.terminal = terminal
        self._stream = stream
        self._lock = threading.RLock()
        self._block: LiveRender | None = None
        self._usable = True

    def draw(self, stay: Iterable[RenderableType] = (), block: Sequence[RenderableType] | None = None) -> None:
        """Write lines that stay, and the block below them: a new one or the same again. Texts must be `escaped`."""
        with self._lock:
            try:
                if self._usable:
                    self._write(stay, block)
            except (OSError, ValueError):  # the stream's reader is gone, its disk is full, or it was closed
                self._usable = False

    def _write(self, stay: Iterable[RenderableType], block: Sequence[RenderableType] | None) -> None:
        from rich import console, live_render  # start-up time: rich draws for those who watch

        screen = console.Console(
            file=self._stream,
            force_terminal=self.terminal,
            width=self.columns() - 1,  # writing in the last column makes some terminals wrap
            markup=False,
            emoji=False,
            highlight=False,
        )
        with screen:  # writes all at once
            if self._block is not None:
                screen.control(self._block.position_cursor())  # erases it
            for line in stay:
                screen.print(line, soft_wrap=True)
            if block is not None:
                self._block = None
            if block:
                self._block = live_render.LiveRender(console.Group(*block, ""), vertical_overflow="crop")
            if self._block is not None:
                screen.print(self._block, no_wrap=True, overflow="ellipsis")

    def columns(self) -> int:
        """Return the width of the terminal, or of a log."""
        if not self.terminal:
            return LOG_COLUMNS
        with suppress(OSError, ValueError):
            return max(2, os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_COLUMNS)
        return DEFAULT_COLUMNS


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


class Bar:
    """A counter of units of work on stderr; close it, best by `with`.

    >>> with Bar("features", 3, stream=sys.stdout, clock=iter(range(0, 100, 15)).__next__) as bar:
    ...     bar.add_cached(1)
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
        self._screen = None
        if shown:
            self._screen = Screen(stream or sys.stderr)
        self._interval, self._min_seconds = LOG_INTERVAL, LOG_INTERVAL
        if self._screen and self._screen.terminal:
            self._interval, self._min_seconds = REFRESH_INTERVAL, MIN_SECONDS_SHOWN
        self._clock = clock
        self._computed = 0  # units done by computing; the others came from a cache
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
        """Computed units per second."""
        if self.seconds <= 0:
            return 0.0
        return self._computed / self.seconds

    @property
    def remaining(self) -> float | None:
        """Seconds that are left at this rate; None until some work has shown the rate."""
        if not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate

    def __str__(self) -> str:
        text = f"{self.label}: {self.done}/{self.total} {self.unit}, {self.rate:.1f}/s"
        if self.remaining is not None:
            text += f", {duration(self.remaining)} left"
        return text

    def add_cached(self, count: int) -> None:
        """Count units that were cached: they say nothing about the rate."""
        self.done += count

    def advance(self, count: int = 1) -> None:
        """Count units that were computed."""
        self.done += count
        self._computed += count
        self._now = self._clock()
        if self._now - self._drawn >= self._interval:
            self._drawn = self._now
            self._draw(escaped(str(self)))

    def note(self, line: str) -> None:
        """Write a line that stays above the counter."""
        if self._screen:
            self._screen.draw([escaped(line)])

    def close(self) -> None:
        """Write the last state if the work was long enough to be of interest."""
        self.closed = True
        if not self._computed:
            return
        self._now = self._clock()
        if self._screen is None:
            return
        last = f"{self.label}: {self.done}/{self.total} {self.unit} in {duration(self.seconds)}, {self.rate:.1f}/s"
        stay = []
        if self.seconds >= self._min_seconds:
            stay = [escaped(last)]
        self._screen.draw(stay, block=[])

    def _draw(self, text: str) -> None:
        if self._screen is None:
            return
        if self._screen.terminal:
            self._screen.draw(block=[text])
        else:
            self._screen.draw([text])


def duration(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds.

    >>> duration(7384), duration(75), duration(4)
    ('2:03:04', '1:15', '4 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    if minutes:
        return f"{minutes}:{rest:02d}"
    return f"{rest} s"


def time_shares(seconds: Mapping[str, float]) -> str:
    """Return the share of each step in the time of all, the longest first.

    >>> time_shares({"disk": 1.0, "tower": 3.0})
    'tower 75 %, disk 25 %'
    """
    total = sum(seconds.values())
    steps = sorted(seconds, key=lambda name: -seconds[name])
    return ", ".join(f"{name} {100 * seconds[name] / total:.0f} %" for name in steps)
