"""How long tasks take with so many workers: handed out on paper, as a sweep hands them out."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Piece:
    """A task, on paper."""

    key: str
    seconds: float
    needs: tuple[str, ...] = ()  # keys of pieces of the same trial


@dataclass(slots=True)
class Schedule:
    """Workers and what they have done; the oldest trial's pieces go first, of a trial the longest.

    >>> trial = [Piece("prompt", 3), Piece("shard", 1, needs=("prompt",)), Piece("baseline", 2)]
    >>> Schedule(workers=2).run([trial], at_once=1), Schedule(workers=1).run([trial], at_once=1)
    (4.0, 6.0)
    """

    workers: int
    now: float = 0.0
    _known: set[str] = field(default_factory=set)  # begun, or waiting for something
    _done: set[str] = field(default_factory=set)
    _ready: list[tuple[int, float, str]] = field(default_factory=list)  # trial, its longest first, key
    _running: list[tuple[float, str]] = field(default_factory=list)  # when it ends
    _blocked: dict[str, list[tuple[int, Piece]]] = field(default_factory=lambda: defaultdict(list))
    _waiting: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # trials, for a piece
    _left: dict[int, int] = field(default_factory=dict)  # pieces that a trial under way waits for
    _trials: int = 0

    def run(self, trials: Sequence[Sequence[Piece]], at_once: int) -> float:
        """When the last of these trials has ended; each piece is done once, whoever asks for it."""
        queue = [*reversed(trials)]
        while queue or self._left:
            while queue and len(self._left) < at_once:
                self._enter(queue.pop())
            while self._ready and len(self._running) < self.workers:
                _, seconds, key = heapq.heappop(self._ready)
                heapq.heappush(self._running, (self.now - seconds, key))
            if self._running:
                self.now, key = heapq.heappop(self._running)
                self._end(key)
        return self.now

    def _enter(self, pieces: Sequence[Piece]) -> None:
        self._trials += 1
        for piece in (piece for piece in pieces if piece.key not in self._done):
            self._left[self._trials] = self._left.get(self._trials, 0) + 1
            self._waiting[piece.key].append(self._trials)
            if piece.key not in self._known:
                self._known.add(piece.key)
                self._wait(self._trials, piece)

    def _wait(self, trial: int, piece: Piece) -> None:
        """For the first thing that it needs and that is not done, else for a worker."""
        if missing := next((need for need in piece.needs if need not in self._done), None):
            self._blocked[missing].append((trial, piece))
        else:
            heapq.heappush(self._ready, (trial, -piece.seconds, piece.key))

    def _end(self, key: str) -> None:
        self._done.add(key)
        for trial, piece in self._blocked.pop(key, ()):
            self._wait(trial, piece)
        for trial in self._waiting.pop(key):
            self._left[trial] -= 1
            if not self._left[trial]:
                del self._left[trial]
