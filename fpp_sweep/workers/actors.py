"""Workers and the scheduler as Ray actors, and the pool by which other processes reach them.

Tasks and results travel as bytes: Ray pickles other values with cloudpickle, which takes three times as long as pickle.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.records.log import write_line
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import MachineError, first_line
from fpp_sweep.spec.keys import TaskKeys, config_key
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, TaskData, TextSource, Validation, WorkerSpec
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.store import TaskStore, folder_for
from fpp_sweep.workers.needs import WorkerNeeds
from fpp_sweep.workers.resources import draining_nodes, require_session, share_of_machine, wait_released, wanted_workers
from fpp_sweep.workers.scheduler import LostError, PendingRequest, Reply, TaskScheduler
from fpp_sweep.workers.status import SchedulerStatus

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker
    from fpp_sweep.workers.assignment import Unavailable

MAX_CALLS = 1_000_000  # calls that the scheduler may have open: one for each running trial, and requests for the status
SCHEDULER_RESTARTS = 3
LIVENESS_INTERVAL = 1.0  # seconds between two checks whether the process that should answer is alive
DRAINING_INTERVAL = 1.0  # seconds between two checks for draining nodes
CHECK_INTERVAL = 0.05  # seconds between two checks for another worker
PROGRESS_INTERVAL = 1.0  # seconds between two requests for a worker's progress
PROGRESS_DELAY = 2.0  # seconds after which the progress of a step is shown
# threads for other calls; Ray runs tasks one after another in one thread, to which torch's CUDA graphs belong
CONCURRENCY_GROUPS = {"draining": 1, "progress": 1}
REQUEST_EXPIRY = 120.0  # seconds; a trial that has not collected results for that long is taken as dead


def _returning_failures(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a worker's method return failures as values: Ray would wrap an exception in its own error type."""

    @wraps(method)
    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            return TaskFailed.of(error)

    return call


class WorkerLocation(NamedTuple):
    """The node and the GPUs that Ray has given to a worker's process."""

    node_id: str
    gpus: tuple[str, ...]

    @property
    def slot(self) -> str:
        return " ".join([self.node_id, *self.gpus])


