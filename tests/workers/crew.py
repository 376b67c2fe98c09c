"""A keeper without Ray: workers that do what a test says, or real ones in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.store import TaskStore
from fpp_sweep.workers.scheduler import LostError, TaskScheduler
from tests.trial.made import KEYS, MODEL, evaluation

SOON = 5.0  # seconds within which everything has ended, or hangs
WORK = 0.001  # seconds for a task
TIMEOUT = 0.2
DECLINED = "dtd, worker 0 on here: ValueError: not this one"


def batches(count: int, **changes: Any) -> list[EvalTask]:
    """So many shards of one dataset."""
    return [evaluation(start=64 * place, stop=64 * (place + 1), **changes) for place in range(count)]


def is_pretraining(task: Any) -> bool:
    return isinstance(task, PretrainTask)


@dataclass(eq=False)
class Fake:
    """Does what the crew says about a task: a result, or something worse."""

    crew: Crew
    facts: ModelInfo
    ran: list[Any] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)  # adapters, the last used last
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    drained: bool = False  # rather than dead
    place: str = "here"
    room: asyncio.Event = field(default_factory=asyncio.Event)  # what it took is free again

    async def run(self, task: Any, needs: Any, adapter: str) -> Any:
        self.ran.append(task)
        self.crew.ran.append(task)
        self.crew.needs.append(needs)
        if adapter in self.holds:
            self.holds.remove(adapter)
        elif adapter:
            self.crew.built.append((self.facts.pid, adapter))
        self.holds += [adapter] if adapter else []
        return await self.crew.does(self, task)

    async def gone(self) -> bool:
        await self.dead.wait()
        return self.drained

    def kill(self) -> None:
        self.dead.set()

    def drain(self) -> None:
        self.drained = True
        self.dead.set()

    async def freed(self) -> None:
        if self.crew.slow_to_free:
            await self.room.wait()


@dataclass(eq=False)
class Crew:
    """Hires workers for a keeper, and keeps the book of what they did."""

    does: Any = None  # (worker, task) -> result or failure; None: works at once
    starts: Any = None  # number -> changes of ModelInfo; may raise
    workers: Any = 1  # how many, or who says how many
    attempts: int = 2
    timeout: float = TIMEOUT
    store: Any = None
    slow_to_free: bool = False
    hired: list[Fake] = field(default_factory=list)
    ran: list[Any] = field(default_factory=list)
    needs: list[Any] = field(default_factory=list)
    built: list[tuple[int, str]] = field(default_factory=list)  # adapters: by whom, and which
    started: int = 0

    def begin(self, folder: Path) -> Crew:
        """To be called in a loop, with which it all ends."""
        self.does = self.does or works
        self.keeper = TaskScheduler(
            hire=self.hire,
            wanted=self.workers if callable(self.workers) else lambda: self.workers,
            store=self.store or TaskStore(folder),
            attempts=self.attempts,
            timeout=self.timeout,
        )
        self.keeper.keys = KEYS
        self.hiring = asyncio.create_task(self.keeper.hire_missing())
        return self

    async def hire(self) -> Fake:
        number, self.started = self.started, self.started + 1
        changes = self.starts(number) if self.starts else {}
        await asyncio.sleep(WORK)
        place = changes.pop("place", "here")
        self.hired.append(Fake(self, replace(MODEL, pid=number, **changes), place=place))
        return self.hired[-1]

    @property
    def status(self) -> Any:
        return self.keeper.status()

    async def results(self, tasks: Any, order: int = 1) -> list[TaskResult]:
        """What a trial that wants them all gets; the first that fails ends it."""
        asked = [asyncio.create_task(self.keeper.result(task, order)) for task in tasks]
        try:
            return await asyncio.gather(*asked)
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def ask(self, tasks: Any, order: int = 1) -> asyncio.Task[Any]:
        """The same meanwhile; what they come to, or why they do not."""

        async def heard() -> Any:
            return await outcome(self.results(tasks, order))

        return asyncio.create_task(heard())


async def outcome(asked: Any) -> Any:
    """What results come to, or the reason why there are none."""
    try:
        return told(await asked)
    except TaskFailed as failure:
        return failure.reason


def told(results: Any) -> list[str]:
    """Whose results they are."""
    return [(result.prompt or result.state).decode() for result in results]


def titles(tasks: Any) -> list[str]:
    return [task.title for task in tasks]


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(WORK)


async def idle() -> None:
    """Long enough for what should not happen to happen."""
    await asyncio.sleep(20 * WORK)


# ------------------------------------------------------------ what may become of a task


async def works(worker: Fake, task: Any) -> TaskResult:
    await asyncio.sleep(WORK)
    title, adapters = task.title.encode(), tuple(worker.holds)
    if isinstance(task, PretrainTask):
        return TaskResult(prompt=title, seconds={"pretrain": 2.0}, held=2.5, adapters=adapters)
    return TaskResult(state=title, seconds={"adapt": 1.0}, held=1.5, adapters=adapters)


async def dies(worker: Fake, task: Any) -> Any:
    await asyncio.sleep(WORK)
    raise LostError("killed")


async def hangs(worker: Fake, task: Any) -> Any:
    await asyncio.sleep(3600)


async def declines(worker: Fake, task: Any) -> TaskFailed:
    return TaskFailed(DECLINED, "a traceback")


async def fails(worker: Fake, task: Any) -> TaskFailed:
    """In a way that another might not."""
    where = f"{task.title}, {worker.facts.where}"
    return TaskFailed(f"{where}: RuntimeError: could not create a primitive", "a traceback", elsewhere=True)


def unless(wanted: Any, otherwise: Any) -> Any:
    """Works, but for tasks that are `wanted`."""

    async def does(worker: Fake, task: Any) -> Any:
        return await (otherwise if wanted(task) else works)(worker, task)

    return does


def once(otherwise: Any) -> Any:
    """The first task goes wrong, for whoever has it."""
    left = [otherwise]

    async def does(worker: Fake, task: Any) -> Any:
        return await (left.pop() if left else works)(worker, task)

    return does


# ------------------------------------------------------------ real workers


class InProcess:
    """A real worker as the keeper sees it; `around` may wait, or lose it, before and after a task."""

    def __init__(self, worker: Any, around: Any = None) -> None:
        self.worker = worker
        self.facts = worker.facts()
        self.around = around
        self.place = self.facts.node

    async def run(self, task: Any, needs: Any, adapter: str) -> Any:
        if self.around:
            await self.around(task, "begins")
        try:
            result = self.worker.run(task, needs, adapter)
        except TaskFailed as failure:
            result = failure
        if self.around:
            await self.around(task, "ends")
        return result

    async def gone(self) -> bool:
        return await asyncio.Event().wait()

    def kill(self) -> None:
        """It has no process."""

    async def freed(self) -> None:
        """Nor does it take anything."""


@dataclass
class Kept:
    """An executor, as `pool.Pool` is, over a keeper in a thread of this process."""

    keeper: TaskScheduler
    loop: asyncio.AbstractEventLoop

    def results(self, tasks: Any, order: int = 0) -> Iterator[Any]:
        """See trial.Executor."""
        waiting = {asyncio.run_coroutine_threadsafe(self.keeper.result(task, order), self.loop): task for task in tasks}
        try:
            while waiting:
                ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield waiting.pop(future), future.result()
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def kept(workers: Any, keys: Any, store: Any, *, around: Any = None, attempts: int = 1) -> Iterator[Kept]:
    """A keeper of these real workers, each of which is hired once, and again when it is lost."""
    free = list(workers)

    async def hire() -> InProcess:
        worker = free.pop(0)
        free.append(worker)
        return InProcess(worker, around)

    loop = asyncio.new_event_loop()
    keeper = TaskScheduler(hire=hire, wanted=lambda: len(workers), store=store, attempts=attempts, timeout=60.0)
    keeper.keys = keys
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    hiring = asyncio.run_coroutine_threadsafe(keeper.hire_missing(), loop)

    async def end() -> None:
        others = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        yield Kept(keeper, loop)
    finally:
        hiring.cancel()
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
