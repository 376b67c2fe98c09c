"""What trials want of the keeper: asked for in one call, and taken in as few as results allow.

A call of an actor costs some milliseconds; with hundreds of workers several results end within each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.trial.results import TaskFailed, TaskResult

TOGETHER = 0.05  # seconds in which results that end one after another are handed over in one call
LONGEST = 30.0  # seconds that a trial waits in one call

Answer = TaskResult | TaskFailed | MachineError


class PendingRequest:
    """Tasks that a trial wants done, by place, and what has ended of them."""

    def __init__(self, answers: Mapping[int, Awaitable[Answer]]) -> None:
        self.seen = time.monotonic()  # when the trial was last here
        self._ended: list[tuple[int, Answer]] = []  # in this order, without those that were taken
        self._taken = 0
        self._more = asyncio.Event()
        self._open = {asyncio.create_task(self._hear(place, answer)) for place, answer in answers.items()}

    async def _hear(self, place: int, answer: Awaitable[Answer]) -> None:
        self._ended.append((place, await answer))
        self._more.set()

    async def ended_after(self, taken: int) -> list[tuple[int, Answer]]:
        """Asked again with the same count, it gives the same and what has ended since."""
        self.seen = time.monotonic()
        del self._ended[: max(0, taken - self._taken)]
        self._taken = max(taken, self._taken)
        if not self._ended:
            self._more.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), LONGEST)
                await asyncio.sleep(TOGETHER)
        self.seen = time.monotonic()
        return list(self._ended)

    def give_up(self) -> None:
        for each in self._open:
            each.cancel()