UNKNOWN_LOCATION = WorkerLocation(node_id="", gpus=())  # a worker without a Ray actor has it


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

    def location(self) -> WorkerLocation:
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        return WorkerLocation(ray.get_runtime_context().get_node_id(), gpus)

    def wait_until_draining(self) -> bool:
        """Return when Ray drains this node. The call also ends, with an error, when this process dies."""
        node = ray.get_runtime_context().get_node_id()
        while node not in draining_nodes():
            time.sleep(DRAINING_INTERVAL)
        return True

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

    def __init__(
        self,
        actor: Any,
        info: ModelInfo,
        needs: WorkerNeeds,
        log_folder: Path,
        location: WorkerLocation = UNKNOWN_LOCATION,
    ) -> None:
        self.actor = actor
        self.info = info
        self.slot = location.slot
        self.doing = ""
        self._node_id = location.node_id
        self._task_began: float | None = None  # `time.monotonic()`; None while the worker is idle
        self._needs = needs
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
        worker = cls(actor, info, needs, log_folder, await _answer(actor.location.remote()))
        write_line(worker._log_file, f"{info.where} holds {info.name} ({info.digest}) on {info.device}")
        return worker

    async def run(
        self, task: Task, inputs: Sequence[TaskResult], adapter_key: str, data: TaskData
    ) -> TaskResult | TaskFailed:
        label = describe_task(task)
        write_line(self._log_file, f"{label}: begins")
        self._task_began = time.monotonic()
        pickled = pickle.dumps((task, inputs, adapter_key, data))
        try:
            answer = await _answer(self.actor.run.remote(pickled), f"{task.title}, {self.info.where}")
        except LostError as error:
            write_line(self._log_file, f"{label}: the worker died ({error})")
            raise
        finally:
            self._task_began = None
        if isinstance(answer, TaskFailed):
            write_line(self._log_file, f"{label}: {answer.reason}", answer.details)
            return answer
        result: TaskResult = pickle.loads(answer)
        write_line(self._log_file, f"{label}: {result.worker_seconds:.3f} s")
        return result

    async def wait_until_unavailable(self) -> Unavailable:
        progress = asyncio.create_task(self._follow_progress())
        try:
            await self.actor.wait_until_draining.options(concurrency_group="draining").remote()
        except Exception:
            return "dead"
        else:
            return "draining"
        finally:
            progress.cancel()

    async def _follow_progress(self) -> None:
        with suppress(Exception):  # the process is dead, which `wait_until_unavailable` reports
            while True:
                self.doing = await self._progress()
                await asyncio.sleep(PROGRESS_INTERVAL)

    async def _progress(self) -> str:
        """Return the progress of a long step; short tasks are not asked for any, as a call takes longer than some."""
        if self._task_began is None or time.monotonic() - self._task_began <= PROGRESS_DELAY:
            return ""
        return await self.actor.doing.options(concurrency_group="progress").remote()  # type: ignore[no-any-return]

    def kill(self) -> None:
        with suppress(Exception):  # the process may be dead
            ray.kill(self.actor)

    async def wait_resources_released(self) -> None:
        await wait_released(self._node_id, self._needs)


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
        self._code_versions: set[str] = set()  # code and libraries of all workers so far
        self._starting_workers: asyncio.Task[None] | None = None
        self._requests: dict[str, PendingRequest] = {}

    async def _start_worker(self) -> RayWorker:
        worker = await RayWorker.start(self._spec, self._needs, self._log_folder)
        self._code_versions.add(worker.info.made_with)
        if len(self._code_versions) > 1:  # the code has changed since the first start: stop sharing results
            self._scheduler.store = TaskStore(self._task_folder)
        return worker

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
        """Return a worker's answer, or a failure if that takes longer than a task may.

        Ask another worker if the first one dies, as often as a task is tried.
        """
        seconds = self._scheduler.timeout
        dead: list[RayWorker] = []
        problem = ""
        while len(dead) < self._scheduler.attempts:
            worker = await self._any_worker(dead)
            if isinstance(worker, TaskFailed):
                return worker
            answer = _answer(getattr(worker.actor, method).remote(*arguments))
            try:
                return await asyncio.wait_for(answer, seconds)
            except TimeoutError:
                return TaskFailed(f"{worker.info.where}: no answer after {seconds:g} s (work.task_timeout)")
            except LostError as error:
                problem = f"{worker.info.where}: died ({error})"
                dead.append(worker)
        remedy = "find the cause in Ray's logs, then go on with --resume"
        return MachineError(f"{problem}; {len(dead)} workers in a row; {remedy}")

    async def _any_worker(self, dead: Sequence[RayWorker]) -> RayWorker | TaskFailed:
        """Return a worker, once there is one that is not dead; the scheduler notices a death later."""
        while True:
            first = await self.open()
            if isinstance(first, TaskFailed):
                return first
            for worker in self._scheduler.workers:
                assert isinstance(worker, RayWorker)
                if worker not in dead:
                    return worker
            await asyncio.sleep(CHECK_INTERVAL)

    async def begin(self, keys: TaskKeys, shared_folder: Path | None = None) -> None:
        """Begin a run; see TaskScheduler.begin."""
        self._start_workers()
        if shared_folder and len(self._code_versions) == 1:
            self._scheduler.store = TaskStore(self._task_folder, folder_for(shared_folder, keys.model))
        self._scheduler.begin(keys)

    async def resume(self, keys: TaskKeys, shared_folder: Path | None = None) -> None:
        """Go on with the run of a scheduler that died; only the first of several calls counts."""
        if self._scheduler.keys is None:
            await self.begin(keys, shared_folder)

    async def request(self, name: str, tasks: Mapping[int, Task], order: int) -> bool:
        """Begin a trial's tasks, whose results `collect_since` returns under the request's name.

        Return False if no run has begun: this scheduler has replaced one that died.
        """
        if self._scheduler.keys is None:
            return False
        await self._cancel_expired()
        if name not in self._requests:
            results = {index: self._reply(task, order) for index, task in tasks.items()}
            self._requests[name] = PendingRequest(results)
        return True

    async def _cancel_expired(self) -> None:
        oldest = time.monotonic() - REQUEST_EXPIRY
        for name, request in list(self._requests.items()):
            if request.last_call < oldest:
                await self.cancel(name)

    async def _reply(self, task: Task, order: int) -> Reply:
        try:
            return await self._scheduler.result(task, order)
        except MachineError as error:
            return error
        except Exception as error:
            return TaskFailed.of(error, task.title)

    async def collect_since(self, name: str, taken: int) -> bytes | None:
        """Return, pickled, what has ended after the first `taken` results of a request; see PendingRequest.

        Return None if the request is unknown: the scheduler was restarted, or the request has expired.
        """
        request = self._requests.get(name)
        if request is None:
            return None
        return pickle.dumps(await request.collect_since(taken))

    async def cancel(self, name: str) -> None:
        """Cancel what is left of a request."""
        request = self._requests.pop(name, None)
        if request is not None:
            request.cancel()

    async def status(self) -> SchedulerStatus:
        return self._scheduler.status()


