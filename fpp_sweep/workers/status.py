"""The state of a sweep's workers as one value, and a thread that asks the scheduler for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from fpp_sweep.spec.errors import MachineError

POLL_INTERVAL = 0.5  # seconds between two requests for the status
INTERRUPT_TIMEOUT = 5.0  # seconds; a thread that has not reacted by then is inside Ray and will not react


@dataclass(slots=True, kw_only=True)
class WorkCounts:
    """Counts of the work of a run."""

    loads: int = 0  # workers that started, each of which loaded the model
    lost: int = 0  # workers lost, also while they started
    done: int = 0  # tasks computed
    cached: int = 0  # results that needed no work
    images: int = 0  # images adapted to


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """State of the scheduler and its workers."""

    workers: int = 0
    queued: int = 0
    running: int = 0
    counts: WorkCounts = field(default_factory=WorkCounts)
    fatal: str | None = None  # why no task can be computed any more
    notes: tuple[str, ...] = ()  # problems of some workers while others work
    doing: tuple[str, ...] = ()  # progress of long steps, by worker


class LostSession(MachineError):
    """The end of a process without which a Ray session computes nothing; another session may go on with the sweep."""


class StatusSource(Protocol):
    def status(self) -> SchedulerStatus:
        """Return the current status; raise LostSession if the scheduler is gone."""
        ...


class StatusPoller:
    """The latest status of a pool, kept up to date by a thread.

    `on_status` is called with each new status. If the scheduler is gone, `failure` says why, and the thread that
    created the poller is interrupted (`has_interrupted`). It may be inside Ray; then `on_stuck` is called.
    """

    def __init__(
        self,
        pool: StatusSource,
        on_status: Callable[[SchedulerStatus], None] | None = None,
        on_stuck: Callable[[], None] | None = None,
    ) -> None:
        self.status = SchedulerStatus()
        self.failure: LostSession | None = None
        self.has_interrupted = False
        self._pool = pool
        self._on_status = on_status
        self._on_stuck = on_stuck
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._caller = threading.current_thread()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    def poll(self) -> None:
        """Ask for the status now."""
        try:
            self.status = self._pool.status()
        except LostSession as error:
            self.failure = error
        except Exception:  # Ray may be shutting down, which other parts of the driver report
            return

    def _run(self) -> None:
        while not self._closed.wait(POLL_INTERVAL):
            self.poll()
            if self.failure:
                self._interrupt()
                return
            if self._on_status:
                with suppress(Exception):  # a terminal that cannot be written to must not end the sweep
                    self._on_status(self.status)

    def _interrupt(self) -> None:
        """Send SIGTERM to the caller (`spec.process.terminable`): nothing else ends a wait for a Ray that is gone."""
        can_react = self._caller is threading.main_thread() and callable(signal.getsignal(signal.SIGTERM))
        if not can_react or self._closed.is_set():
            return
        self.has_interrupted = True
        signal.pthread_kill(self._caller.ident or 0, signal.SIGTERM)
        if not self._closed.wait(INTERRUPT_TIMEOUT) and self._on_stuck:
            self._on_stuck()
