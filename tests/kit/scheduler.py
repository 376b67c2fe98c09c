"""The scheduler without Ray, with fake workers whose behaviour the test chooses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.trial.results import TaskFailed, TaskResult, TaskStore
from fpp_sweep.workers.scheduler import LostError, TaskScheduler
from tests.kit.tasks import KEYS, MODEL, evaluation

HANGS_AFTER = 5.0  # seconds for a task; only a task that hangs takes longer
WORK = 0.001  # seconds for a task
SHORT_TIMEOUT = 0.2  # seconds for a task, in tests of tasks that hang
USER_ERROR = "dtd, worker 0 on here: ValueError: not this one"


def shards(count: int, **changes: Any) -> list[EvalTask]:
    """Return the first shards of a dataset, of one batch each."""
    return [evaluation(start=64 * number, stop=64 * (number + 1), **changes) for number in range(count)]


def is_pretraining(task: Any) -> bool:
    return isinstance(task, PretrainTask)


@dataclass(eq=False)
class FakeWorker:
    """A worker whose tasks end as the harness's `behaviour` decides."""

    harness: Harness
    info: ModelInfo
    slot: str = "here"
    doing: str = ""
    ran: list[Any] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)  # the most recently used last
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, task: Any, inputs: Any, adapter_key: str, data: Any) -> Any:
        self.ran.append(task)
        self.harness.ran.append(task)
        self.harness.inputs.append(inputs)
        if adapter_key in self.adapters:
            self.adapters.remove(adapter_key)
        elif adapter_key:
            self.harness.built_adapters.append((self.info.pid, adapter_key))
        if adapter_key:
            self.adapters.append(adapter_key)
        return await self.harness.behaviour(self, task)

    async def wait_until_dead(self) -> None:
        await self.lost.wait()

    def kill(self) -> None:
        self.lost.set()


@dataclass(eq=False)
class Harness:
    """A scheduler with fake workers, and a log of the tasks that they ran."""

    behaviour: Any = None  # (worker, task) -> result or failure; None: succeed
    on_start: Any = None  # number -> changes of ModelInfo, and the slot; may raise
    wanted: Any = 1  # number of workers, or a function that returns it
    attempts: int = 2
    timeout: float = HANGS_AFTER
    store: Any = None
    workers: list[FakeWorker] = field(default_factory=list)  # every worker that was started
    ran: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    built_adapters: list[tuple[int, str]] = field(default_factory=list)  # by worker, with key
    starts: int = 0  # attempts to start a worker, failed ones included

    def begin(self, folder: Path) -> Harness:
        """Start the scheduler in the running loop; it ends with the loop."""
        self.behaviour = self.behaviour or succeed
        self.scheduler = TaskScheduler(
            start_worker=self.start_worker,
            wanted_workers=self.wanted if callable(self.wanted) else lambda: self.wanted,
            store=self.store or TaskStore(folder),
            attempts=self.attempts,
            timeout=self.timeout,
        )
        self.scheduler.begin(KEYS)
        self.starting = asyncio.create_task(self.scheduler.start_missing_workers())
        return self

    async def start_worker(self) -> FakeWorker:
        number = self.starts
        self.starts += 1
        changes = self.on_start(number) if self.on_start else {}
        await asyncio.sleep(WORK)
        slot = changes.pop("slot", "here")
        self.workers.append(FakeWorker(self, replace(MODEL, pid=number, **changes), slot=slot))
        return self.workers[-1]

    @property
    def status(self) -> Any:
        return self.scheduler.status()

    @property
    def counts(self) -> Any:
        return self.status.counts

    async def results(self, tasks: Any, order: int = 1) -> list[TaskResult]:
        """Return the results that a trial with these tasks gets; the first failure cancels the rest."""
        requests = [asyncio.create_task(self.scheduler.result(task, order)) for task in tasks]
        try:
            return await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    def request(self, tasks: Any, order: int = 1) -> asyncio.Task[Any]:
        """Begin `results` in the background; see `outcome`."""

        async def wait_for_outcome() -> Any:
            return await outcome(self.results(tasks, order))

        return asyncio.create_task(wait_for_outcome())


async def outcome(results: Any) -> Any:
    """Return the titles of the tasks in the results, or the reason of the failure."""
    try:
        return titles_in(await results)
    except TaskFailed as failure:
        return failure.reason


def titles_in(results: Any) -> list[str]:
    """Return the titles of the tasks in fake results."""
    return [(result.prompt or result.state).decode() for result in results]


def titles(tasks: Any) -> list[str]:
    return [task.title for task in tasks]


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(WORK)


async def let_others_run() -> None:
    """Wait long enough for a wrong action to happen."""
    await asyncio.sleep(20 * WORK)


# ------------------------------------------------------------ behaviours


async def succeed(worker: FakeWorker, task: Any) -> TaskResult:
    await asyncio.sleep(WORK)
    title, adapters = task.title.encode(), tuple(worker.adapters)
    if isinstance(task, PretrainTask):
        return TaskResult(prompt=title, seconds={"pretrain": 2.0}, worker_seconds=2.5, adapters=adapters)
    return TaskResult(state=title, seconds={"adapt": 1.0}, worker_seconds=1.5, adapters=adapters)


async def die(worker: FakeWorker, task: Any) -> Any:
    await asyncio.sleep(WORK)
    raise LostError("killed")


async def hang(worker: FakeWorker, task: Any) -> Any:
    await asyncio.sleep(3600)


async def fail_for_good(worker: FakeWorker, task: Any) -> TaskFailed:
    return TaskFailed(USER_ERROR, "a traceback")


async def fail_here(worker: FakeWorker, task: Any) -> TaskFailed:
    """Fail in a way that another worker might not."""
    where = f"{task.title}, {worker.info.where}"
    return TaskFailed(f"{where}: RuntimeError: could not create a primitive", "a traceback", retry_elsewhere=True)


def only_for(condition: Any, behaviour: Any) -> Any:
    """Return a behaviour that is `behaviour` for tasks that meet the condition, and success for all other tasks."""

    async def behave(worker: FakeWorker, task: Any) -> Any:
        return await (behaviour if condition(task) else succeed)(worker, task)

    return behave


def once(behaviour: Any) -> Any:
    """Return a behaviour that is `behaviour` for the first task, on any worker, and success for all later tasks."""
    left = [behaviour]

    async def behave(worker: FakeWorker, task: Any) -> Any:
        return await (left.pop() if left else succeed)(worker, task)

    return behave
