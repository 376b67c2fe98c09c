"""The keeper: takes units of work from all trials, gives each to a worker once, and keeps what came of it.

A task is known by its key. Whoever asks for a key that is on disk gets it from there; whoever asks for one that is
being worked on waits for the same result. Work is taken by trial, the oldest first, and within a trial the largest
first; a worker prefers a shard whose features its machine has read before. A worker that dies, or does not answer in
time, is replaced, and its task is tried again elsewhere until its attempts are used up. One event loop, no locks; what
a worker is, the keeper is told: see `pool` for Ray's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fpp_sweep.trial.results import Done, Failure, ModelFacts, Names, Task, TaskFailedError, UnitStore
from fpp_sweep.trial.tasks import EvalTask, PretrainTask

STAFF_EVERY = 1.0  # seconds between two looks at who is missing
BAD_STARTS = 3  # times in a row that no worker starts while there is none: so will the next

_COUNTED = ("loads", "lost", "done", "at_hand", "executions", "images", "held")


class LostError(Exception):
    """A worker is gone, or cannot be reached."""


class Hand(Protocol):
    """A worker as the keeper sees it."""

    facts: ModelFacts

    async def run(self, task: Task, prompt: bytes | None) -> Done | Failure:
        """Raises LostError if the worker is gone."""
        ...

    async def gone(self) -> None:
        """Returns when the worker is no more, also while it has nothing to do."""
        ...

    def kill(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Job:
    """A task on its way."""

    task: Task
    key: str
    owner: int  # the trial that pays for it
    order: int  # when its turn is
    cost: float
    result: asyncio.Future[Done]
    prompt: bytes | None = None
    attempts: int = 0
    waiting: int = 0  # how many want it
    preparing: asyncio.Task[None] | None = None
    place: tuple[object, ...] = ()  # features that it reads

    @property
    def name(self) -> str:
        task = self.task
        kind = "pretraining" if isinstance(task, PretrainTask) else f"samples {task.start}..{task.stop}"
        return f"{task.dataset}, {kind}"

    def rank(self, known: set[tuple[object, ...]]) -> tuple[int, bool, float]:
        return self.order, bool(self.place) and self.place not in known, -self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperStatus:
    """How the work is going; plain counts."""

    workers: int
    loads: int  # models loaded so far
    lost: int  # workers lost so far
    pids: tuple[int, ...]
    queued: int
    running: int
    done: int
    at_hand: int  # results that needed no work
    executions: int  # tasks begun, again after a loss included
    images: int  # adapted to
    held: float  # seconds that workers were held
    fatal: str | None


@dataclass(slots=True, eq=False)
class Keeper:
    """See the module's text."""

    hire: Callable[[], Awaitable[Hand]]  # start a worker
    wanted: Callable[[], int]  # how many there should be now
    names: Names
    store: UnitStore
    attempts: int  # of a task
    timeout: float  # seconds for a task
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _queue: list[_Job] = field(default_factory=list)
    hands: dict[int, Hand] = field(default_factory=dict)
    _known: dict[str, set[tuple[object, ...]]] = field(default_factory=dict)  # features by node
    _employed: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _fatal: Failure | None = None
    _model: str = ""  # digest of the first worker's
    _bad_starts: int = 0
    _counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    _working: int = 0

    async def staff(self) -> None:
        """Keep as many workers as are wanted, until that is of no use."""
        while not self._fatal:
            try:
                missing = self.wanted() - len(self._employed)
            except Exception as error:
                self._give_up(Failure(reason=f"nobody knows how many workers there should be: {_told(error)}"))
                return
            for _ in range(missing):
                task = asyncio.create_task(self._employ(self._bad_starts))
                self._employed.add(task)
                task.add_done_callback(self._employed.discard)
            await asyncio.sleep(STAFF_EVERY)

    async def first(self) -> ModelFacts | Failure:
        """What the first worker holds, once there is one."""
        while not self.hands and not self._fatal:
            await asyncio.sleep(0.05)
        return self._fatal or next(iter(self.hands.values())).facts

    async def results(self, tasks: Sequence[Task], order: int) -> list[Done]:
        """What becomes of these tasks, in their order; raises TaskFailedError at the first that fails for good."""
        waiting = [asyncio.create_task(self._result(task, order)) for task in tasks]
        try:
            return list(await asyncio.gather(*waiting))
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def status(self) -> KeeperStatus:
        counts = {name: int(value) for name, value in self._counts.items() if name != "held"}
        return KeeperStatus(
            workers=len(self.hands),
            pids=tuple(hand.facts.pid for hand in self.hands.values()),
            queued=len(self._queue),
            running=self._working,
            held=self._counts["held"],
            fatal=self._fatal.reason if self._fatal else None,
            **counts,
        )

    async def _result(self, task: Task, order: int) -> Done:
        job = self._jobs.get(self.names.key(task)) or self._begin(task, order)
        job.waiting += 1
        job.order = min(job.order, order)
        try:
            done = await asyncio.shield(job.result)
        finally:
            self._leave(job)
        if order == job.owner:
            return done
        self._counts["at_hand"] += 1
        return replace(done, seconds={}, held=0.0)

    def _begin(self, task: Task, order: int) -> _Job:
        """A job goes its own way from here, whoever leaves it or joins it."""
        result: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        job = _Job(task, self.names.key(task), order, order, self.names.cost(task), result)
        self._jobs[job.key] = job
        job.preparing = asyncio.create_task(self._prepare(job))
        return job

    async def _prepare(self, job: _Job) -> None:
        """Look for the result on disk; else get the prompt that the task starts from, and queue it."""
        try:
            found = await asyncio.to_thread(self.store.get, job.key)
            if found is not None:
                self._counts["at_hand"] += 1
                self._settle(job, found)
                return
            task = job.task
            if isinstance(task, EvalTask):
                job.place = (task.dataset, task.split, task.seed, task.start)
                if task.config.prompt == "fpp":
                    job.prompt = (await self._result(task.pretrain, job.order)).prompt
            await self._enqueue(job)
        except Exception as error:  # whoever waits must hear of it
            self._settle(job, error)

    async def _enqueue(self, job: _Job) -> None:
        if self._fatal:
            raise TaskFailedError(self._fatal)
        async with self._changed:
            self._queue.append(job)
            self._changed.notify()

    def _leave(self, job: _Job) -> None:
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

    def _forget(self, job: _Job) -> None:
        """Whoever asks for its key from now on begins another job."""
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _settle(self, job: _Job, result: Done | Exception) -> None:
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
            hand = await self.hire()
        except TaskFailedError as error:  # no other would do better
            self._give_up(error.failure)
            return
        except Exception as error:
            # none where somebody is there to do the work; one for all that began together, as their machine may be lost
            if not self.hands and self._bad_starts == bad_starts:
                self._bad_starts += 1
            if self._bad_starts >= BAD_STARTS:
                self._give_up(Failure(reason=f"workers do not start: {_told(error)}"))
            return
        self._model = self._model or hand.facts.digest
        if self._model != hand.facts.digest:
            hand.kill()
            where = f"{hand.facts.node}: its model {hand.facts.name} has other weights than the first worker's"
            self._give_up(Failure(reason=f"{where}; put the same file on every machine"))
            return
        self._bad_starts = 0
        self._counts["loads"] += 1
        self.hands[id(hand)] = hand
        gone = asyncio.create_task(hand.gone())
        try:
            while True:
                job = await self._next_unless(gone, hand)
                await self._do(hand, job)
        except LostError:
            self._counts["lost"] += 1
        finally:
            gone.cancel()
            hand.kill()
            del self.hands[id(hand)]

    async def _next_unless(self, gone: asyncio.Task[None], hand: Hand) -> _Job:
        """The next job for a worker; one that has died with nothing to do must not be given any."""
        waiting = asyncio.create_task(self._next(hand))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        if not gone.done():
            return waiting.result()
        if waiting.done():
            self._queue.append(waiting.result())
            async with self._changed:
                self._changed.notify()
        waiting.cancel()
        raise LostError

    async def _next(self, hand: Hand) -> _Job:
        known = self._known.setdefault(hand.facts.node, set())
        async with self._changed:
            await self._changed.wait_for(lambda: self._queue)
            job = min(self._queue, key=lambda each: each.rank(known))
            self._queue.remove(job)
        return job

    async def _do(self, hand: Hand, job: _Job) -> None:
        self._counts["executions"] += 1
        self._working += 1
        job.attempts += 1
        try:
            result = await asyncio.wait_for(hand.run(job.task, job.prompt), self.timeout)
        except TimeoutError:
            await self._retry(job, f"no result after {self.timeout:g} s")
            raise LostError from None
        except Exception as error:  # whatever it is, another worker may do better
            await self._retry(job, f"its worker died ({_told(error)})")
            raise LostError from error
        finally:
            self._working -= 1
        if isinstance(result, Failure):
            self._settle(job, TaskFailedError(result))
            return
        try:
            await self._keep(hand, job, result)
        except Exception as error:  # such as a full disk
            self._settle(job, TaskFailedError(Failure(reason=f"{job.name}: not written down: {_told(error)}")))

    async def _keep(self, hand: Hand, job: _Job, result: Done) -> None:
        self._counts["held"] += result.held
        await asyncio.to_thread(self.store.put, job.key, result)
        self._known[hand.facts.node].add(job.place)
        self._counts["done"] += 1
        if isinstance(job.task, EvalTask):
            self._counts["images"] += job.task.stop - job.task.start
        self._settle(job, result)

    async def _retry(self, job: _Job, reason: str) -> None:
        if job.attempts < self.attempts and job.waiting and not self._fatal:
            await self._enqueue(job)
            return
        told = f"{job.name}: {reason}; {job.attempts} of {self.attempts} attempts"
        self._settle(job, TaskFailedError(Failure(reason=told)))

    def _give_up(self, failure: Failure) -> None:
        self._fatal = failure
        for job in list(self._jobs.values()):
            self._settle(job, TaskFailedError(failure))
        self._queue.clear()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, LostError) else f"{type(error).__name__}: {error}"
