"""Assignment of queued tasks to idle workers.

Tasks of the oldest trial come first, and within a trial the tasks that were requested first. A worker skips tasks whose
adapter another idle worker holds, and prefers tasks whose image features its machine has already read. A task that
failed for a reason of the machine is retried on another slot if there is one. A slot on which several tasks in a row
failed that succeeded elsewhere gets no more tasks while there are other slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fpp_sweep.spec.specs import ModelInfo, TaskData
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.results import TaskFailed, TaskResult

MAX_SLOT_FAILURES = 3  # tasks in a row that fail on a slot and succeed elsewhere; then the slot gets no more tasks

ImageSet = tuple[object, ...]  # names the image features that a task reads


class WorkerHandle(Protocol):
    """A worker as the scheduler sees it."""

    info: ModelInfo
    slot: str  # machine and GPU; a worker that replaces this one there would have the same faults
    doing: str  # progress of a long step; empty if there is none

    async def run(
        self, task: Task, inputs: Sequence[TaskResult], adapter_key: str, data: TaskData
    ) -> TaskResult | TaskFailed:
        """Compute a task; raise LostError if the worker is gone."""
        ...

    async def wait_until_dead(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(slots=True, eq=False)
class PendingTask:
    """A task on its way to a result."""

    task: Task
    key: str
    order: int  # lowest order of the trials that wait for the result
    arrival: int  # number of the request
    result: asyncio.Future[TaskResult]
    inputs: tuple[TaskResult, ...] = ()  # results of `task.needs`
    attempts: int = 0
    waiters: list[int] = field(default_factory=list)  # orders of the trials that wait, in the order of their requests
    payer: int | None = None  # order of the trial that is charged for the work; set when the task ends
    preparation: asyncio.Task[None] | None = None
    image_set: ImageSet = ()
    adapter_key: str = ""
    failure: TaskFailed | None = None  # the first failure that another worker might not have
    failed_slot: str = ""  # slot of that failure


@dataclass(slots=True, eq=False)
class WorkerState:
    """Bookkeeping for one worker."""

    adapters: set[str] = field(default_factory=set)  # keys of adapters that the worker holds or is about to build
    next_task: asyncio.Future[PendingTask] | None = None  # set while the worker is idle


Holders = dict[str, list[WorkerHandle]]  # the workers that hold an adapter, by its key


@dataclass(slots=True, eq=False)
class Assignment:
    """The workers and the rules by which they get tasks; see the text of the module."""

    workers: dict[WorkerHandle, WorkerState] = field(default_factory=dict)
    _read: set[tuple[str, ImageSet]] = field(default_factory=set)  # nodes, and image features that they have read
    _slot_failures: dict[str, list[str]] = field(default_factory=dict)  # reasons since a task succeeded there, by slot

    def add(self, worker: WorkerHandle) -> None:
        self.workers[worker] = WorkerState()

    def remove(self, worker: WorkerHandle) -> None:
        del self.workers[worker]

    def wait_for_task(self, worker: WorkerHandle) -> asyncio.Future[PendingTask]:
        """Mark the worker as idle and return the future of its next task."""
        next_task: asyncio.Future[PendingTask] = asyncio.get_running_loop().create_future()
        self.workers[worker].next_task = next_task
        return next_task

    def stop_waiting(self, worker: WorkerHandle) -> None:
        self.workers[worker].next_task = None

    def assign_next(self, queue: list[PendingTask], before_order: float) -> bool:
        """Move one task from the queue to an idle worker; return False if no idle worker may take any.

        Only tasks of trials before `before_order` are taken.
        """
        ready = [pending for pending in queue if pending.order < before_order]
        usable = self._usable_workers()
        idle = [worker for worker in usable if self.workers[worker].next_task is not None]
        if not ready or not idle:
            return False
        holders = self._adapter_holders()
        for worker in idle:
            candidates = []
            for pending in ready:
                if self._may_take(worker, pending, idle, usable, holders):
                    candidates.append(pending)
            if candidates:
                pending = self._preferred(worker, candidates, holders)
                queue.remove(pending)
                self._give(worker, pending)
                return True
        return False

    def _give(self, worker: WorkerHandle, pending: PendingTask) -> None:
        state = self.workers[worker]
        assert state.next_task is not None, "the worker is idle"
        state.next_task.set_result(pending)
        state.next_task = None
        if pending.adapter_key:
            state.adapters.add(pending.adapter_key)

    def _usable_workers(self) -> list[WorkerHandle]:
        """Return the workers that may get tasks: all of them if every slot is faulty."""
        healthy = []
        for worker in self.workers:
            if len(self._slot_failures.get(worker.slot, ())) < MAX_SLOT_FAILURES:
                healthy.append(worker)
        return healthy or list(self.workers)

    def _adapter_holders(self) -> Holders:
        """Return the workers that hold each adapter, by its key."""
        holders: Holders = {}
        for worker, state in self.workers.items():
            for adapter_key in state.adapters:
                holders.setdefault(adapter_key, []).append(worker)
        return holders

    def _may_take(
        self,
        worker: WorkerHandle,
        pending: PendingTask,
        idle: Sequence[WorkerHandle],
        usable: Sequence[WorkerHandle],
        holders: Holders,
    ) -> bool:
        """Return whether an idle worker may take a task, or leaves it to another worker."""
        if pending.failure is not None:  # on the slot of the failure only if there is no other slot
            others = [other for other in usable if other.slot != pending.failed_slot]
            return not others or worker in others
        task_holders = holders.get(pending.adapter_key, ())
        if worker in task_holders:
            return True
        return not any(holder in idle for holder in task_holders)

    def _preferred(self, worker: WorkerHandle, candidates: Sequence[PendingTask], holders: Holders) -> PendingTask:
        """Return the task of the oldest trial that fits the worker best."""

        def rank(pending: PendingTask) -> tuple[int, bool, bool, int]:
            task_holders = holders.get(pending.adapter_key, ())
            is_held_elsewhere = len(task_holders) > 0 and worker not in task_holders
            is_read = (worker.info.node, pending.image_set) in self._read
            return pending.order, is_held_elsewhere, not is_read, pending.arrival

        return min(candidates, key=rank)

    def record_success(self, worker: WorkerHandle, pending: PendingTask, adapters: Sequence[str]) -> None:
        """Note a task that succeeded; if it had failed on another slot, that slot was at fault."""
        self.workers[worker].adapters = set(adapters)
        self._read.add((worker.info.node, pending.image_set))
        self._slot_failures.pop(worker.slot, None)
        if pending.failure and pending.failed_slot != worker.slot:
            self._slot_failures.setdefault(pending.failed_slot, []).append(pending.failure.reason)

    def record_failure(self, worker: WorkerHandle, pending: PendingTask, failure: TaskFailed) -> None:
        """Note a failure that another worker might not have."""
        pending.failure = failure
        pending.failed_slot = worker.slot

    def notes(self) -> list[str]:
        """Return a line for each slot that gets no more tasks."""
        problem = f"{MAX_SLOT_FAILURES} tasks in a row failed there and succeeded elsewhere"
        notes = []
        for reasons in self._slot_failures.values():
            if len(reasons) >= MAX_SLOT_FAILURES:
                notes.append(f"a machine or GPU gets no more tasks: {problem}; the last failure: {reasons[-1]}")
        return notes
