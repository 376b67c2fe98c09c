"""Blocking calls that share a thread: their order, their errors, and what happens if a caller stops waiting."""

import asyncio
import threading

import pytest

from fpp_sweep.workers.thread_calls import ThreadCalls
from tests.kit.scheduler import until
from tests.kit.waiting import LONG


class Gate:
    """A blocking call that lasts until it is opened, and a log of calls after it."""

    def __init__(self):
        self.has_begun, self.is_open = threading.Event(), threading.Event()
        self.log = []

    def wait(self):
        self.has_begun.set()
        assert self.is_open.wait(LONG)

    def note(self, number):
        """Log the number and the thread."""
        self.log.append((number, threading.get_ident()))
        return number


async def test_calls_that_come_while_the_thread_works_run_in_their_order_in_one_thread():
    calls, gate = ThreadCalls(), Gate()
    first = asyncio.create_task(calls.run(gate.wait))
    await until(gate.has_begun.is_set)
    others = [asyncio.create_task(calls.run(gate.note, number)) for number in range(5)]
    gate.is_open.set()
    assert await asyncio.gather(first, *others) == [None, 0, 1, 2, 3, 4]
    assert [number for number, _ in gate.log] == [0, 1, 2, 3, 4]
    threads = {thread for _, thread in gate.log}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


async def test_an_error_reaches_its_caller_only():
    calls = ThreadCalls()
    requests = [calls.run(int, text) for text in ("7", "x", "8")]
    first, second, third = await asyncio.gather(*requests, return_exceptions=True)
    assert (first, third) == (7, 8)
    assert isinstance(second, ValueError)


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others():
    calls, gate = ThreadCalls(), Gate()
    cancelled = asyncio.create_task(calls.run(gate.wait))
    other = asyncio.create_task(calls.run(gate.note, 1))
    await until(gate.has_begun.is_set)
    cancelled.cancel()
    gate.is_open.set()
    assert await other == 1
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await calls.run(gate.note, 2) == 2


async def test_callers_get_the_error_if_no_thread_can_start(monkeypatch):
    async def no_thread(function, *arguments):
        raise RuntimeError("can't start new thread")

    calls = ThreadCalls()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "to_thread", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await calls.run(int, "7")
    assert await calls.run(int, "7") == 7
