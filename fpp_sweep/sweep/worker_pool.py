"""Start Ray and the workers of a sweep, or join a cluster whose nodes have been checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Work
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note, plural, stage
from fpp_sweep.spec.process import cores, interrupts_wait
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.node_checks import check_nodes, shared_environment
from fpp_sweep.sweep.worker_spec import shared_results_folder, worker_spec
from fpp_sweep.tracking.stores import open_store
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.workers.needs import Resources, WorkerNeeds, require_room
from fpp_sweep.workers.session import free_resources, gpus_of_this_machine, machines_of_session, session

if TYPE_CHECKING:
    from fpp_sweep.workers.actors import Pool


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a run, the first of which is ready; several sweeps on the same model may use them in turn."""

    pool: Pool
    model: ModelInfo
    gpus_per_worker: float


@contextmanager
def sweep_workers(
    space: Space, options: Options, task_folder: Path, tracking_uri: str, shared_workers: Workers | None
) -> Iterator[Workers]:
    """Start Ray and workers, unless other sweeps share theirs, and check MLflow's store at the same time."""
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        # importing MLflow takes seconds, so its store is checked while Ray starts
        wait_for_store = threads.submit(open_store, tracking_uri).result
        try:
            if shared_workers is None:
                stack.enter_context(ray_session(space, options))
                stage("opening MLflow's store")
                wait_for_store()  # before the model is loaded
                workers = start_workers(space, options, task_folder)
            else:
                wait_for_store()
                workers = shared_workers
        except KeyboardInterrupt:
            stage("interrupted; ending what was begun")  # ending waits for MLflow's import
            raise
        yield workers


@contextmanager
def open_workers(space: Space, options: Options, task_folder: Path) -> Iterator[Workers]:
    """Start Ray and a first worker; `task_folder` is the folder for results of tasks."""
    with ray_session(space, options):
        yield start_workers(space, options, task_folder)


@contextmanager
def ray_session(space: Space, options: Options) -> Iterator[None]:
    """Start Ray on this machine, or join the cluster at `options.address`."""
    if not options.on_cluster:
        _require_cores(space.work.cpus_per_worker)
        _note_shared_cores(space.work)
    with ExitStack() as stack:
        with interrupts_wait("interrupted; Ray is left once it has started ..."):
            stage(f"joining the Ray cluster at {options.address}" if options.on_cluster else "starting Ray")
            stack.enter_context(session(options.address, cpus=session_cpus(space.work), verbose=options.verbose))
        yield


def session_cpus(work: Work) -> int:
    """Return the number of CPUs of a session on this machine: its cores, or as many as the wanted workers take."""
    return max(cores(), math.ceil((work.workers or 1) * work.cpus_per_worker))


def machine_of_session(work: Work) -> dict[str, float]:
    """Return the resources of a session on this machine; raise InputError if a worker asks for more cores."""
    _require_cores(work.cpus_per_worker)
    return {"CPU": float(session_cpus(work)), "GPU": gpus_of_this_machine()}


def needs_of_workers(work: Work, machines: Sequence[Resources], *, on_cluster: bool) -> tuple[WorkerNeeds, str | None]:
    """Return what the workers of a session need, and a note if they have to wait for more machines.

    Raise InputError if no machine has room for a worker.
    """
    gpus = gpus_of_a_worker(work, sum(machine.get("GPU", 0.0) for machine in machines))
    env = shared_environment() if on_cluster else {}
    needs = WorkerNeeds(workers=work.workers, cpus=work.cpus_per_worker, gpus=gpus, env=env)
    # with both numbers given, a cluster may start machines for them
    may_grow = on_cluster and work.workers is not None and work.gpus_per_worker is not None
    return needs, require_room(machines, needs, may_grow=may_grow)


def _require_cores(cpus_per_worker: float) -> None:
    if cpus_per_worker > cores():
        problem = f"work.cpus_per_worker={cpus_per_worker:g}: this machine has {cores()} CPUs"
        raise InputError(f"{problem}; ask for no more than that")


def _note_shared_cores(work: Work) -> None:
    """Note more workers than this machine has cores for; they run nonetheless."""
    workers = work.workers or 1
    if workers * work.cpus_per_worker > cores():
        note(f"{plural(workers, 'worker')} share {plural(cores(), 'core')} of this machine and wait for each other")


def _note_busy_cluster(needs: WorkerNeeds) -> None:
    """Note a cluster on which no worker can start before other work ends; the sweep waits."""
    if needs.room_on(free_resources().values()) == 0:
        problem = "no node of the cluster has room for a worker now"
        note(f"{problem}; waiting until other work on the cluster ends (`ray status` shows what is in use)")


def gpus_of_a_worker(work: Work, gpus_of_session: float) -> float:
    """Return how many GPUs each worker gets in a Ray session with `gpus_of_session` GPUs in all."""
    if work.device == "cpu":
        return 0.0
    if work.gpus_per_worker is not None:
        return work.gpus_per_worker
    if work.device == "cuda" or gpus_of_session:
        return 1.0
    return 0.0


def start_workers(space: Space, options: Options, task_folder: Path) -> Workers:
    """Start workers in the Ray session, and return when the first one has loaded the model."""
    from fpp_sweep.workers import actors  # loads Ray, after `session` has set its environment

    work = space.work
    needs, note_on_room = needs_of_workers(work, machines_of_session(), on_cluster=options.on_cluster)
    if note_on_room is not None:
        note(note_on_room)
    elif options.on_cluster:
        _note_busy_cluster(needs)
    spec = replace(worker_spec(space, needs.gpus), plugins=options.plugins)
    shared_folder = None
    if options.on_cluster:
        check_nodes(spec)
    elif not options.plugins:
        shared_folder = shared_results_folder(space)
    pool = actors.start_pool(
        spec, needs, task_folder, attempts=work.attempts, timeout=work.task_timeout, shared_folder=shared_folder
    )
    count = "a first worker"
    if work.workers is not None:
        count = plural(work.workers, "worker")
    stage(f"loading {work.model} on {count}")
    try:
        model = pool.open()
    except TaskFailed as error:
        raise InputError(error.reason) from error
    return Workers(pool, model, needs.gpus)
