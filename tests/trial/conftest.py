"""Real workers on the embedded model, and both executors of their tasks."""

import asyncio
import time
from contextlib import contextmanager, nullcontext

import pytest
import torch

from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.trial.local_runner import LocalExecutor
from fpp_sweep.trial.store import TaskStore
from fpp_sweep.trial.trial import Plan
from fpp_sweep.trial.worker import Worker
from tests.workers.crew import kept


@pytest.fixture(scope="session")
def make_worker(tmp_path_factory):
    """Workers that share a model and a cache; they set torch's threads, which are set back."""
    threads, cache, clips = torch.get_num_threads(), tmp_path_factory.mktemp("cache"), []

    def make(**spec):
        worker = Worker(WorkerSpec(**{"model": "tiny", "cache": str(cache), "device": "cpu", "threads": 1, **spec}))
        if clips:
            worker.__dict__["clip"] = clips[0]
        clips.append(worker.clip)
        return worker

    yield make
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def worker(make_worker):
    """Enough images for three shards: more than two batches."""
    return make_worker(limit=150)


@pytest.fixture(scope="session")
def small(make_worker):
    return make_worker(limit=20)


def plan_of(worker, *, datasets=("digits",), seeds=(0,), splits=("val",), **options):
    described = {split: tuple(worker.describe(datasets, split)) for split in splits}
    return Plan(datasets=described, seeds=tuple(seeds), **options)


def inline(worker, plan, folder):
    return LocalExecutor(worker, TaskKeys(worker.facts(), plan.known()), TaskStore(folder))


@contextmanager
def executing(kind, worker, plan, folder, *, workers=2, **options):
    """An executor of that kind, with a store in the folder; `around` is for workers of a keeper."""
    if kind == "inline":
        with nullcontext(inline(worker, plan, folder)) as executor:
            yield executor
    else:
        with kept([worker] * workers, TaskKeys(worker.facts(), plan.known()), TaskStore(folder), **options) as executor:
            yield executor


class Gate:
    """Holds the tasks that a keeper's worker begins after so many."""

    def __init__(self, free):
        self.free, self.opened = free, asyncio.Event()

    async def __call__(self, task, what):
        self.free -= what == "begins"
        if self.free < 0:
            await self.opened.wait()

    def open(self, executor):
        """Let the one go that is held, when nothing else waits behind it; how many tasks have been done."""
        keeper = getattr(executor, "keeper", None)
        if keeper is None:
            return len(list(executor.store.root.rglob("*.task")))
        wait_until(lambda: len(keeper._jobs) <= 1)
        assert keeper.status().queued == 0
        executor.loop.call_soon_threadsafe(self.opened.set)
        wait_until(lambda: not keeper._jobs)
        return keeper.status().done


def wait_until(holds):
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)
