"""The status of workers that the driver shows: counts across restarts, and the loss of the scheduler."""

import signal
import threading
from dataclasses import fields, replace

import pytest

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.workers import status as status_module
from fpp_sweep.workers.status import SchedulerStatus, StatusPoller, WorkCounts
from tests.kit.waiting import LONG

LOST = MachineError("Ray's raylet (process 7) died; go on with --resume")


class FakePool:
    """A pool that returns the given statuses one after the other, and raises those that are exceptions."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)

    def status(self):
        status = self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status


def status_of(name, **counts):
    return SchedulerStatus(scheduler=name, workers=2, counts=WorkCounts(**counts))


def test_all_counts_are_added():
    names = [item.name for item in fields(WorkCounts)]
    first = WorkCounts(**{name: number for number, name in enumerate(names, start=1)})
    second = WorkCounts(**dict.fromkeys(names, 10))
    assert first + second == WorkCounts(**{name: number + 10 for number, name in enumerate(names, start=1)})


def test_counts_continue_across_restarts_of_the_scheduler():
    restarts = []
    pool = FakePool(
        status_of("a", done=3), status_of("a", done=5), status_of("b"), status_of("b", done=2), status_of("c", done=1)
    )
    poller = StatusPoller(pool, on_restart=lambda: restarts.append(poller.status.scheduler))
    done = []
    while pool.statuses:
        poller.poll()
        done.append(poller.status.counts.done)
    assert done == [3, 5, 5, 7, 8]
    assert restarts == ["b", "c"]
    assert poller.status.workers == 2


def test_before_the_first_answer_there_are_no_workers_and_no_problem():
    poller = StatusPoller(FakePool(ValueError("Ray shuts down")))
    poller.poll()
    assert (poller.status, poller.failure) == (SchedulerStatus(), None)


def test_an_error_keeps_the_last_status_and_a_lost_scheduler_is_a_failure():
    status = status_of("a", done=3)
    poller = StatusPoller(FakePool(status, ValueError("Ray shuts down"), LOST))
    for failure in (None, None, LOST):
        poller.poll()
        assert (poller.status, poller.failure) == (status, failure)


@pytest.fixture
def fast_polls(monkeypatch):
    monkeypatch.setattr(status_module, "POLL_INTERVAL", 0.001)


@pytest.mark.usefixtures("fast_polls")
@pytest.mark.parametrize("reacts", [True, False])
def test_a_lost_scheduler_interrupts_the_main_thread_or_ends_the_process(monkeypatch, reacts):
    """If the main thread is stuck inside Ray and does not react, the poller calls `on_stuck`."""
    interrupted, stuck = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: interrupted.set())
    monkeypatch.setattr(status_module, "INTERRUPT_TIMEOUT", LONG if reacts else 0.001)
    poller = StatusPoller(FakePool(LOST), on_stuck=stuck.set)
    try:
        poller.start()
        assert interrupted.wait(LONG)
        if reacts:
            poller.close()
            assert not stuck.is_set()
        else:
            assert stuck.wait(LONG)
    finally:
        poller.close()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("in_main_thread", "reacts", "is_interrupted"), [
    (True, True, True), (True, False, False), (False, True, False), (False, False, False),
])  # fmt: skip
def test_only_a_main_thread_with_a_handler_is_interrupted(monkeypatch, in_main_thread, reacts, is_interrupted):
    """Python runs handlers in the main thread only, and SIGTERM without a handler ends the process."""
    sent = []
    poller = StatusPoller(FakePool(LOST))
    if not in_main_thread:
        poller._caller = threading.Thread()
    monkeypatch.setattr(status_module, "INTERRUPT_TIMEOUT", 0.0)
    monkeypatch.setattr(signal, "getsignal", lambda _: print if reacts else signal.SIG_DFL)
    monkeypatch.setattr(signal, "pthread_kill", lambda *words: sent.append(words))
    poller._interrupt()
    assert bool(sent) == is_interrupted


@pytest.mark.usefixtures("fast_polls")
def test_an_error_in_the_display_does_not_end_the_polling():
    shown, enough = [], threading.Event()

    def show(status):
        shown.append(status.counts.done)
        if len(shown) == 3:
            enough.set()
        raise OSError("the terminal is gone")

    class CountingPool:
        def status(self):
            return status_of("a", done=len(shown))

    poller = StatusPoller(CountingPool(), on_status=show)
    poller.start()
    assert enough.wait(LONG)
    poller.close()
    assert shown[:3] == [0, 1, 2]
    assert replace(poller.status, counts=WorkCounts()) == status_of("a")
