"""Real workers on the embedded model, and both executors."""

import asyncio
from contextlib import contextmanager, nullcontext

import pytest
import torch

from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.trial.local_runner import LocalExecutor
from fpp_sweep.trial.store import TaskStore
from fpp_sweep.trial.trial import Plan
from fpp_sweep.trial.worker import Worker
from tests.waiting import wait_for
from tests.workers.harness import scheduled


@pytest.fixture(scope="session")
def make_worker(tmp_path_factory):
    """Make workers that share a model and a cache. Workers set torch's threads, which are restored at the end."""
    threads, cache, clips = torch.get_num_threads(), tmp_path_factory.mktemp("cache"), []

    def make(**spec):
        worker = Worker(WorkerSpec(**{"model": "tiny", "cache": str(cache), "device": "cpu", "threads": 1, **spec}))
        if clips:
            worker.model.clip = clips[0]
        clips.append(worker.clip)
        return worker

    yield make
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def worker(make_worker):
    """A worker with enough images for three shards: more than two batches."""
    return make_worker(limit=150)


@pytest.fixture(scope="session")
def small(make_worker):
    return make_worker(limit=20)


def plan_of(worker, *, datasets=("digits",), seeds=(0,), splits=("val",), **options):
    described = {split: tuple(worker.describe(datasets, split)) for split in splits}
    return Plan(datasets=described, seeds=tuple(seeds), **options)


def inline(worker, plan, folder):
    return LocalExecutor(worker, TaskKeys(worker.model_info(), plan.datasets_by_key()), TaskStore(folder))


@contextmanager
def executing(kind, worker, plan, folder, *, workers=2, **options):
    """Open an executor of that kind, with a store in the folder; `around` applies to workers of a scheduler."""
    if kind == "inline":
        with nullcontext(inline(worker, plan, folder)) as executor:
            yield executor
    else:
        keys = TaskKeys(worker.model_info(), plan.datasets_by_key())
        with scheduled([worker] * workers, keys, TaskStore(folder), **options) as executor:
            yield executor


class Gate:
    """Holds the tasks that a scheduler's worker begins, after the first `free` ones."""

    def __init__(self, free):
        self.free, self.opened = free, asyncio.Event()

    async def __call__(self, task, event):
        self.free -= event == "begins"
        if self.free < 0:
            await self.opened.wait()

    def open(self, executor):
        """Release the task that is held once nothing waits behind it; return how many tasks have been done."""
        scheduler = getattr(executor, "scheduler", None)
        if scheduler is None:
            return len(list(executor.store.root.rglob("*.task")))
        wait_for(lambda: len(scheduler._pending) <= 1)
        assert scheduler.status().queued == 0
        executor.loop.call_soon_threadsafe(self.opened.set)
        wait_for(lambda: not scheduler._pending)
        return scheduler.status().counts.done
