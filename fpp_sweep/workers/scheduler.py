"""The keeper: takes tasks from all trials, gives each to a worker once, and keeps the results.

A task is known by its key. Whoever asks for a key that is on disk gets the result from there; whoever asks for one that
is being computed waits for the same result. A worker that dies, does not answer in time, or fails where another might
not, is replaced, and its task is tried again elsewhere: after a loss until its attempts are used up, after a failure
once. A worker that has to go is let go when its task is done. One event loop, no locks; which task is whose, `roster`
decides; what a worker is, the keeper is told: see `pool` for Ray's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.store import Store, find
from fpp_sweep.workers.assignment import Assignment, Job, WorkerHandle

HIRE_EVERY = 1.0  # seconds between two looks at how many workers are missing
BAD_STARTS = 3  # times in a row that no worker starts while there is none: the next would not, either
SLOWEST = 30.0  # seconds between two starts that fail while others work

COUNTED = ("loads", "lost", "done", "at_hand", "executions", "images", "held")


class LostError(Exception):
    """A worker is gone, or cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """How the work is going; plain counts."""

    workers: int
    loads: int  # models loaded so far
    lost: int  # workers lost so far, also while they started
    pids: tuple[int, ...]
    queued: int
    running: int
    done: int
    at_hand: int  # results that needed no work
    executions: int  # tasks begun, again after a loss included
    images: int  # adapted to
    held: float  # seconds that workers were held
    fatal: str | None
    notes: tuple[str, ...]  # what is wrong with some of the workers, while others work
    doing: tuple[str, ...] = ()  # what takes workers long


