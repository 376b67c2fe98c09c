"""How the workers are doing, asked of their keeper now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from fpp_sweep.workers.keeper import KeeperStatus

EVERY = 0.5  # seconds between two questions


class Watched(Protocol):
    def status(self) -> KeeperStatus: ...


class Watch:
    """The last status of a pool, kept up to date by a thread; `on_status` hears of each."""

    def __init__(self, pool: Watched, on_status: Callable[[KeeperStatus], None] = lambda status: None) -> None:
        self.status: KeeperStatus | None = None
        self._pool = pool
        self._on_status = on_status
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

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
        if self._thread.is_alive():
            self._thread.join(5)

    def look(self) -> None:
        """Ask now."""
        with suppress(Exception):  # Ray may be going down; what matters is told elsewhere
            self.status = self._pool.status()

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            self.look()
            if self.status is not None:
                with suppress(Exception):  # a terminal that cannot be written to ends no sweep
                    self._on_status(self.status)