@dataclass(slots=True)
class Pool:
    """The driver's and the trials' access to the workers: an executor (see trial.Executor) that may be pickled."""

    scheduler: Any  # handle of a SchedulerActor
    keys: TaskKeys | None = None  # keys of the current run, for a scheduler that was restarted
    shared_folder: Path | None = None  # folder of results that all sweeps of this machine share

    def open(self) -> ModelInfo:
        return self._ask(self.scheduler.open.remote())  # type: ignore[no-any-return]

    def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo]:
        return self._ask(self.scheduler.describe.remote(list(names), split))  # type: ignore[no-any-return]

    def check(self, prompts: Sequence[TextSource], datasets: Sequence[DatasetInfo]) -> Validation:
        """See Worker.check."""
        return self._ask(self.scheduler.check.remote(list(prompts), list(datasets)))  # type: ignore[no-any-return]

    def begin(self, keys: TaskKeys) -> None:
        """Begin a run; see TaskScheduler.begin."""
        self.keys = keys
        self._ask(self.scheduler.begin.remote(keys, self.shared_folder))

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """See trial.Executor."""
        waiting = dict(enumerate(tasks))
        name = uuid4().hex
        taken = 0
        try:
            self._request(name, waiting, order)
            while waiting:
                pickled = self._ask(self.scheduler.collect_since.remote(name, taken))
                if pickled is None:  # request again what is missing; what was done is on disk
                    taken = 0
                    self._request(name, waiting, order)
                    continue
                for index, reply in pickle.loads(pickled):
                    taken += 1
                    yield waiting.pop(index), _value_or_raise(reply)
        finally:
            self.scheduler.cancel.remote(name)

    def _request(self, name: str, waiting: Mapping[int, Task], order: int) -> None:
        """Request results; a scheduler that was restarted gets the keys of the run first."""
        while not self._ask(self.scheduler.request.remote(name, waiting, order)):
            self._ask(self.scheduler.resume.remote(self.keys, self.shared_folder))

    def status(self) -> SchedulerStatus:
        """Return the status; raise MachineError if the scheduler or Ray's own session is gone for good."""
        require_session()
        return self._ask(self.scheduler.status.remote())  # type: ignore[no-any-return]

    @staticmethod
    def _ask(call: Any) -> Any:
        """Return the scheduler's answer, or raise the failure that it returned."""
        while True:
            try:
                return _value_or_raise(ray.get(call, timeout=LIVENESS_INTERVAL))
            except GetTimeoutError:
                require_session()
            except RayActorError as error:
                raise MachineError("the scheduler died too often; go on with --resume") from error


def _value_or_raise(reply: Any) -> Any:
    if isinstance(reply, TaskFailed | MachineError):
        raise reply
    return reply


def start_pool(
    spec: WorkerSpec,
    needs: WorkerNeeds,
    task_folder: Path,
    *,
    attempts: int,
    timeout: float,
    shared_folder: Path | None = None,
) -> Pool:
    """Start the scheduler on this machine, where the sweep's folder is.

    The results of the sweep's tasks are stored in `task_folder`. All sweeps of this machine share the results in
    `shared_folder`.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # Ray restarts a scheduler that died and repeats the calls; the new one finds finished results on disk
    options = {"num_cpus": 0, "max_concurrency": MAX_CALLS, "max_restarts": SCHEDULER_RESTARTS, "max_task_retries": -1}
    actor: Any = ray.remote(SchedulerActor)
    scheduler = actor.options(scheduling_strategy=here, **options).remote(spec, needs, task_folder, attempts, timeout)
    return Pool(scheduler, shared_folder=shared_folder)
