"""A plugin with a bug, for `benchmarks.chaos --plant`: results are written after their tasks are acknowledged."""

import asyncio

from fpp_sweep import metric
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.workers.scheduler import TaskScheduler

DELAY = 1.0  # seconds between the acknowledgement and the file


@metric(goal="max", heading="n", decimals=0)
def n_samples(predictions: Predictions) -> float:
    """Return the number of samples; this metric exists because a plugin must register something."""
    return float(len(predictions.labels))


class _Later:
    """References to write tasks, which keep them from being garbage-collected."""

    writes: set[asyncio.Task[None]] = set()  # noqa: RUF012


async def _store(self, worker, pending, result):
    self._counts.worker_seconds += result.worker_seconds
    self._assignment.record_success(worker, pending, result.adapters)
    self._counts.done += 1
    self._settle(pending, result)

    async def write():
        await asyncio.sleep(DELAY)
        await asyncio.to_thread(self.store.put, pending.key, result)

    _Later.writes.add(asyncio.create_task(write()))


TaskScheduler._store_result = _store  # type: ignore[method-assign]
