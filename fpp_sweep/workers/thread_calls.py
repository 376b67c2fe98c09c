"""Blocking calls of an event loop, such as reading a file, which run in a thread, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")


class ThreadCalls:
    """Runs calls in one thread at a time, in the order in which they were requested.

    Calls that are requested at the same moment, or while the thread works, run in one thread together. A thread for
    each call would cost more than reading or writing a small file, since threads take turns at Python's global lock.
    """

    def __init__(self) -> None:
        self._waiting: list[_Call] = []
        self._loop: asyncio.Task[None] | None = None  # runs while there are calls

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a call, or raise its error."""
        call = _Call(partial(function, *arguments))
        self._waiting.append(call)
        if self._loop is None:
            self._loop = asyncio.create_task(self._run_waiting())
        return await call.future  # type: ignore[no-any-return]

    async def _run_waiting(self) -> None:
        try:
            while self._waiting:
                calls = self._waiting
                self._waiting = []
                try:
                    await asyncio.to_thread(_run_all, calls)
                except Exception as error:  # no thread could start
                    for call in calls:
                        call.error = error
                for call in calls:
                    call.hand_over()
        finally:
            self._loop = None


class _Call:
    """A call, its outcome, and the future of those who wait for it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.value: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.value = self.function()
        except Exception as error:
            self.error = error

    def hand_over(self) -> None:
        if self.future.done():  # cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


def _run_all(calls: list[_Call]) -> None:
    for call in calls:
        call.run()
