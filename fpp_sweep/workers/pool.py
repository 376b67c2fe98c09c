"""Ray's part: a session of our own or a cluster's, workers as actors, and the keeper that all trials reach."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.errors import InputError
from fpp_sweep.trial.results import (
    Checked,
    DatasetFacts,
    Done,
    Failure,
    ModelFacts,
    Names,
    Task,
    TaskFailedError,
    UnitStore,
    WorkerSpec,
)
from fpp_sweep.workers.keeper import Keeper, KeeperStatus, LostError

OBJECT_STORE = 200 * 2**20  # bytes, of a session of our own: prompts and predictions are small
REACHABLE = 5.0  # seconds to wait for a cluster's door
EVERYTHING = 1_000_000  # calls that the keeper may have open: trials x datasets x shards


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """How many workers, and what each takes."""

    actors: int | None  # none: as many as the machines hold
    cpus: float
    gpus: float
    env: dict[str, str]


class RemoteWorker:
    """A Worker in a process of its own; what goes wrong in a task comes back as a value."""

    def __init__(self, spec: WorkerSpec) -> None:
        from fpp_sweep.trial.worker import Worker

        if spec.folder and Path(spec.folder).is_dir():
            os.chdir(spec.folder)
        try:
            self._worker: Worker | Failure = Worker(spec)
        except Exception as error:
            self._worker = failure(error)

    def watch(self) -> None:
        """Never ends, in a thread of its own: whoever waits for it hears when this process dies."""
        threading.Event().wait()

    def facts(self) -> ModelFacts | Failure:
        return self._worker if isinstance(self._worker, Failure) else self._worker.facts()

    def run(self, task: Task, prompt: bytes | None) -> Done | Failure:
        assert not isinstance(self._worker, Failure)
        try:
            return self._worker.run(task, prompt)
        except Exception as error:
            return failure(error)

    def describe(self, names: Sequence[str], part: str) -> list[DatasetFacts] | Failure:
        assert not isinstance(self._worker, Failure)
        try:
            return self._worker.describe(names, part)
        except Exception as error:
            return failure(error)

    def check(
        self, methods: Sequence[str], prompts: Sequence[str], datasets: Sequence[DatasetFacts]
    ) -> Checked | Failure:
        assert not isinstance(self._worker, Failure)
        try:
            return self._worker.check(methods, prompts, datasets)
        except Exception as error:
            return failure(error)


def failure(error: BaseException) -> Failure:
    """An exception as a value: one line, and its traceback. A user's slip is told as it is."""
    line = " ".join(str(error).split()) or "no message"
    reason = line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"
    return Failure(reason=reason, details="".join(traceback.format_exception(error)))


class _Actor:
    """A worker process as the keeper's hand."""

    def __init__(self, handle: Any, facts: ModelFacts) -> None:
        self.handle = handle
        self.facts = facts

    @classmethod
    async def start(cls, spec: WorkerSpec, needs: ActorSpec) -> _Actor:
        import ray

        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": "SPREAD"}
        if needs.env:
            options["runtime_env"] = {"env_vars": needs.env}
        # a lost call is the keeper's to repeat, and a lost actor the keeper's to replace
        options |= {"max_restarts": 0, "max_task_retries": 0}
        remote: Any = ray.remote
        handle = remote(concurrency_groups={"watch": 1}, **options)(RemoteWorker).remote(spec)
        facts = await _answer(handle.facts.remote())
        if isinstance(facts, Failure):
            ray.kill(handle)
            raise TaskFailedError(facts)
        return cls(handle, facts)

    async def run(self, task: Task, prompt: bytes | None) -> Done | Failure:
        found: Done | Failure = await _answer(self.handle.run.remote(task, prompt))
        return found

    async def gone(self) -> None:
        with suppress(Exception):
            await self.handle.watch.options(concurrency_group="watch").remote()

    def kill(self) -> None:
        import ray

        with suppress(Exception):  # it may be gone
            ray.kill(self.handle)


