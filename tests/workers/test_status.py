"""The status of workers that the driver shows, and the loss of the scheduler."""

import signal
import threading

import pytest

from fpp_sweep.workers import session as session_module
from fpp_sweep.workers.session import LostSession, SchedulerStatus, StatusPoller, WorkCounts
from tests.kit.waiting import LONG

LOST = LostSession("Ray's raylet (process 7) died; go on with --resume")


class FakePool:
    """A pool that returns the given statuses one after the other, and raises those that are exceptions."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)

    def status(self):
        status = self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status


def status_of(**counts):
    return SchedulerStatus(workers=2, counts=WorkCounts(**counts))


def test_an_error_keeps_the_last_status_and_a_lost_scheduler_is_a_failure():
    status = status_of(done=3)
    poller = StatusPoller(FakePool(status, ValueError("Ray shuts down"), LOST))
    for failure in (None, None, LOST):
        poller.poll()
        assert (poller.status, poller.failure) == (status, failure)


@pytest.fixture
def fast_polls(monkeypatch):
    monkeypatch.setattr(session_module, "POLL_INTERVAL", 0.001)


@pytest.mark.usefixtures("fast_polls")
@pytest.mark.parametrize("reacts", [True, False])
def test_a_lost_scheduler_interrupts_the_main_thread_or_ends_the_process(monkeypatch, reacts):
    """If the main thread is stuck inside Ray and does not react, the poller calls `on_stuck`."""
    interrupted, stuck = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: interrupted.set())
    monkeypatch.setattr(session_module, "INTERRUPT_TIMEOUT", LONG if reacts else 0.001)
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
            return status_of(done=len(shown))

    poller = StatusPoller(CountingPool(), on_status=show)
    poller.start()
    assert enough.wait(LONG)
    poller.close()
    assert shown[:3] == [0, 1, 2]
