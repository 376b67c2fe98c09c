"""Workers and the scheduler as Ray actors, and the pool by which other processes reach them.

Tasks and results travel as bytes: Ray pickles other values with cloudpickle, which takes three times as long as pickle.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.records.folder import write_line
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import MachineError, first_line
from fpp_sweep.spec.keys import TaskKeys, config_key
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, TaskData, TextSource, Validation, WorkerSpec
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.results import TaskFailed, TaskResult, TaskStore, folder_for
from fpp_sweep.workers.ray_session import dead_service, machines_of_session, share_of_machine
from fpp_sweep.workers.scheduler import LostError, Reply, TaskScheduler
from fpp_sweep.workers.session import LostSession, SchedulerStatus, WorkerNeeds

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker

MAX_CALLS = 1_000_000  # calls that the scheduler may have open: one for each running trial, and requests for the status
BATCH_DELAY = 0.05  # seconds; results that end within this time are one message
LIVENESS_INTERVAL = 1.0  # seconds between two checks whether the process that should answer is alive
PROGRESS_INTERVAL = 1.0  # seconds between two requests for a worker's progress
PROGRESS_DELAY = 2.0  # seconds after which the progress of a step is shown
# a thread for these calls; Ray runs tasks one after another in one thread, to which torch's CUDA graphs belong
CONCURRENCY_GROUPS = {"progress": 1}


def _returning_failures(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a worker's method return failures as values: Ray would wrap an exception in its own error type."""

    @wraps(method)
    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            return TaskFailed.of(error)

    return call


class WorkerActor:
    """A Worker in a separate process."""

    def __init__(self, spec: WorkerSpec) -> None:
        from fpp_sweep.trial.worker import Worker  # start-up time: only a worker's process loads torch

        if spec.folder and Path(spec.folder).is_dir():
            os.chdir(spec.folder)
        self._bar: Bar | None = None
        self._start_failure: TaskFailed | None = None
        try:
            if spec.device == "cuda":
                spec = replace(spec, machine_share=share_of_machine())
            self._loaded_worker = Worker(spec, self._show_progress)
        except Exception as error:
            self._start_failure = TaskFailed.of(error, platform.node())

    @property
    def _worker(self) -> Worker:
        if self._start_failure is not None:
            raise self._start_failure
        return self._loaded_worker

    @_returning_failures
    def model_info(self) -> ModelInfo:
        return self._worker.model_info()

    @_returning_failures
    def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo]:
        return self._worker.describe(names, split)

    @_returning_failures
    def check(self, prompts: Sequence[TextSource], datasets: Sequence[DatasetInfo]) -> Validation:
        """See Worker.check."""
        return self._worker.check(prompts, datasets)

    @_returning_failures
    def run(self, pickled: bytes) -> bytes:
        """Run a task, which is pickled with the other arguments of `Worker.run`; return the pickled result."""
        task, *arguments = pickle.loads(pickled)
        print(describe_task(task), flush=True)  # to Ray's log of this process
        return pickle.dumps(self._worker.run(task, *arguments))

    def slot(self) -> str:
        """Return the node and the GPUs that Ray has given to this process."""
        gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
        return " ".join([ray.get_runtime_context().get_node_id(), *gpus])

    def doing(self) -> str:
        """Return the progress of the current step if it takes long; called from another thread."""
        bar = self._bar
        if bar is None or bar.closed or time.monotonic() - bar.started <= PROGRESS_DELAY:
            return ""
        return str(bar)

    def _show_progress(self, label: str, total: int, unit: str) -> Bar:
        self._bar = Bar(label, total, unit, shown=False)
        return self._bar