@dataclass(slots=True, eq=False)
class TaskScheduler:
    """See the module's text."""

    hire: Callable[[], Awaitable[WorkerHandle]]  # start a worker
    wanted: Callable[[], int]  # how many there should be now
    store: Store
    attempts: int  # of a task
    timeout: float  # seconds for a task
    keys: TaskKeys = field(init=False)  # to be set before the first task
    _jobs: dict[str, Job] = field(default_factory=dict)
    _queue: list[Job] = field(default_factory=list)
    _looking: set[Job] = field(default_factory=set)  # jobs of which it is not known yet whether they need work
    _roster: Assignment = field(default_factory=Assignment)
    _employed: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _fatal: TaskFailed | None = None
    _model: str = ""  # digest of the first worker's
    _bad_starts: int = 0
    _stumbles: list[str] = field(default_factory=list)  # why workers did not start, in a row, while others worked
    _counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    _running: int = 0
    _turns: int = 0

    @property
    def workers(self) -> dict[int, WorkerHandle]:
        return self._roster.workers

    async def hire_missing(self) -> None:
        """Keep as many workers as are wanted, until that is of no use; those that have to go do not count."""
        while not self._fatal:
            try:
                missing = self.wanted() - len(self._employed) + len(self._roster.leaving)
            except Exception as error:
                self._give_up(TaskFailed(f"nobody knows how many workers there should be: {_told(error)}"))
                return
            for _ in range(missing):
                task = asyncio.create_task(self._employ(self._bad_starts))
                self._employed.add(task)
                task.add_done_callback(self._employed.discard)
            await asyncio.sleep(HIRE_EVERY)
            async with self._changed:
                self._changed.notify_all()  # who went may have been better placed for a job

    def begin(self, keys: TaskKeys) -> None:
        """Another run: its tasks are known by these keys, and counted from here on."""
        if hasattr(self, "keys"):
            self._counts = dict.fromkeys(COUNTED, 0)
        self.keys = keys

    async def first(self) -> ModelInfo | TaskFailed:
        """What the first worker holds, once there is one."""
        while not self.workers and not self._fatal:
            await asyncio.sleep(0.05)
        return self._fatal or next(iter(self.workers.values())).facts

    async def result(self, task: Task, order: int) -> TaskResult:
        """What comes of a task, for the trial of that order; raises TaskFailed if it fails for good."""
        self._turns += 1
        return await self._result(task, order, self._turns)

    def status(self) -> SchedulerStatus:
        counts: dict[str, Any] = {name: int(value) for name, value in self._counts.items() if name != "held"}
        return SchedulerStatus(
            workers=len(self.workers),
            pids=tuple(worker.facts.pid for worker in self.workers.values()),
            queued=len(self._queue),
            running=self._running,
            held=self._counts["held"],
            fatal=self._fatal.reason if self._fatal else None,
            notes=(*self._roster.notes(), *self._bad_news()),
            **counts,
        )

    async def _result(self, task: Task, order: int, turn: int) -> TaskResult:
        key = self.keys.of(task)
        job = self._jobs.get(key) or self._begin(task, key, order, turn)
        job.waiting += 1
        job.order = min(job.order, order)
        try:
            result = await asyncio.shield(job.result)
        finally:
            self._leave(job)
        if order == job.owner:
            return result
        self._counts["at_hand"] += 1
        return replace(result, seconds={}, held=0.0)

    def _begin(self, task: Task, key: str, order: int, turn: int) -> Job:
        """A job goes its own way from here, whoever leaves it or joins it."""
        result: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
        job = self._jobs[key] = Job(task, key, order, order, turn, result)
        self._looking.add(job)
        job.preparing = asyncio.create_task(self._prepare(job))
        return job

    async def _prepare(self, job: Job) -> None:
        """Look for the result on disk; else get what the task starts from, and queue it."""
        needed: list[asyncio.Future[TaskResult]] = []
        try:
            stored = await asyncio.to_thread(find, self.store, self.keys, job.task)
            if stored is not None:
                self._counts["at_hand"] += 1
                self._settle(job, stored)
                return
            task = job.task
            if isinstance(task, EvalTask):
                job.features = (task.dataset, task.split, task.seed, task.start)
                job.adapter = self.keys.of_adapter(task)
            needed = [asyncio.ensure_future(self._result(other, job.order, job.turn)) for other in task.needs]
            if needed:
                await asyncio.sleep(0)  # what is needed is looked for by now, in this job's turn
                await self._looked(job)
            job.needs = tuple(await asyncio.gather(*needed))
            await self._enqueue(job)
        except Exception as error:  # whoever waits must hear of it
            self._settle(job, error)
        finally:
            for other in needed:
                other.cancel()  # what nobody wants any more is not needed, either
            if job in self._looking:
                await self._looked(job)

    async def _looked(self, job: Job) -> None:
        """It is known whether a job needs work: its trial need not wait for that any more."""
        async with self._changed:
            self._looking.discard(job)
            self._wake(job)

    async def _enqueue(self, job: Job) -> None:
        if self._fatal:
            raise self._fatal
        async with self._changed:
            self._looking.discard(job)
            self._queue.append(job)
            self._wake(job)

    def _wake(self, job: Job) -> None:
        """Let idle workers choose anew, unless the job may not begin yet: the last one looked for wakes them then."""
        if not any(other.order <= job.order for other in self._looking):
            self._changed.notify_all()

    def _leave(self, job: Job) -> None:
        """One who wanted a result no longer does; what nobody wants is not begun."""
        job.waiting -= 1
        if job.waiting or job.result.done():
            return
        if job in self._queue:
            self._queue.remove(job)
        elif job.preparing and not job.preparing.done():
            job.preparing.cancel()
        else:
            return  # a worker has it; what comes of it is kept
        self._forget(job)
        job.result.cancel()

    def _forget(self, job: Job) -> None:
        """Whoever asks for its key from now on begins another job."""
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _settle(self, job: Job, result: TaskResult | Exception) -> None:
        """The first result counts; a late one is dropped."""
        self._forget(job)
        if job.result.done():
            return
        if isinstance(result, Exception):
            job.result.set_exception(result)
            job.result.exception()  # somebody may have looked away; no complaint about that
        else:
            job.result.set_result(result)

    async def _employ(self, bad_starts: int) -> None:
        """A worker's life; before it were so many bad starts."""
        try:
            worker = await self.hire()
        except TaskFailed as error:  # no other would do better
            self._give_up(error)
            return
        except Exception as error:
            self._counts["lost"] += 1
            await self._not_started(_told(error), bad_starts)
            return
        self._model = self._model or worker.facts.digest
        if self._model != worker.facts.digest:
            worker.kill()
            where = f"{worker.facts.node}: its model {worker.facts.name} has other weights than the first worker's"
            self._give_up(TaskFailed(f"{where}; put the same file on every machine"))
            return
        self._bad_starts = 0
        self._stumbles.clear()
        self._counts["loads"] += 1
        self._roster.join(worker)
        gone = asyncio.create_task(worker.gone())
        gone.add_done_callback(lambda done: self._roster.part(worker, has_to_go=not done.cancelled() and done.result()))
        try:
            while job := await self._next_unless(gone, worker):
                await self._do(worker, job)
        except LostError:
            self._counts["lost"] += 1
        finally:
            gone.cancel()
            worker.kill()
            self._roster.leave(worker)
        await worker.freed()  # until then one that is hired would find no room

    async def _not_started(self, reason: str, bad_starts: int) -> None:
        """While others work, no start counts, but the next is later; those that began together count once."""
        if self.workers:
            self._stumbles.append(reason)
            await asyncio.sleep(min(HIRE_EVERY * 2 ** len(self._stumbles), SLOWEST))
            return
        if self._bad_starts == bad_starts:  # their machine may be lost
            self._bad_starts += 1
        if self._bad_starts >= BAD_STARTS:
            self._give_up(TaskFailed(f"workers do not start: {reason}"))

    def _bad_news(self) -> list[str]:
        if len(self._stumbles) < BAD_STARTS:
            return []
        count = f"{len(self._stumbles)} starts of workers in a row"
        return [f"{count} failed while others work; the last: {self._stumbles[-1]}"]

    async def _next_unless(self, gone: asyncio.Task[bool], worker: WorkerHandle) -> Job | None:
        """The next job for a worker, none if it has to go; one that has died while idle must not be given any."""
        waiting = asyncio.create_task(self._next(worker))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        if not gone.done():
            return waiting.result()
        waiting.cancel()
        (job,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(job, Job) and not self._fatal:
            await self._enqueue(job)
        if gone.result():
            return None
        raise LostError

    async def _next(self, worker: WorkerHandle) -> Job:
        async with self._changed:
            self._roster.idle.add(id(worker))
            try:
                job = await self._changed.wait_for(lambda: self._choice(worker))
            finally:
                self._roster.idle.remove(id(worker))
                self._changed.notify_all()  # others may have left a job to this worker
            assert job is not None, "it has been waited for"
            self._queue.remove(job)
            if job.adapter:
                self._roster.adapters[id(worker)].add(job.adapter)
        return job

    def _choice(self, worker: WorkerHandle) -> Job | None:
        """A worker's next job.

        Results on disk are looked for in threads, which end in any order. Nothing of a trial is begun before all that
        it asked for has been looked for, so that turns and adapters count from its first task on.
        """
        oldest = min((job.order for job in self._looking), default=math.inf)
        return self._roster.choice(worker, self._queue, oldest)

    async def _do(self, worker: WorkerHandle, job: Job) -> None:
        self._counts["executions"] += 1
        self._running += 1
        job.attempts += 1
        try:
            result = await asyncio.wait_for(worker.run(job.task, job.needs, job.adapter), self.timeout)
        except TimeoutError:
            await self._retry(worker, job, f"no result after {self.timeout:g} s")
            raise LostError from None
        except Exception as error:  # whatever it is, another worker may do better
            await self._retry(worker, job, f"its worker died ({_told(error)})")
            raise LostError from error
        finally:
            self._running -= 1
        if isinstance(result, TaskFailed):
            await self._failed(worker, job, result)
            return
        try:
            await self._keep(worker, job, result)
        except OSError as error:  # such as a full disk, on which no task would do better
            self._settle(job, MachineError.of(error))
        except Exception as error:
            self._settle(job, TaskFailed(f"{job.task.title}: not written down: {_told(error)}"))

    async def _keep(self, worker: WorkerHandle, job: Job, result: TaskResult) -> None:
        self._counts["held"] += result.held
        await asyncio.to_thread(self.store.put, job.key, result)
        self._roster.did(worker, job, result.adapters)
        self._counts["done"] += 1
        if isinstance(job.task, EvalTask):
            self._counts["images"] += job.task.stop - job.task.start
        self._settle(job, result)

    async def _failed(self, worker: WorkerHandle, job: Job, failure: TaskFailed) -> None:
        """Try once elsewhere what might go well there, and replace the worker; the first cause is told."""
        if not failure.elsewhere:
            self._settle(job, failure)
            return
        if job.failure is None and job.attempts < self.attempts and job.waiting and not self._fatal:
            self._roster.failed(worker, job, failure)
            await self._enqueue(job)
        else:
            self._settle(job, job.failure or failure)
        raise LostError

    async def _retry(self, worker: WorkerHandle, job: Job, reason: str) -> None:
        if job.attempts < self.attempts and job.waiting and not self._fatal:
            await self._enqueue(job)
            return
        where = f"{job.task.title}, {worker.facts.where}"
        self._settle(job, TaskFailed(f"{where}: {reason}; {job.attempts} of {self.attempts} attempts"))

    def _give_up(self, failure: TaskFailed) -> None:
        self._fatal = failure
        for job in list(self._jobs.values()):
            self._settle(job, failure)
        self._queue.clear()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, LostError) else f"{type(error).__name__}: {error}"
