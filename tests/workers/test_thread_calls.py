"""Blocking calls that share threads: their batches, their errors, slow calls, and callers that stop waiting."""

import asyncio
import threading
import time

import pytest

from fpp_sweep.workers import thread_calls
from fpp_sweep.workers.thread_calls import MAX_THREADS, ThreadCalls
from tests.kit.scheduler import until
from tests.kit.waiting import LONG


@pytest.fixture
def batches(monkeypatch):
    """Numbers of calls that one thread ran after another; it has all the time that it needs, and gets no help."""
    sizes = []
    run_for_a_while = ThreadCalls._run_for_a_while

    def count(calls, loop):
        n_calls = run_for_a_while(calls, loop)
        sizes.append(n_calls)
        return n_calls

    monkeypatch.setattr(ThreadCalls, "_run_for_a_while", count)
    monkeypatch.setattr(thread_calls, "BATCH_SECONDS", LONG)
    monkeypatch.setattr(thread_calls, "STUCK_SECONDS", LONG)
    return sizes


class Gate:
    """A blocking call that lasts until it is opened, and a log of other calls."""

    def __init__(self):
        self.has_begun, self.is_open = threading.Event(), threading.Event()
        self.log = []

    def wait(self):
        self.has_begun.set()
        assert self.is_open.wait(LONG)

    def note(self, number):
        self.log.append(number)
        return number


def begin(calls, function, numbers):
    return [asyncio.create_task(calls.run(function, number)) for number in numbers]


async def test_calls_that_come_while_a_thread_works_run_together_in_their_order(batches):
    calls, gate = ThreadCalls(), Gate()
    first = asyncio.create_task(calls.run(gate.wait))
    await until(gate.has_begun.is_set)
    others = begin(calls, gate.note, range(5))
    await until(lambda: len(calls._waiting) == 5)
    gate.is_open.set()
    assert await asyncio.gather(first, *others) == [None, 0, 1, 2, 3, 4]
    assert gate.log == [0, 1, 2, 3, 4]
    await until(lambda: batches == [6])  # results come before their batch has ended


async def test_calls_run_in_another_thread():
    assert await ThreadCalls().run(threading.get_ident) != threading.get_ident()


async def test_calls_after_one_that_hangs_get_another_thread(monkeypatch):
    monkeypatch.setattr(thread_calls, "STUCK_SECONDS", 0.0)
    calls, gate = ThreadCalls(), Gate()
    hanging = asyncio.create_task(calls.run(gate.wait))
    await until(gate.has_begun.is_set)
    assert await asyncio.gather(*begin(calls, gate.note, range(40))) == list(range(40))
    assert not hanging.done()
    gate.is_open.set()
    await hanging


async def test_calls_that_come_together_with_one_that_hangs_get_another_thread():
    calls, gate = ThreadCalls(), Gate()
    hanging = asyncio.create_task(calls.run(gate.wait))
    others = begin(calls, gate.note, range(20))
    assert await asyncio.gather(*others) == list(range(20))
    assert not hanging.done()
    gate.is_open.set()
    await hanging


async def test_a_call_that_comes_after_a_helping_thread_has_ended_gets_another_thread():
    """The end of the helping thread must not hide that the other thread is stuck."""
    calls, gate = ThreadCalls(), Gate()
    hanging = asyncio.create_task(calls.run(gate.wait))
    await until(gate.has_begun.is_set)
    assert await calls.run(gate.note, 1) == 1  # by another thread
    await until(lambda: len(calls._runners) == 1)
    assert await calls.run(gate.note, 2) == 2
    assert not hanging.done()
    gate.is_open.set()
    await hanging


async def test_a_result_is_delivered_before_the_next_call_of_its_batch_ends():
    calls, gate = ThreadCalls(), Gate()
    first, hanging = begin(calls, int, ["7"])[0], asyncio.create_task(calls.run(gate.wait))
    assert await first == 7
    assert not hanging.done()
    gate.is_open.set()
    await hanging


async def test_calls_that_hang_hold_back_no_call_of_another_queue():
    calls, other_calls, gate = ThreadCalls(), ThreadCalls(), Gate()
    hanging = [asyncio.create_task(calls.run(gate.wait)) for _ in range(MAX_THREADS)]
    await until(lambda: len(calls._runners) == MAX_THREADS)
    assert await other_calls.run(int, "7") == 7
    gate.is_open.set()
    await asyncio.gather(*hanging)


async def test_slow_calls_run_side_by_side(monkeypatch):
    monkeypatch.setattr(thread_calls, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr(thread_calls, "SLOW_SECONDS", 0.0)
    lock = threading.Lock()
    running = 0
    most_running = 0

    def slow(number):
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return number

    calls = ThreadCalls()
    assert await asyncio.gather(*begin(calls, slow, range(200))) == list(range(200))
    assert 1 < most_running <= MAX_THREADS
    await until(lambda: not calls._runners)


async def test_short_calls_share_a_thread(monkeypatch):
    """Though a batch ends before all of them have run."""
    monkeypatch.setattr(thread_calls, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr(thread_calls, "SLOW_SECONDS", LONG)
    monkeypatch.setattr(thread_calls, "STUCK_SECONDS", LONG)
    calls = ThreadCalls()
    runners = []

    def note(number):
        runners.append(len(calls._runners))
        return number

    assert await asyncio.gather(*begin(calls, note, range(50))) == list(range(50))
    assert set(runners) == {1}


async def test_an_error_reaches_its_caller_only():
    calls = ThreadCalls()
    requests = [calls.run(int, text) for text in ("7", "x", "8")]
    first, second, third = await asyncio.gather(*requests, return_exceptions=True)
    assert (first, third) == (7, 8)
    assert isinstance(second, ValueError)


@pytest.mark.parametrize("error", [StopIteration("end"), asyncio.CancelledError("no"), SystemExit(3)], ids=repr)
async def test_an_odd_error_ends_neither_the_batch_nor_the_event_loop(error):
    def fail():
        raise error

    calls = ThreadCalls()
    failed, result = await asyncio.gather(calls.run(fail), calls.run(int, "7"), return_exceptions=True)
    assert isinstance(failed, RuntimeError)
    assert str(failed) == f"{type(error).__name__}: {error}"
    assert result == 7


async def test_a_call_whose_caller_is_cancelled_disturbs_no_other_and_is_not_begun(batches):
    calls, gate = ThreadCalls(), Gate()
    running = asyncio.create_task(calls.run(gate.wait))
    await until(gate.has_begun.is_set)
    waiting, other = begin(calls, gate.note, [1, 2])
    await until(lambda: len(calls._waiting) == 2)
    running.cancel()
    waiting.cancel()
    gate.is_open.set()
    assert await other == 2
    for cancelled in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert gate.log == [2]
    assert await calls.run(gate.note, 3) == 3


async def test_callers_get_the_error_if_no_thread_can_start(monkeypatch):
    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    calls = ThreadCalls()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await calls.run(int, "7")
    assert await calls.run(int, "7") == 7
