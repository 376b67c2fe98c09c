"""The scheduler: takes tasks from all trials, gives each to a worker once, and stores the results.

A task is identified by its key. A result that is on disk is returned from there, and requests for a task that is being
computed share its result. A worker that dies, exceeds the time limit, or fails in a way that another worker might not,
is replaced. Its task is retried elsewhere: after a loss until its attempts are used up, after a failure once.

Each trial has an `order`: tasks of a lower order begin first. The order also identifies the trial. Of the trials that
wait for a task when it ends, the first one is charged for the work; for other trials the result counts as cached.

Everything runs in one event loop, without locks. `assignment` decides which worker gets which task; `actors` starts
workers on Ray and serves the trials' requests. An `asyncio.Task` is never a task in the sense above.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fpp_sweep.spec.errors import MachineError, type_and_message
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.results import Store, TaskFailed, TaskResult, find_cached
from fpp_sweep.workers.assignment import Assignment, PendingTask, WorkerHandle
from fpp_sweep.workers.session import SchedulerStatus, WorkCounts

START_INTERVAL = 1.0  # seconds between two checks for missing workers
FIRST_WORKER_INTERVAL = 0.05  # seconds between two checks for the first worker
MAX_FAILED_STARTS = 3  # attempts to start a worker; then the scheduler gives up if no other works
FAILED_START_DELAY = 30.0  # seconds until the next start after one that failed while other workers work

Reply = TaskResult | TaskFailed | MachineError


class LostError(Exception):
    """A worker is dead or cannot be reached."""


@dataclass(slots=True, eq=False)
class TaskScheduler:
    """Queue of tasks, workers, and results; see the text of the module."""

    start_worker: Callable[[], Awaitable[WorkerHandle]]
    wanted_workers: Callable[[], int]
    store: Store
    attempts: int  # per task
    timeout: float  # seconds per task
    keys: TaskKeys | None = None  # keys of the current run; set by `begin`
    _pending: dict[str, PendingTask] = field(default_factory=dict)  # by key
    _lookups: set[PendingTask] = field(default_factory=set)  # tasks whose result is being looked up on disk
    _queue: list[PendingTask] = field(default_factory=list)
    _assignment: Assignment = field(default_factory=Assignment)
    _worker_loops: set[asyncio.Task[None]] = field(default_factory=set)  # one for each worker that starts or works
    _fatal: TaskFailed | None = None  # why no task can be computed any more
    _first_worker: ModelInfo | None = None  # all workers have its weights and software
    _failed_start: str = ""  # why the last start failed; empty if it did not
    _device_kinds: dict[str, None] = field(default_factory=dict)  # kinds of devices of all workers so far
    _counts: WorkCounts = field(default_factory=WorkCounts)
    _running: int = 0  # tasks that workers compute
    _arrivals: int = 0  # requests so far

    def begin(self, keys: TaskKeys) -> None:
        """Begin a run with these keys of its tasks, and count its work from 0.

        Workers start before the first run begins, and their start counts as part of that run.
        """
        has_earlier_run = self.keys is not None
        if has_earlier_run:
            self._counts = WorkCounts()
        self.keys = keys

    @property
    def workers(self) -> list[WorkerHandle]:
        return list(self._assignment.workers)

    def status(self) -> SchedulerStatus:
        workers = self.workers
        return SchedulerStatus(
            workers=len(workers),
            queued=len(self._queue),
            running=self._running,
            counts=replace(self._counts),
            fatal=self._fatal.reason if self._fatal else None,
            notes=(*self._assignment.notes(), *self._notes()),
            doing=tuple(worker.doing for worker in workers if worker.doing),
        )

    # ------------------------------------------------------------ results

    async def result(self, task: Task, order: int) -> TaskResult:
        """Return a task's result for the trial that `order` identifies; raise TaskFailed if the task fails for good."""
        self._arrivals += 1
        return await self._result(task, order, self._arrivals)

    async def _result(self, task: Task, order: int, arrival: int) -> TaskResult:
        """Return a task's result; without its costs for a trial that is not charged for the task.

        The inputs of a task are requested here with the arrival number of that task, so that they count as part of it.
        """
        assert self.keys is not None, "a run has begun"
        key = self.keys.of(task)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._add(task, key, order, arrival)
        pending.waiters.append(order)
        pending.order = min(pending.order, order)
        try:
            result = await asyncio.shield(pending.result)
        finally:
            self._drop_waiter(pending, order)
        if order == pending.payer:
            return result
        self._counts.cached += 1
        return replace(result, seconds={}, worker_seconds=0.0)

    def _add(self, task: Task, key: str, order: int, arrival: int) -> PendingTask:
        """Add a task and begin its lookup. The task goes on as long as any trial waits, even if the first one stops."""
        result: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
        pending = PendingTask(task=task, key=key, order=order, arrival=arrival, result=result)
        self._pending[key] = pending
        self._lookups.add(pending)
        pending.preparation = asyncio.create_task(self._prepare(pending))
        return pending

    async def _prepare(self, pending: PendingTask) -> None:
        """Look the result up on disk; if it is missing, get the inputs of the task and queue it."""
        task = pending.task
        try:
            assert self.keys is not None, "a run has begun"
            cached = await asyncio.to_thread(find_cached, self.store, self.keys, task)
            if cached is not None:
                self._counts.cached += 1
                self._settle(pending, cached)
                return
            if isinstance(task, EvalTask):
                pending.image_set = (task.dataset, task.split, task.seed, task.start)
                pending.adapter_key = self.keys.of_adapter(task)
            if task.needs:
                pending.inputs = await self._inputs(pending)
            self._enqueue(pending)
        except Exception as error:  # the trials that wait must get the error
            self._settle(pending, error)
        finally:
            self._finish_lookup(pending)

    async def _inputs(self, pending: PendingTask) -> tuple[TaskResult, ...]:
        """Return the results that a task needs; they are requested for the trials that wait for the task."""
        requests = []
        for needed in pending.task.needs:
            requests.append(asyncio.create_task(self._result(needed, pending.order, pending.arrival)))
        try:
            await asyncio.sleep(0)  # the lookups of the inputs begin, and hold back the trial's tasks from now on
            self._finish_lookup(pending)
            return tuple(await asyncio.gather(*requests))
        finally:
            for request in requests:
                request.cancel()  # does nothing to a request that has ended

    def _finish_lookup(self, pending: PendingTask) -> None:
        """Unblock the tasks that waited for the end of this lookup (see `_dispatch`)."""
        if pending in self._lookups:
            self._lookups.remove(pending)
            self._dispatch()

    def _enqueue(self, pending: PendingTask) -> None:
        if self._fatal:
            raise self._fatal
        self._lookups.discard(pending)
        self._queue.append(pending)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give queued tasks to idle workers.

        A trial's tasks start only after all lookups on disk of this trial and of trials before it are done, including
        those of inputs. Otherwise the lookup that ends first would decide which task and adapter is first.
        """
        before_order = min((pending.order for pending in self._lookups), default=math.inf)
        while self._assignment.assign_next(self._queue, before_order):
            pass

    def _drop_waiter(self, pending: PendingTask, order: int) -> None:
        """Remove one waiter; cancel the task if none is left and no worker computes the task."""
        pending.waiters.remove(order)
        if pending.waiters or pending.result.done():
            return
        if pending in self._queue:
            self._queue.remove(pending)
        elif pending.preparation and not pending.preparation.done():
            pending.preparation.cancel()
        else:
            return
        self._forget(pending)
        pending.result.cancel()

    def _forget(self, pending: PendingTask) -> None:
        """Let later requests for the same key begin a new task."""
        if self._pending.get(pending.key) is pending:
            del self._pending[pending.key]

    def _settle(self, pending: PendingTask, result: TaskResult | Exception) -> None:
        """Set the outcome of a task; a second outcome is dropped."""
        self._forget(pending)
        if pending.result.done():
            return
        if pending.waiters:
            pending.payer = pending.waiters[0]
        if isinstance(result, Exception):
            pending.result.set_exception(result)
            pending.result.exception()  # marks the exception as retrieved, so that asyncio does not warn
        else:
            pending.result.set_result(result)

    def _fail_all_tasks(self, failure: TaskFailed) -> None:
        """Fail all tasks, now and later."""
        self._fatal = failure
        for pending in list(self._pending.values()):
            self._settle(pending, failure)
        self._queue.clear()

    # ------------------------------------------------------------ workers

    async def first_worker(self) -> ModelInfo | TaskFailed:
        """Return the model of the first worker, once there is one; TaskFailed if no worker can start."""
        while not self.workers and not self._fatal:
            await asyncio.sleep(FIRST_WORKER_INTERVAL)
        return self._fatal or self.workers[0].info

    async def start_missing_workers(self) -> None:
        """Keep the wanted number of workers running until the scheduler gives up."""
        while not self._fatal:
            try:
                wanted = self.wanted_workers()
            except Exception as error:
                self._fail_all_tasks(TaskFailed(f"cannot determine the number of workers: {_error_text(error)}"))
                return
            for _ in range(wanted - len(self._worker_loops)):
                worker_loop = asyncio.create_task(self._run_worker())
                self._worker_loops.add(worker_loop)
                worker_loop.add_done_callback(self._worker_loops.discard)
            await asyncio.sleep(START_INTERVAL)

    async def _run_worker(self) -> None:
        """Start a worker, in several attempts, and give it tasks until it is lost; give up if there is no worker."""
        for _ in range(MAX_FAILED_STARTS):
            try:
                worker = await self.start_worker()
                self._require_same_model(worker)
            except Exception as error:
                if isinstance(error, TaskFailed) and self._first_worker is None:  # such as an unknown model
                    self._fail_all_tasks(error)
                    return
                self._counts.lost += 1
                self._failed_start = _error_text(error)
            else:
                self._failed_start = ""
                self._counts.loads += 1
                await self._serve(worker)
                return
            await asyncio.sleep(FAILED_START_DELAY if self.workers else START_INTERVAL)
            if self._fatal:
                return
        if not self.workers:
            self._fail_all_tasks(TaskFailed(f"workers do not start: {self._failed_start}"))

    def _require_same_model(self, worker: WorkerHandle) -> None:
        """Kill a worker with other weights or software than the first one's, and raise TaskFailed."""
        first = self._first_worker = self._first_worker or worker.info
        changes = [name for name in worker.info.software if name not in first.software]
        if worker.info.digest != first.digest:
            changes.append(f"weights of {worker.info.name}")
        if changes:
            worker.kill()
            problem = f"{worker.info.node}: differs from the first worker ({', '.join(changes)})"
            raise TaskFailed(f"{problem}; bring every machine to the same commit, versions and files")

    async def _serve(self, worker: WorkerHandle) -> None:
        """Give a worker tasks until it is lost."""
        self._assignment.add(worker)
        self._device_kinds[worker.info.device_kind] = None
        death = asyncio.create_task(worker.wait_until_dead())
        try:
            while True:
                await self._run_task(worker, await self._next_task(worker, death))
        except LostError:
            self._counts.lost += 1
        finally:
            death.cancel()
            worker.kill()
            self._assignment.remove(worker)
            self._dispatch()  # other workers may have skipped tasks whose adapter this worker held

    async def _next_task(self, worker: WorkerHandle, death: asyncio.Task[None]) -> PendingTask:
        """Return the worker's next task; raise LostError if it died while idle."""
        next_task = self._assignment.wait_for_task(worker)
        self._dispatch()
        events: set[asyncio.Future[Any]] = {next_task, death}
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._assignment.stop_waiting(worker)
        if not death.done():
            return next_task.result()
        if next_task.done() and not self._fatal:  # the task came at the same moment: another worker has to take it
            self._enqueue(next_task.result())
        raise LostError

    def _notes(self) -> list[str]:
        """Return notes on failed starts and on several kinds of devices."""
        notes = []
        if self._failed_start and self.workers:
            notes.append(f"a worker does not start while others work: {self._failed_start}")
        if len(self._device_kinds) > 1:
            kinds = ", ".join(self._device_kinds)
            notes.append(f"workers compute on several kinds of devices ({kinds}), whose results differ in last bits")
        return notes

    # ------------------------------------------------------------ tasks

    async def _run_task(self, worker: WorkerHandle, pending: PendingTask) -> None:
        """Compute a task on a worker and settle or retry it; raise LostError if the worker must be replaced."""
        self._running += 1
        pending.attempts += 1
        try:
            assert self.keys is not None, "a run has begun"
            data = self.keys.data_of(pending.task)
            running = worker.run(pending.task, pending.inputs, pending.adapter_key, data)
            result = await asyncio.wait_for(running, self.timeout)
        except TimeoutError:
            self._retry_after_loss(worker, pending, f"no result after {self.timeout:g} s")
            raise LostError from None
        except Exception as error:  # another worker may succeed, whatever the error
            self._retry_after_loss(worker, pending, f"its worker died ({_error_text(error)})")
            raise LostError from error
        finally:
            self._running -= 1
        if isinstance(result, TaskFailed):
            self._handle_failure(worker, pending, result)
            return
        try:
            await self._store_result(worker, pending, result)
        except OSError as error:  # such as a full disk, on which no other task would succeed
            self._settle(pending, MachineError.of(error))
        except Exception as error:
            self._settle(pending, TaskFailed(f"{pending.task.title}: cannot be stored: {_error_text(error)}"))

    async def _store_result(self, worker: WorkerHandle, pending: PendingTask, result: TaskResult) -> None:
        """Write a result to disk, count the work, and settle the task."""
        await asyncio.to_thread(self.store.put, pending.key, result)
        self._assignment.record_success(worker, pending, result.adapters)
        self._counts.done += 1
        if isinstance(pending.task, EvalTask):
            self._counts.images += pending.task.stop - pending.task.start
        self._settle(pending, result)

    def _handle_failure(self, worker: WorkerHandle, pending: PendingTask, failure: TaskFailed) -> None:
        """Settle or retry a failed task; raise LostError to replace the worker if another one might succeed.

        Such a task is retried once.
        """
        if not failure.retry_elsewhere:
            self._settle(pending, failure)
            return
        if pending.failure is None and self._may_retry(pending):
            self._assignment.record_failure(worker, pending, failure)
            self._enqueue(pending)
        else:
            self._settle(pending, pending.failure or failure)  # the first cause says more than the second
        raise LostError

    def _retry_after_loss(self, worker: WorkerHandle, pending: PendingTask, reason: str) -> None:
        """Queue the task of a lost worker again; settle the task as failed if it may not be retried."""
        if self._may_retry(pending):
            self._enqueue(pending)
            return
        where = f"{pending.task.title}, {worker.info.where}"
        self._settle(pending, TaskFailed(f"{where}: {reason}; {pending.attempts} of {self.attempts} attempts"))

    def _may_retry(self, pending: PendingTask) -> bool:
        return pending.attempts < self.attempts and bool(pending.waiters) and not self._fatal


def _error_text(error: Exception) -> str:
    if isinstance(error, LostError | TaskFailed):
        return str(error)
    return type_and_message(error)