class RayWorker:
    """A worker's process as the scheduler sees it; see WorkerHandle."""

    def __init__(self, actor: Any, info: ModelInfo, log_folder: Path, slot: str = "") -> None:
        self.actor = actor
        self.info = info
        self.slot = slot
        self.doing = ""
        self._log_file = log_folder / f"{info.node}-{info.pid}.log"

    @classmethod
    async def start(cls, spec: WorkerSpec, needs: WorkerNeeds, log_folder: Path) -> RayWorker:
        """Start a process and load the model; raise LostError if another start might succeed, else TaskFailed."""
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": "SPREAD"}
        if needs.env:
            options["runtime_env"] = {"env_vars": needs.env}
        # the scheduler retries lost tasks and replaces lost workers
        options |= {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": CONCURRENCY_GROUPS}
        remote: Any = ray.remote
        actor = remote(**options)(WorkerActor).remote(spec)
        info = await _answer(actor.model_info.remote())
        if isinstance(info, TaskFailed):
            ray.kill(actor)
            if info.retry_elsewhere:
                raise LostError(info.reason)
            raise info
        worker = cls(actor, info, log_folder, await _answer(actor.slot.remote()))
        write_line(worker._log_file, f"{info.where} holds {info.name} ({info.digest}) on {info.device}")
        return worker

    async def run(
        self, task: Task, inputs: Sequence[TaskResult], adapter_key: str, data: TaskData
    ) -> TaskResult | TaskFailed:
        label = describe_task(task)
        write_line(self._log_file, f"{label}: begins")
        pickled = pickle.dumps((task, inputs, adapter_key, data))
        try:
            answer = await _answer(self.actor.run.remote(pickled), f"{task.title}, {self.info.where}")
        except LostError as error:
            write_line(self._log_file, f"{label}: the worker died ({error})")
            raise
        if isinstance(answer, TaskFailed):
            write_line(self._log_file, f"{label}: {answer.reason}", answer.details)
            return answer
        result: TaskResult = pickle.loads(answer)
        write_line(self._log_file, f"{label}: {result.worker_seconds:.3f} s")
        return result

    async def wait_until_dead(self) -> None:
        """Ask for the progress of long steps until the process is dead."""
        with suppress(Exception):
            while True:
                self.doing = await self.actor.doing.options(concurrency_group="progress").remote()
                await asyncio.sleep(PROGRESS_INTERVAL)

    def kill(self) -> None:
        with suppress(Exception):  # the process may be dead
            ray.kill(self.actor)


def describe_task(task: Task) -> str:
    """Return a task's name in logs."""
    return f"{task.title}, config {config_key(task.config)}"


async def _answer(call: Any, where: str = "") -> Any:
    """Return the answer of a worker's process; raise LostError if the process is dead."""
    try:
        return await call
    except RayActorError as error:
        raise LostError(first_line(error)) from error
    except RayTaskError as error:  # WorkerActor catches all errors: this one is Ray's, such as an unpicklable result
        return TaskFailed(TaskFailed.of(error.cause, where).reason, details=str(error))


class SchedulerActor:
    """The scheduler in a separate process on the driver's machine."""

    def __init__(self, spec: WorkerSpec, needs: WorkerNeeds, task_folder: Path, attempts: int, timeout: float) -> None:
        plugins.load(spec.plugins)  # task keys depend on the plugins' rows in the catalogue
        self._spec = spec
        self._needs = needs
        self._task_folder = task_folder
        self._log_folder = task_folder.with_name("logs")
        self._scheduler = TaskScheduler(
            start_worker=self._start_worker,
            wanted_workers=partial(wanted_workers, needs),
            store=TaskStore(task_folder),
            attempts=attempts,
            timeout=timeout,
        )
        self._starting_workers: asyncio.Task[None] | None = None

    async def _start_worker(self) -> RayWorker:
        return await RayWorker.start(self._spec, self._needs, self._log_folder)

    async def open(self) -> ModelInfo | TaskFailed:
        """Start workers and return what the first one holds."""
        self._start_workers()
        return await self._scheduler.first_worker()

    def _start_workers(self) -> None:
        if self._starting_workers is None:
            self._starting_workers = asyncio.create_task(self._scheduler.start_missing_workers())

    async def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo] | TaskFailed | MachineError:
        return await self._ask_any_worker("describe", names, split)  # type: ignore[no-any-return]

    async def check(
        self, prompts: Sequence[TextSource], datasets: Sequence[DatasetInfo]
    ) -> Validation | TaskFailed | MachineError:
        """See Worker.check."""
        return await self._ask_any_worker("check", prompts, datasets)  # type: ignore[no-any-return]

    async def _ask_any_worker(self, method: str, *arguments: Any) -> Any:
        """Return a worker's answer, or a failure if it dies or takes longer than a task may."""
        first = await self.open()
        if isinstance(first, TaskFailed):
            return first
        worker = self._scheduler.workers[0]
        assert isinstance(worker, RayWorker)
        seconds = self._scheduler.timeout
        try:
            return await asyncio.wait_for(_answer(getattr(worker.actor, method).remote(*arguments)), seconds)
        except TimeoutError:
            return TaskFailed(f"{worker.info.where}: no answer after {seconds:g} s (work.task_timeout)")
        except LostError as error:
            return LostSession(f"{worker.info.where}: died ({error})")  # another session may go on

    async def begin(self, keys: TaskKeys, shared_folder: Path | None = None) -> None:
        """Begin a run; see TaskScheduler.begin."""
        self._start_workers()
        if shared_folder:
            self._scheduler.store = TaskStore(self._task_folder, folder_for(shared_folder, keys.model))
        self._scheduler.begin(keys)

    async def results(self, pickled: bytes) -> AsyncIterator[bytes]:
        """Yield the results or failures of a trial's tasks as they end, pickled with the indices of the tasks.

        Results that end within a short time are one message: a message costs some milliseconds.
        """
        tasks, order = pickle.loads(pickled)
        running = {asyncio.create_task(self._reply(task, order)): index for index, task in enumerate(tasks)}
        try:
            while running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(BATCH_DELAY)
                ended = [reply for reply in running if reply.done()]
                yield pickle.dumps([(running.pop(reply), reply.result()) for reply in ended])
        finally:
            for reply in running:
                reply.cancel()  # tasks that no other trial waits for leave the queue

    async def _reply(self, task: Task, order: int) -> Reply:
        try:
            return await self._scheduler.result(task, order)
        except MachineError as error:
            return error
        except Exception as error:
            return TaskFailed.of(error, task.title)

    async def status(self) -> SchedulerStatus:
        return self._scheduler.status()


