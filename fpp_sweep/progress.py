"""How far a long run is: one refreshed line on a terminal, a line now and then in a log."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

REFRESH = 0.1  # seconds between two states of the line on a terminal
LOG = 10.0  # seconds between two lines elsewhere
KEEP = 1.0  # seconds: what was faster leaves no line behind on a terminal


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
        self._shown = shown
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._worked = 0
        self._started = self._drawn = clock()
        self._now = self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        return self._now - self._started

    @property
    def rate(self) -> float:
        """Units a second, of those that took work."""
        return self._worked / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds, once some work has shown the rate."""
        return (self.total - self.done) / self.rate if self.rate else None

    def found(self, count: int) -> None:
        """Units that are done and needed no work: they say nothing about the rate."""
        self.done += count

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._worked += count
        self._now = self._clock()
        if self._now - self._drawn >= (REFRESH if self._terminal else LOG):
            left = "" if self.remaining is None else f", {duration(self.remaining)} left"
            self._draw(f"{self._count()}, {self.rate:.1f}/s{left}")

    def note(self, line: str) -> None:
        """A line of its own."""
        if self._shown:
            self._erase()
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """The last state, where the work was long enough to be of interest."""
        if not self._worked:
            return
        self._now = self._clock()
        if self.seconds < (KEEP if self._terminal else LOG):
            self._erase()
            return
        self._draw(f"{self._count()} in {duration(self.seconds)}, {self.rate:.1f}/s")
        if self._terminal and self._shown:
            print(file=self._stream, flush=True)

    def _count(self) -> str:
        return f"{self.label}: {self.done}/{self.total} {self.unit}"

    def _draw(self, text: str) -> None:
        self._drawn = self._now
        if not self._shown:
            return
        if self._terminal:
            self._erase()
            print(text[: shutil.get_terminal_size().columns - 1], end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._terminal and self._shown:
            print("\r\033[K", end="", file=self._stream, flush=True)


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