async def _answer(reference: Any) -> Any:
    from ray.exceptions import RayActorError, RayTaskError

    try:
        return await reference
    except RayActorError as error:
        raise LostError(_first_line(error)) from error
    except RayTaskError as error:  # our own code catches everything: this is Ray's, such as a result that cannot travel
        return failure(error)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class KeeperActor:
    """The keeper in a process of its own, on the driver's machine."""

    def __init__(self, worker: WorkerSpec, needs: ActorSpec, units: Path, attempts: int, timeout: float) -> None:
        self._needs = needs
        self._keeper = Keeper(
            hire=lambda: _Actor.start(worker, needs),
            wanted=self._wanted,
            names=Names("", {}),
            store=UnitStore(units),
            attempts=attempts,
            timeout=timeout,
        )
        self._staff: asyncio.Task[None] | None = None

    def _wanted(self) -> int:
        import ray

        if self._needs.actors is not None:
            return self._needs.actors
        there = ray.cluster_resources()
        kind, each = ("GPU", self._needs.gpus) if self._needs.gpus else ("CPU", self._needs.cpus)
        return max(1, int(there.get(kind, 0) / each + 1e-9))

    async def open(self) -> ModelFacts | Failure:
        """Start workers; the first one that is ready."""
        if self._staff is None:
            self._staff = asyncio.create_task(self._keeper.staff())
        return await self._keeper.first()

    async def describe(self, names: Sequence[str], part: str) -> list[DatasetFacts] | Failure:
        found: list[DatasetFacts] | Failure = await _answer((await self._any()).handle.describe.remote(names, part))
        return found

    async def check(
        self, methods: Sequence[str], prompts: Sequence[str], datasets: Sequence[DatasetFacts]
    ) -> Checked | Failure:
        found: Checked | Failure = await _answer((await self._any()).handle.check.remote(methods, prompts, datasets))
        return found

    async def _any(self) -> _Actor:
        first = await self._keeper.first()
        if isinstance(first, Failure):
            raise TaskFailedError(first)
        hand = next(iter(self._keeper.hands.values()))
        assert isinstance(hand, _Actor)
        return hand

    async def begin(self, names: Names) -> None:
        """From here on tasks are known by these names."""
        self._keeper.names = names

    async def results(self, tasks: Sequence[Task], order: int) -> list[Done] | Failure:
        try:
            return await self._keeper.results(tasks, order)
        except TaskFailedError as error:
            return error.failure
        except Exception as error:  # such as a full disk
            return failure(error)

    async def status(self) -> KeeperStatus:
        return self._keeper.status()


@dataclass(frozen=True, slots=True)
class Pool:
    """The keeper as the driver and the trials see it; travels to other processes."""

    keeper: Any

    def results(self, tasks: Sequence[Task], order: int) -> list[Done]:
        """See Keeper.results."""
        return self._ask(self.keeper.results.remote(list(tasks), order))  # type: ignore[no-any-return]

    def open(self) -> ModelFacts:
        return self._ask(self.keeper.open.remote())  # type: ignore[no-any-return]

    def describe(self, names: Sequence[str], part: str) -> list[DatasetFacts]:
        return self._ask(self.keeper.describe.remote(list(names), part))  # type: ignore[no-any-return]

    def check(self, methods: Sequence[str], prompts: Sequence[str], datasets: Sequence[DatasetFacts]) -> Checked:
        return self._ask(self.keeper.check.remote(list(methods), list(prompts), list(datasets)))  # type: ignore[no-any-return]

    def begin(self, names: Names) -> None:
        self._ask(self.keeper.begin.remote(names))

    def status(self) -> KeeperStatus:
        return self._ask(self.keeper.status.remote())  # type: ignore[no-any-return]

    @staticmethod
    def _ask(reference: Any) -> Any:
        import ray

        found = ray.get(reference)
        if isinstance(found, Failure):
            raise TaskFailedError(found)
        return found


def start_pool(worker: WorkerSpec, needs: ActorSpec, units: Path, *, attempts: int, timeout: float) -> Pool:
    """The keeper, on this machine, where the sweep's folder is."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": EVERYTHING}
    actor: Any = ray.remote(KeeperActor)
    return Pool(actor.options(scheduling_strategy=here, **options).remote(worker, needs, units, attempts, timeout))


@contextmanager
def session(address: str | None, *, cpus: int, gpus: int | None, verbose: bool) -> Iterator[None]:
    """Ray: a small session of our own, ended with us, or a cluster that is there."""
    os.environ.update(_QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        level = logging.INFO if verbose else logging.ERROR
        for name in ("ray.tune", "ray.air"):  # what befalls a trial is on its record, and told once
            logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)
        shared: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": True}
        if address is None or address == "local":
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                **shared,
            )
        else:
            _require_reachable(address)
            try:
                ray.init(address=address, **shared)
            except Exception as error:
                hint = "is it up? if it asks for a token: RAY_AUTH_MODE=token and ~/.ray/auth_token"
                raise InputError(f"--address {address}: {_first_line(error)}; {hint}") from error
    try:
        yield
    finally:
        ray.shutdown()


_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the driver has its own
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "3600",
}


def _require_reachable(address: str) -> None:
    """A cluster that is not there is told in seconds; Ray would try for minutes."""
    if address.startswith("ray://"):
        raise InputError(f"--address {address}: run the command on the cluster's head node, with --address auto")
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise InputError(f"--address {address!r}: expected auto, local or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHABLE).close()
    except OSError as error:
        raise InputError(f"--address {address}: cannot be reached ({error}); is the cluster up?") from error


def require_room(needs: ActorSpec, *, may_grow: bool) -> str | None:
    """An actor must fit on some node that is up; where machines may yet come, a note is all that can be said."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for kind, each, flag in (("GPU", needs.gpus, "gpus_per_worker"), ("CPU", needs.cpus, "cpus_per_worker")):
        most = max((node.get(kind, 0.0) for node in nodes), default=0.0)
        if each > most:
            what = f"the {len(nodes)} nodes of this cluster have at most" if len(nodes) > 1 else "this machine has"
            told = f"work.{flag}={each:g}: {what} {most:g} {kind}s"
            if may_grow:
                return f"{told}; waiting for machines that have"
            raise InputError(f"{told}; ask for no more than that")
    return None


def gpus_here() -> float:
    """GPUs of all nodes that are up."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))
