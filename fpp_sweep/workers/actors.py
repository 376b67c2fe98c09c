"""Ray's part of the workers: actors, and the keeper that all trials reach."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.records.log import write_line
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.keys import TaskKeys, of_config
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, Validation, WorkerSpec
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.store import TaskStore, folder_for
from fpp_sweep.workers.requests import Answer, PendingRequest
from fpp_sweep.workers.scheduler import LostError, SchedulerStatus, TaskScheduler
from fpp_sweep.workers.session import first_line

EVERYTHING = 1_000_000  # calls that the keeper may have open: one for each trial that is under way, and what is asked
RESTARTS = 3  # of a keeper; one that dies again would die once more
LOOK = 1.0  # seconds between two looks at whether who is asked can still answer
DRAINING_EVERY = 1.0  # seconds between two looks at which nodes are to go
FREED = 15.0  # seconds that a killed worker gets to end
FOLLOW_EVERY = 1.0  # seconds between two looks at how far a worker is with its task
SLOW = 2.0  # seconds after which that is told
FORGOTTEN = 120.0  # seconds after which a trial that has not come back for its results has died


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNeeds:
    """How many workers, and what each takes."""

    workers: int | None  # none: as many as the machines hold
    cpus: float
    gpus: float
    env: dict[str, str]

    @property
    def scarce(self) -> tuple[str, float]:
        """What machines run out of, and how much of it a worker takes."""
        return ("GPU", self.gpus) if self.gpus else ("CPU", self.cpus)


class WorkerActor:
    """A Worker in a process of its own; what goes wrong comes back as a value."""

    def __init__(self, spec: WorkerSpec) -> None:
        from fpp_sweep.trial.worker import Worker  # torch and the model are loaded in the worker's process only

        if spec.folder and Path(spec.folder).is_dir():
            os.chdir(spec.folder)
        self._bar: Bar | None = None
        try:
            self._worker: Worker | None = Worker(spec, self._show)
        except Exception as error:
            self._worker, self._failure = None, TaskFailed.of(error)

    def watch(self) -> bool:
        """Ends, in a thread of its own, once Ray drains this node; who waits for it hears when this process dies."""
        node = ray.get_runtime_context().get_node_id()
        while node not in _draining():
            time.sleep(DRAINING_EVERY)
        return True

    def _show(self, label: str, total: int, unit: str) -> Bar:
        self._bar = Bar(label, total, unit, shown=False)
        return self._bar

    def doing(self) -> str:
        """How far it is with what takes long, from a thread of its own."""
        bar = self._bar
        return str(bar) if bar and not bar.closed and time.monotonic() - bar.started > SLOW else ""

    def place(self) -> str:
        return " ".join(map(str, (ray.get_runtime_context().get_node_id(), *ray.get_gpu_ids())))

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the worker gives, or the failure."""
        if self._worker is None:
            return self._failure
        if method == "run":
            print(described(arguments[0]), flush=True)  # for Ray's own log of this process
        try:
            return getattr(self._worker, method)(*arguments)
        except TaskFailed as error:
            return error
        except Exception as error:
            return TaskFailed.of(error)


class _RayWorker:
    """A worker's process as the keeper sees it."""

    def __init__(self, handle: Any, facts: ModelInfo, needs: WorkerNeeds, logs: Path, place: str = "") -> None:
        self._log = logs / f"{facts.node}-{facts.pid}.log"
        self.handle = handle
        self.facts = facts
        self.place = place
        self.doing = ""
        self._needs = needs

    @classmethod
    async def start(cls, spec: WorkerSpec, needs: WorkerNeeds, logs: Path) -> _RayWorker:
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": "SPREAD"}
        if needs.env:
            options["runtime_env"] = {"env_vars": needs.env}
        # a lost call is the keeper's to repeat, and a lost worker the keeper's to replace
        options |= {"max_restarts": 0, "max_task_retries": 0}
        remote: Any = ray.remote
        handle = remote(concurrency_groups={"watch": 1, "tell": 1}, **options)(WorkerActor).remote(spec)
        facts = await _answer(handle.call.remote("facts"))
        if isinstance(facts, TaskFailed):
            ray.kill(handle)
            raise LostError(facts.reason) if facts.elsewhere else facts
        worker = cls(handle, facts, needs, logs, await _answer(handle.place.remote()))
        write_line(worker._log, f"{facts.where} holds {facts.name} ({facts.digest}) on {facts.device}")
        return worker

    async def run(self, task: Task, needs: Sequence[TaskResult], adapter: str) -> TaskResult | TaskFailed:
        what, where = described(task), f"{task.title}, {self.facts.where}"
        write_line(self._log, f"{what}: begins")
        result: TaskResult | TaskFailed
        try:
            result = await _answer(self.handle.call.remote("run", task, needs, adapter), where)
        except LostError as error:
            write_line(self._log, f"{what}: the worker is gone ({error})")
            raise
        if isinstance(result, TaskFailed):
            write_line(self._log, f"{what}: {result.reason}", result.details)
        else:
            write_line(self._log, f"{what}: {result.held:.3f} s")
        return result

    async def gone(self) -> bool:
        following = asyncio.create_task(self._follow())
        try:
            return bool(await self.handle.watch.options(concurrency_group="watch").remote())
        except Exception:  # it is dead
            return False
        finally:
            following.cancel()

    async def _follow(self) -> None:
        with suppress(Exception):  # it is dead, which `gone` tells
            while True:
                self.doing = await self.handle.doing.options(concurrency_group="tell").remote()
                await asyncio.sleep(FOLLOW_EVERY)

    def kill(self) -> None:
        with suppress(Exception):  # it may be gone
            ray.kill(self.handle)

    async def freed(self) -> None:
        """Ray takes 5 s to end a process that stands still; a start before that is demand for one machine more."""
        kind, share = self._needs.scarce
        node = self.place.partition(" ")[0]
        with suppress(Exception):  # the machine may be lost without anybody knowing
            async with asyncio.timeout(FREED):
                while node in (free := await asyncio.to_thread(_free)) and free[node].get(kind, 0.0) < share - 1e-6:
                    await asyncio.sleep(0.1)


