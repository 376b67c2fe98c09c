"""Who works: what each worker holds and has read, how tasks went where it is, and which of them is next for it.

Tasks are begun by trial, the oldest first, and within a trial in the order in which they were asked for; but a worker
leaves those whose adapter another worker holds to that one, as long as there are others or that one has nothing to do,
and prefers features that its machine has read before. A task that failed where another worker might do better is for
those who are elsewhere, if there are any; and a place where task after task fails that goes well elsewhere gets none,
as long as there are others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.results import TaskFailed, TaskResult

Item = TypeVar("Item")

BAD_TURNS = 3  # tasks in a row that fail at a place and go well elsewhere: it gets no more


class WorkerHandle(Protocol):
    """A worker as the keeper sees it."""

    facts: ModelInfo
    place: str  # machine and GPU that it has to itself, whose faults a worker that replaces it would have as well

    async def run(self, task: Task, needs: Sequence[TaskResult], adapter: str) -> TaskResult | TaskFailed:
        """Raises LostError if the worker is gone."""
        ...

    async def gone(self) -> bool:
        """Returns when it may be given nothing any more, also while it is idle: it is dead, or, if true, has to go."""
        ...

    def kill(self) -> None: ...

    async def freed(self) -> None:
        """Returns when what a killed worker took is free for another."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """A task on its way to a result."""

    task: Task
    key: str
    owner: int  # the trial that pays for it
    order: int  # of the trials that wait for it, the oldest
    turn: int  # when it was asked for
    result: asyncio.Future[TaskResult]
    needs: tuple[TaskResult, ...] = ()
    attempts: int = 0
    waiting: int = 0  # how many want it
    preparing: asyncio.Task[None] | None = None
    features: tuple[object, ...] = ()  # names what it reads from the feature cache
    adapter: str = ""  # key of the adapter that it uses
    failure: TaskFailed | None = None  # the first, where another worker might do better
    failed_at: str = ""  # the place of that
    others: frozenset[int] = frozenset()  # workers that there were besides


@dataclass(slots=True, eq=False)
class Assignment:
    """See the module's text."""

    workers: dict[int, WorkerHandle] = field(default_factory=dict)
    adapters: dict[int, set[str]] = field(default_factory=dict)  # by worker: what it holds or is about to build
    idle: set[int] = field(default_factory=set)  # workers that wait for a job
    leaving: set[int] = field(default_factory=set)  # workers that have to go once they are done with their job
    features: dict[str, set[tuple[object, ...]]] = field(default_factory=dict)  # by node: what it has read
    read: set[tuple[object, ...]] = field(default_factory=set)  # on any node
    failures: dict[str, list[str]] = field(default_factory=dict)  # by place: since a task went well there

    def join(self, worker: WorkerHandle) -> None:
        self.workers[id(worker)] = worker
        self.adapters[id(worker)] = set()

    def part(self, worker: WorkerHandle, *, has_to_go: bool) -> None:
        """It gets nothing more, and another may be hired while it does what it has."""
        if has_to_go and id(worker) in self.workers:
            self.leaving.add(id(worker))

    def leave(self, worker: WorkerHandle) -> None:
        del self.workers[id(worker)], self.adapters[id(worker)]
        self.leaving.discard(id(worker))

    def did(self, worker: WorkerHandle, job: Job, adapters: Sequence[str]) -> None:
        """A job went well; if it had failed elsewhere before, that was the place's fault."""
        self.adapters[id(worker)] = set(adapters)
        if job.features:
            self.features.setdefault(worker.facts.node, set()).add(job.features)
            self.read.add(job.features)
        self.failures.pop(worker.place, None)
        if job.failure and job.failed_at != worker.place:
            self.failures.setdefault(job.failed_at, []).append(job.failure.reason)

    def failed(self, worker: WorkerHandle, job: Job, failure: TaskFailed) -> None:
        """Another worker might do better."""
        job.failure, job.failed_at = failure, worker.place
        job.others = frozenset(self.workers) - {id(worker)}

    def notes(self) -> list[str]:
        """Of places that get no more tasks."""
        told = f"left out: a place where {BAD_TURNS} tasks in a row failed that went well elsewhere; the last: "
        return [told + reasons[-1] for reasons in self.failures.values() if len(reasons) >= BAD_TURNS]

    def choice(self, worker: WorkerHandle, queue: Sequence[Job], oldest: float) -> Job | None:
        """A worker's next job, of a trial before the `oldest` of which it is not yet known what there is to do.

        One whose adapter another idle worker holds is left to that one.
        """
        if not queue or worker not in (fit := self._fit()):
            return None
        held = self.adapters[id(worker)]
        left = _all(self.adapters[id(other)] for other in fit if id(other) in self.idle and other is not worker)
        jobs = [
            job
            for job in queue
            if job.order < oldest
            and (worker in _elsewhere(fit, job) if job.failure else job.adapter in held or job.adapter not in left)
        ]
        elsewhere = _all(self.adapters.values()) - held
        read = self.features.get(worker.facts.node, set())

        def rank(job: Job) -> tuple[int, bool, bool, int]:
            """The least is begun first: the oldest trial's, what nobody else is better placed for, in turn."""
            return job.order, job.adapter in elsewhere, job.features in self.read and job.features not in read, job.turn

        return min(jobs, key=rank, default=None)

    def _fit(self) -> list[WorkerHandle]:
        """Workers that may be given something."""
        staying = [worker for key, worker in self.workers.items() if key not in self.leaving]
        return [each for each in staying if len(self.failures.get(each.place, ())) < BAD_TURNS] or staying


def _all(sets: Iterable[set[Item]]) -> set[Item]:
    return set().union(*sets)


def _elsewhere(workers: Sequence[WorkerHandle], job: Job) -> list[WorkerHandle]:
    """Who is to try a job that failed: at another place if anybody is, and rather one who was there when it failed."""
    far = [(worker.place != job.failed_at, id(worker) in job.others) for worker in workers]
    return [worker for worker, each in zip(workers, far, strict=True) if each == max(far)]
