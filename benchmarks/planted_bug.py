"""A bug for `benchmarks.chaos --plant`: results are written after their tasks are acknowledged.

No plugin can plant it, because the functions of the package that a plugin replaces are put back.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SCHEDULER = "fpp_sweep.workers.scheduler"
DELAY = 1.0  # seconds between the acknowledgement and the file

_writes: set[asyncio.Task[None]] = set()  # references, which keep the tasks from being garbage-collected


async def store_late(self: Any, worker: Any, pending: Any, result: Any) -> None:
    """Do what `TaskScheduler._store_result` does, but write the result later."""
    self._counts.worker_seconds += result.worker_seconds
    self._assignment.record_success(worker, pending, result.adapters)
    self._counts.done += 1
    self._settle(pending, result)

    async def write() -> None:
        await asyncio.sleep(DELAY)
        await asyncio.to_thread(self.store.put, pending.key, result)

    _writes.add(asyncio.create_task(write()))


class BugFinder:
    """A finder of modules that plants the bug in the scheduler when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != SCHEDULER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_plant(module: ModuleType) -> None:
            execute(module)
            module.TaskScheduler._store_result = store_late  # type: ignore[attr-defined]

        spec.loader.exec_module = execute_and_plant  # type: ignore[method-assign]
        return spec


def plant() -> None:
    """Plant the bug in this process; the scheduler is not imported here, as most processes do not need it."""
    sys.meta_path.insert(0, BugFinder())
