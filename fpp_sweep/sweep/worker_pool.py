"""Start Ray and the workers of a sweep, or join a cluster whose nodes have been checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Work
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note, plural, stage
from fpp_sweep.spec.process import cores, terminable
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.node_checks import check_nodes, shared_environment
from fpp_sweep.sweep.worker_spec import shared_results, worker_spec
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.workers.session import gpus_here, session

if TYPE_CHECKING:
    from fpp_sweep.workers.actors import Pool


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a run, the first of which is ready; several sweeps on the same model may use them in turn."""

    pool: Pool
    model: ModelInfo
    gpus_per_worker: float


@contextmanager
def open_workers(space: Space, options: Options, tasks: Path) -> Iterator[Workers]:
    """Start Ray and a first worker; `tasks` is the folder for results."""
    with ray_session(space, options):
        yield start_workers(space, options, tasks)


@contextmanager
def ray_session(space: Space, options: Options) -> Iterator[None]:
    """Start Ray on this machine, or join the cluster at `options.address`."""
    if options.on_cluster:
        stage(f"joining the Ray cluster at {options.address}")
    else:
        _require_cores(space.work.cpus_per_worker)
        stage("starting Ray")
    cpus = max(cores(), math.ceil((space.work.workers or 1) * space.work.cpus_per_worker))
    with (
        session(options.address, cpus=cpus, verbose=options.verbose),
        terminable(),  # again: ray.init has replaced the handler
    ):
        yield


def _require_cores(cpus_per_worker: float) -> None:
    if cpus_per_worker > cores():
        problem = f"work.cpus_per_worker={cpus_per_worker:g}: this machine has {cores()} CPUs"
        raise InputError(f"{problem}; ask for no more than that")


def require_kind_of_device(work: Work) -> None:
    """Raise InputError for a single device, such as cuda:1: Ray chooses the devices of its workers."""
    if work.device not in ("auto", "cpu", "cuda"):
        problem = f"{work.device} is one device, but workers get theirs from Ray"
        raise InputError(f"{problem}; give auto, cpu or cuda, or set CUDA_VISIBLE_DEVICES", "work.device")


def gpus_of_a_worker(work: Work) -> float:
    """Return how many GPUs each worker of a Ray session gets."""
    if work.device == "cpu":
        return 0.0
    if work.gpus_per_worker is not None:
        return work.gpus_per_worker
    if work.device == "cuda" or gpus_here():
        return 1.0
    return 0.0


def start_workers(space: Space, options: Options, tasks: Path) -> Workers:
    """Start workers in the Ray session, and return when the first one has loaded the model."""
    from fpp_sweep.workers import actors, resources  # load Ray, after `session` has set its environment

    work = space.work
    gpus = gpus_of_a_worker(work)
    env = shared_environment() if options.on_cluster else {}
    needs = resources.WorkerNeeds(workers=work.workers, cpus=work.cpus_per_worker, gpus=gpus, env=env)
    # with both numbers given, a cluster may start machines for them
    may_grow = options.on_cluster and work.workers is not None and work.gpus_per_worker is not None
    if lacking := resources.require_room(needs, may_grow=may_grow):
        note(lacking)
    spec = replace(worker_spec(space, gpus), plugins=options.plugins)
    shared = None
    if options.on_cluster:
        check_nodes(spec)
    elif not options.plugins:
        shared = shared_results(space)
    pool = actors.start_pool(spec, needs, tasks, attempts=work.attempts, timeout=work.task_timeout, shared=shared)
    workers = "a first worker" if work.workers is None else plural(work.workers, "worker")
    stage(f"loading {work.model} on {workers}")
    try:
        model = pool.open()
    except TaskFailed as error:
        raise InputError(error.reason) from error
    return Workers(pool, model, gpus)