def described(task: Task) -> str:
    """A task in logs."""
    return f"{task.title}, config {of_config(task.config)}"


def _draining() -> Collection[str]:
    """Nodes that are to go, by spot reclaim or `ray drain-node`; Ray tells it nowhere else."""
    with suppress(Exception):  # the head may be gone for a while
        return list(ray._private.state.state.get_draining_nodes())
    return ()


def _free() -> Mapping[str, Mapping[str, float]]:
    """What is free, by node."""
    return dict(ray._private.state.state.available_resources_per_node())


async def _answer(reference: Any, where: str = "") -> Any:
    try:
        return await reference
    except RayActorError as error:
        raise LostError(first_line(error)) from error
    except RayTaskError as error:  # our own code catches everything: this is Ray's, such as a result that cannot travel
        return TaskFailed(TaskFailed.of(error.cause, where).reason, str(error))  # its text is a traceback


class SchedulerActor:
    """The keeper in a process of its own, on the driver's machine."""

    def __init__(self, worker: WorkerSpec, needs: WorkerNeeds, tasks: Path, attempts: int, timeout: float) -> None:
        plugins.load(worker.plugins)  # keys are made from their rows
        self._needs, self._tasks = needs, tasks
        hire, store = partial(self._start, worker, tasks.with_name("logs")), TaskStore(tasks)
        self._keeper = TaskScheduler(hire=hire, wanted=self._wanted, store=store, attempts=attempts, timeout=timeout)
        self._made_with: set[str] = set()  # code and libraries of all workers so far
        self._hiring: asyncio.Task[None] | None = None
        self._wishes: dict[str, PendingRequest] = {}

    async def _start(self, worker: WorkerSpec, logs: Path) -> _RayWorker:
        started = await _RayWorker.start(worker, self._needs, logs)
        self._made_with.add(started.facts.made_with)
        if len(self._made_with) > 1:  # the code was changed meanwhile: from here on nothing is shared
            self._keeper.store = TaskStore(self._tasks)
        return started

    def _wanted(self) -> int:
        if self._needs.workers is not None:
            return self._needs.workers
        there = ray.cluster_resources()
        kind, share = self._needs.scarce
        return max(1, int(there.get(kind, 0) / share + 1e-9))

    async def open(self) -> ModelInfo | TaskFailed:
        """Start workers; the first one that is ready."""
        self._hire()
        return await self._keeper.first()

    def _hire(self) -> None:
        """The workers of a keeper that died are gone with it: whoever asks its successor first has others started."""
        if self._hiring is None:
            self._hiring = asyncio.create_task(self._keeper.hire_missing())

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method of some worker gives, or the failure."""
        first = await self.open()
        if isinstance(first, TaskFailed):
            return first
        worker = next(iter(self._keeper.workers.values()))
        assert isinstance(worker, _RayWorker)
        try:
            return await _answer(worker.handle.call.remote(method, *arguments))
        except LostError as error:
            return TaskFailed(f"{worker.facts.where}: died ({error})")

    async def begin(self, keys: TaskKeys, shared: Path | None = None) -> None:
        """From here on tasks are known by these keys."""
        self._hire()
        if shared and len(self._made_with) == 1:
            self._keeper.store = TaskStore(self._tasks, folder_for(shared, keys.model))
        self._keeper.begin(keys)

    async def ask(self, name: str, tasks: Mapping[int, Task], order: int) -> None:
        """Begin what a trial wants; it comes back for what `ended`, by that name."""
        late = time.monotonic() - FORGOTTEN
        for other in [other for other, wish in self._wishes.items() if wish.seen < late]:
            await self.forget(other)
        if name not in self._wishes:
            self._wishes[name] = PendingRequest({place: self._result(task, order) for place, task in tasks.items()})

    async def ended(self, name: str, taken: int) -> list[tuple[int, Answer]] | None:
        """What has ended since so many results were taken, some of it at least if that does not take long.

        None for what this keeper was not asked: it has followed one that died, or the trial was away for too long.
        """
        wish = self._wishes.get(name)
        return None if wish is None else await wish.ended_after(taken)

    async def forget(self, name: str) -> None:
        """A trial wants nothing more."""
        if wish := self._wishes.pop(name, None):
            wish.give_up()

    async def _result(self, task: Task, order: int) -> Answer:
        while not self._begun:
            await asyncio.sleep(0.05)
        try:
            return await self._keeper.result(task, order)
        except (TaskFailed, MachineError) as error:
            return error
        except Exception as error:
            return TaskFailed.of(error, task.title)

    async def status(self) -> SchedulerStatus | None:
        """None if this keeper has followed one that died, and does not know the keys yet."""
        if not self._begun:
            return None
        workers = [worker for worker in self._keeper.workers.values() if isinstance(worker, _RayWorker)]
        return replace(self._keeper.status(), doing=tuple(worker.doing for worker in workers if worker.doing))

    @property
    def _begun(self) -> bool:
        return hasattr(self._keeper, "keys")


@dataclass(slots=True)
class Pool:
    """The keeper as the driver and the trials see it, and the executor of their tasks; travels to other processes."""

    keeper: Any
    keys: TaskKeys | None = None  # that the keeper was told, for one that follows it
    shared: Path | None = None  # where results of other sweeps are, too

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """See trial.Executor."""
        waiting = dict(enumerate(tasks))
        name, taken = uuid4().hex, 0
        try:
            self._ask(self.keeper.ask.remote(name, waiting, order))
            while waiting:
                ended = self._ask(self.keeper.ended.remote(name, taken))
                if ended is None:
                    taken = 0
                    self._ask(self.keeper.ask.remote(name, waiting, order))
                for place, answer in ended or ():
                    taken += 1
                    yield waiting.pop(place), _or_raised(answer)
        finally:
            self.keeper.forget.remote(name)

    def open(self) -> ModelInfo:
        return self._ask(self.keeper.open.remote())  # type: ignore[no-any-return]

    def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo]:
        return self._ask(self.keeper.call.remote("describe", list(names), split))  # type: ignore[no-any-return]

    def check(
        self, methods: Sequence[str], prompts: Sequence[tuple[str, str]], datasets: Sequence[DatasetInfo]
    ) -> Validation:
        return self._ask(self.keeper.call.remote("check", list(methods), list(prompts), list(datasets)))  # type: ignore[no-any-return]

    def begin(self, keys: TaskKeys) -> None:
        self.keys = keys
        self._ask(self.keeper.begin.remote(keys, self.shared))

    def status(self) -> SchedulerStatus | None:
        """None of a keeper that has followed one that died, and is told the keys; MachineError if none is left."""
        _require_session()
        status: SchedulerStatus | None = self._ask(self.keeper.status.remote())
        if status is None and self.keys is not None:
            self.begin(self.keys)
        return status

    @staticmethod
    def _ask(reference: Any) -> Any:
        while True:
            try:
                answer = ray.get(reference, timeout=LOOK)
                break
            except GetTimeoutError:
                _require_session()
            except RayActorError as error:
                raise MachineError("the keeper of the tasks died too often; go on with --resume") from error
        return _or_raised(answer)


def _or_raised(answer: Any) -> Any:
    """An answer, unless it is that there is none."""
    if isinstance(answer, (TaskFailed, MachineError)):
        raise answer
    return answer


def _require_session() -> None:
    """Ray itself must be there: a session of our own is one of our processes, a cluster is not ours to look after."""
    node: Any = ray._private.worker._global_node
    for kind, process in node.dead_processes() if node else ():
        if kind in ("raylet", "gcs_server"):
            raise MachineError(f"Ray's {kind} (process {process.pid}) died; go on with --resume")


def start_pool(
    worker: WorkerSpec, needs: WorkerNeeds, tasks: Path, *, attempts: int, timeout: float, shared: Path | None = None
) -> Pool:
    """The keeper, on this machine, where the sweep's folder is; `shared` is where other sweeps find its results."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # a call is asked again of the next keeper, which finds on disk what was done
    options = {"num_cpus": 0, "max_concurrency": EVERYTHING, "max_restarts": RESTARTS, "max_task_retries": -1}
    actor: Any = ray.remote(SchedulerActor)
    keeper = actor.options(scheduling_strategy=here, **options).remote(worker, needs, tasks, attempts, timeout)
    return Pool(keeper, shared=shared)


def require_room(needs: WorkerNeeds, *, may_grow: bool) -> str | None:
    """A worker must fit on some node that is up; where machines may yet come, a note is all that can be said."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for kind, share, key in (("GPU", needs.gpus, "gpus_per_worker"), ("CPU", needs.cpus, "cpus_per_worker")):
        most = max((node.get(kind, 0.0) for node in nodes), default=0.0)
        if share > most:
            what = f"the {len(nodes)} nodes of this cluster have at most" if len(nodes) > 1 else "this machine has"
            told = f"work.{key}={share:g}: {what} {most:g} {kind}s"
            if may_grow:
                return f"{told}; waiting for machines that have"
            raise InputError(f"{told}; ask for no more than that")
    return None
