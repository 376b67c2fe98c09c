"""Real workers on the embedded model, the two executors, and a gate at which tasks wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fpp_sweep.search.job import TrialStopped
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.trial.results import TaskFailed, TaskStore
from fpp_sweep.trial.trial import Plan
from fpp_sweep.trial.worker import LocalExecutor, Worker
from fpp_sweep.workers.scheduler import TaskScheduler
from tests.kit.waiting import wait_for


@contextmanager
def worker_factory(cache: Path) -> Iterator[Callable[..., Worker]]:
    """Yield a function that makes workers; all workers share a model and a cache.

    Workers set torch's number of threads. The end of the block restores it.
    """
    threads = torch.get_num_threads()
    clips: list[Any] = []

    def make(**spec: Any) -> Worker:
        worker = Worker(WorkerSpec(**{"model": "tiny", "cache": str(cache), "device": "cpu", "threads": 1, **spec}))
        if clips:
            worker.model.clip = clips[0]
        clips.append(worker.clip)
        return worker

    yield make
    torch.set_num_threads(threads)


def plan_of(worker, *, datasets=("digits",), seeds=(0,), splits=("val",), **options):
    """Return a plan over the datasets, which the worker describes."""
    described = {split: tuple(worker.describe(datasets, split)) for split in splits}
    return Plan(datasets=described, seeds=tuple(seeds), **options)


def inline(worker, plan, folder):
    """Return an executor that runs tasks in this process, with a store in the folder."""
    return LocalExecutor(worker, TaskKeys(worker.model_info(), plan.datasets_by_key()), TaskStore(folder))


class InProcess:
    """A real worker in this process, with the interface that the scheduler expects.

    `around` is awaited before and after each task. It may wait, or raise LostError.
    """

    def __init__(self, worker: Any, around: Any = None) -> None:
        self.worker = worker
        self.info = worker.model_info()
        self.around = around
        self.slot = self.info.node
        self.doing = ""

    async def run(self, task: Any, inputs: Any, adapter_key: str, data: Any) -> Any:
        if self.around:
            await self.around(task, "begins")
        try:
            result = self.worker.run(task, inputs, adapter_key, data)
        except TaskFailed as failure:
            result = failure
        if self.around:
            await self.around(task, "ends")
        return result

    async def wait_until_dead(self) -> None:
        await asyncio.Event().wait()

    def kill(self) -> None:
        """Do nothing: the worker runs in the process of the test."""


@dataclass
class ScheduledExecutor:
    """An executor with a scheduler in a thread of this process; `actors.Pool` is the same with a scheduler on Ray."""

    scheduler: TaskScheduler
    loop: asyncio.AbstractEventLoop

    def results(self, tasks: Any, order: int = 0) -> Iterator[Any]:
        """Yield each task with its result, as `Executor.results` does."""
        waiting = {}
        for task in tasks:
            waiting[asyncio.run_coroutine_threadsafe(self.scheduler.result(task, order), self.loop)] = task
        try:
            while waiting:
                ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield waiting.pop(future), future.result()
        finally:
            for future in waiting:
                future.cancel()


@dataclass
class StoppingExecutor:
    """An executor that raises TrialStopped after a number of results."""

    executor: Any
    count: int

    def results(self, tasks: Any, order: int = 0) -> Iterator[Any]:
        """See trial.Executor."""
        with closing(self.executor.results(tasks, order)) as results:
            for number, task_and_result in enumerate(results, 1):
                yield task_and_result
                if number == self.count:
                    raise TrialStopped("enough for today")


@contextmanager
def scheduled(
    workers: Any, keys: Any, store: Any, *, around: Any = None, attempts: int = 1
) -> Iterator[ScheduledExecutor]:
    """Open an executor whose scheduler starts each of the workers once, and starts a lost worker again."""
    free = list(workers)

    async def start_worker() -> InProcess:
        worker = free.pop(0)
        free.append(worker)
        return InProcess(worker, around)

    loop = asyncio.new_event_loop()
    scheduler = TaskScheduler(
        start_worker=start_worker, wanted_workers=lambda: len(workers), store=store, attempts=attempts, timeout=60.0
    )
    scheduler.begin(keys)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    starting = asyncio.run_coroutine_threadsafe(scheduler.start_missing_workers(), loop)

    async def cancel_all() -> None:
        others = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        yield ScheduledExecutor(scheduler, loop)
    finally:
        starting.cancel()
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def executing(kind, worker, plan, folder, *, workers=2, **options):
    """Open an executor, `inline` or on a scheduler, with a store in the folder.

    `workers` and the options apply to a scheduler alone.
    """
    if kind == "inline":
        with nullcontext(inline(worker, plan, folder)) as executor:
            yield executor
    else:
        keys = TaskKeys(worker.model_info(), plan.datasets_by_key())
        with scheduled([worker] * workers, keys, TaskStore(folder), **options) as executor:
            yield executor


class Gate:
    """A gate that lets the first `free` tasks of a scheduler's workers begin, and at which all later tasks wait."""

    def __init__(self, free):
        self.free, self.opened = free, asyncio.Event()

    async def __call__(self, task, event):
        self.free -= event == "begins"
        if self.free < 0:
            await self.opened.wait()

    def open(self, executor):
        """Release the waiting task once it is the only unfinished one; return the number of finished tasks."""
        scheduler = getattr(executor, "scheduler", None)
        if scheduler is None:
            return len(list(executor.store.root.rglob("*.task")))
        wait_for(lambda: len(scheduler._pending) <= 1)
        assert scheduler.status().queued == 0
        executor.loop.call_soon_threadsafe(self.opened.set)
        wait_for(lambda: not scheduler._pending)
        return scheduler.status().counts.done
