"""How the workers are doing, asked of their keeper now and then; and whether anybody is left who can be asked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.workers.scheduler import COUNTED, SchedulerStatus

EVERY = 0.5  # seconds between two questions
STUCK = 5.0  # seconds after which a thread that was interrupted is not going to notice


class StatusSource(Protocol):
    def status(self) -> SchedulerStatus | None: ...


class StatusPoller:
    """The last status of a pool, kept up to date by a thread; `on_status` hears of each, `on_restart` of a new keeper.

    Where nobody can answer any more, the thread that made the watch is interrupted, and `lost` says why. Inside Ray it
    may not notice; `on_stuck` is called in its place.
    """

    def __init__(
        self,
        pool: StatusSource,
        on_status: Callable[[SchedulerStatus], None] = lambda status: None,
        on_restart: Callable[[], None] = lambda: None,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        self.status: SchedulerStatus | None = None
        self.lost: MachineError | None = None
        self._before: SchedulerStatus | None = None  # of the keepers that died
        self._pool = pool
        self._on_status, self._on_restart, self._on_stuck = on_status, on_restart, on_stuck
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._caller = threading.current_thread()

    @property
    def workers(self) -> int:
        return self.status.workers if self.status else 1

    @property
    def fatal(self) -> str | None:
        """Why no task can be computed any more."""
        return self.status.fatal if self.status else None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    def look(self) -> None:
        """Ask now."""
        try:
            status = self._pool.status()
            if status is None:
                self._before = self.status
                self._on_restart()
            else:
                self.status = _added(status, self._before)
        except MachineError as error:
            self.lost = error
        except Exception:  # Ray may be going down; what matters is told elsewhere
            return

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            self.look()
            if self.lost:
                self._interrupt()
                return
            if self.status is not None:
                with suppress(Exception):  # a terminal that cannot be written to ends no sweep
                    self._on_status(self.status)

    def _interrupt(self) -> None:
        """As SIGTERM does (see `cli.terminable`): nothing else ends a wait for a Ray that does not answer."""
        heard = self._caller is threading.main_thread() and callable(signal.getsignal(signal.SIGTERM))
        if heard and not self._over.is_set():
            signal.pthread_kill(self._caller.ident or 0, signal.SIGTERM)
            if not self._over.wait(STUCK):
                self._on_stuck()


def _added(status: SchedulerStatus, before: SchedulerStatus | None) -> SchedulerStatus:
    """A keeper's status, with the counts of those before it."""
    if before is None:
        return status
    return replace(status, **{name: getattr(status, name) + getattr(before, name) for name in COUNTED})