@dataclass(slots=True)
class Pool:
    """The driver's and the trials' access to the workers: an executor (see trial.Executor) that may be pickled."""

    scheduler: Any  # handle of a SchedulerActor
    shared_folder: Path | None = None  # folder of results that all sweeps of this machine share

    def open(self) -> ModelInfo:
        return self._ask("open")  # type: ignore[no-any-return]

    def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo]:
        return self._ask("describe", list(names), split)  # type: ignore[no-any-return]

    def check(self, prompts: Sequence[TextSource], datasets: Sequence[DatasetInfo]) -> Validation:
        """See Worker.check."""
        return self._ask("check", list(prompts), list(datasets))  # type: ignore[no-any-return]

    def begin(self, keys: TaskKeys) -> None:
        """Begin a run; see TaskScheduler.begin."""
        self._ask("begin", keys, self.shared_folder)

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """See trial.Executor."""
        stream = self.scheduler.results.options(num_returns="streaming").remote(pickle.dumps((tasks, order)))
        try:
            for reference in stream:
                for index, reply in pickle.loads(ray.get(reference)):
                    yield tasks[index], _value_or_raise(reply)
        except RayActorError as error:
            raise LostSession("the scheduler died") from error
        finally:
            ray.cancel(stream)

    def status(self) -> SchedulerStatus:
        """Return the status; raise LostSession if the scheduler or Ray's own session is gone."""
        _require_session()
        return self._ask("status")  # type: ignore[no-any-return]

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Return the scheduler's answer, or raise the failure that it returned."""
        call = getattr(self.scheduler, method).remote(*arguments)
        while True:
            try:
                return _value_or_raise(ray.get(call, timeout=LIVENESS_INTERVAL))
            except GetTimeoutError:
                _require_session()
            except RayActorError as error:
                raise LostSession("the scheduler died") from error


def _require_session() -> None:
    dead = dead_service()
    if dead:
        raise LostSession(f"{dead} died")


def _value_or_raise(reply: Any) -> Any:
    if isinstance(reply, TaskFailed | MachineError):
        raise reply
    return reply


def wanted_workers(needs: WorkerNeeds) -> int:
    """Return how many workers there should be on the machines that are up now; at least one."""
    if needs.workers is not None:
        return needs.workers
    return needs.workers_with_room(machines_of_session())


def start_pool(
    spec: WorkerSpec,
    needs: WorkerNeeds,
    task_folder: Path,
    *,
    attempts: int,
    timeout: float,
    shared_folder: Path | None = None,
) -> Pool:
    """Start the scheduler on this machine, where the sweep's folder is, and workers wherever there is room.

    The results of the sweep's tasks are stored in `task_folder`. All sweeps of this machine share the results in
    `shared_folder`.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_concurrency": MAX_CALLS, "max_restarts": 0, "max_task_retries": 0}
    actor: Any = ray.remote(SchedulerActor)
    scheduler = actor.options(scheduling_strategy=here, **options).remote(spec, needs, task_folder, attempts, timeout)
    scheduler.open.remote()  # workers start now, not when the first one is asked for
    return Pool(scheduler, shared_folder=shared_folder)
