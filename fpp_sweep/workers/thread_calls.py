"""Blocking calls, such as reading a file, which an event loop passes to a few threads."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

# A thread starts no further call after this many seconds; its batch then shows whether calls are slow.
BATCH_SECONDS = 0.02
# Mean time of a call from which another thread helps. On a busy machine a short call takes some milliseconds, too;
# further threads would only wait for each other.
SLOW_SECONDS = 0.01
STUCK_SECONDS = 0.1  # after which calls that wait get another thread
MAX_THREADS = 8  # one ThreadCalls uses at most as many; a disk that answers slowly is asked by all of them

Result = TypeVar("Result")


class ThreadCalls:
    """Runs calls in threads beside the event loop; they begin in the order of the requests.

    One thread runs short calls one after another: a thread for each would cost more than reading or writing a small
    file, since threads take turns at Python's global lock. While calls take long, more threads take from the same
    queue, so that a call that hangs holds back no other.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS)  # its own: calls of another ThreadCalls may all hang
        self._waiting: deque[_Call] = deque()
        # A runner uses one thread, and ends when no call waits; its value is `time.monotonic()` when its batch began.
        self._runners: dict[asyncio.Task[None], float] = {}

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a call, or raise its error."""
        call = _Call(partial(function, *arguments))
        self._waiting.append(call)
        last_begin = max(self._runners.values(), default=-math.inf)
        threads_are_stuck = time.monotonic() - last_begin > STUCK_SECONDS
        if threads_are_stuck:
            self._start_runner()
        return await call.future  # type: ignore[no-any-return]

    def _start_runner(self) -> None:
        if len(self._runners) < MAX_THREADS:
            self._runners[asyncio.create_task(self._run_until_none_waits())] = time.monotonic()

    async def _run_until_none_waits(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None
        try:
            while self._waiting:
                self._runners[runner] = time.monotonic()
                await self._run_batch()
        finally:
            del self._runners[runner]

    async def _run_batch(self) -> None:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        check = loop.call_later(STUCK_SECONDS, self._help_waiting_calls)
        try:
            n_calls = await loop.run_in_executor(self._threads, self._run_for_a_while, loop)
        except Exception as error:  # no thread could start
            while self._waiting:
                call = self._waiting.popleft()
                call.error = error
                call.hand_over()
            return
        finally:
            check.cancel()
        seconds_per_call = (time.monotonic() - began) / max(1, n_calls)
        if seconds_per_call > SLOW_SECONDS:
            self._help_waiting_calls()

    def _help_waiting_calls(self) -> None:
        if self._waiting:
            self._start_runner()

    def _run_for_a_while(self, loop: asyncio.AbstractEventLoop) -> int:
        """Run waiting calls in this thread, as long as there is time; return how many it has run."""
        end = time.monotonic() + BATCH_SECONDS
        n_calls = 0
        while not n_calls or time.monotonic() < end:
            try:
                call = self._waiting.popleft()
            except IndexError:  # other threads have taken the rest
                break
            call.run()
            loop.call_soon_threadsafe(call.hand_over)  # not with its batch, whose next call may hang
            n_calls += 1
        return n_calls


class _Call:
    """A call, its outcome, and the future of the caller that waits for it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.value: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Run the call in a thread; a caller that was cancelled needs no result."""
        if self.future.cancelled():
            return
        try:
            self.value = self.function()
        except StopIteration as error:  # no future accepts it
            self.error = RuntimeError(f"StopIteration: {error}")
        except Exception as error:
            self.error = error
        except BaseException as error:  # would end the batch, and the event loop with it
            self.error = RuntimeError(f"{type(error).__name__}: {error}")

    def hand_over(self) -> None:
        if self.future.done():  # cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)
