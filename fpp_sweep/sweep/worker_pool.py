"""Start Ray and the workers of a sweep, or join a cluster whose nodes have been checked."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.checks.findings import Finding, compare_machines
from fpp_sweep.checks.machine import check_machine
from fpp_sweep.checks.versions import LIBRARIES
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, first_line
from fpp_sweep.spec.files import default_cache, existing_part
from fpp_sweep.spec.messages import note, plural, stage
from fpp_sweep.spec.process import cores, interrupts_wait
from fpp_sweep.spec.specs import ModelInfo, StagePrecision, WorkerSpec, adaptation_precision, pretraining_precision
from fpp_sweep.sweep.api import Options
from fpp_sweep.tracking.stores import open_store
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.workers.session import Resources, WorkerNeeds, ray_part, require_room, session

if TYPE_CHECKING:
    from fpp_sweep.workers.actors import Pool


def worker_spec(space: Space, gpus: float) -> WorkerSpec:
    """Return what a worker opens for a space; `gpus` is the worker's share of the GPUs, 0 for a worker on CPUs."""
    work = space.work
    if gpus:
        device, device_share = "cuda", min(1.0, gpus)
    else:
        device, device_share = "cpu", min(1.0, work.cpus_per_worker / cores())
    return WorkerSpec(
        model=work.model,
        data_root=work.data_root,
        dataset_file=work.dataset_file,
        datasets=work.datasets,
        limit=work.limit,
        cache=work.cache,
        float32_cache=work.float32_cache,
        loaders=work.loaders,
        cuda_graphs=work.cuda_graphs,
        device=device,
        threads=work.threads or max(1, int(work.cpus_per_worker)),
        device_share=device_share,
        precisions=tuple(precisions(space)),
        folder=os.getcwd(),
    )


def precisions(space: Space) -> list[StagePrecision]:
    """Return the precisions that stages of trials and baselines may ask for."""
    requested = {config.precision for config in [*space.baselines().values(), space.start()]}
    for param in space.searched():
        if param.key == "precision":
            requested.update(param.choices)
    stages: set[StagePrecision] = set()
    for precision in requested:
        stages.update((pretraining_precision(precision), adaptation_precision(precision)))
    return sorted(stages)


def require_kind_of_device(work: Work) -> None:
    """Raise InputError for a single device, such as cuda:1: Ray chooses the devices of its workers."""
    if work.device not in ("auto", "cpu", "cuda"):
        problem = f"{work.device} is one device, but workers get theirs from Ray"
        raise InputError(f"{problem}; give auto, cpu or cuda, or set CUDA_VISIBLE_DEVICES", "work.device")


def require_precisions(space: Space) -> None:
    """Raise InputError if the CPU cannot compute in a precision of the space; GPUs are asked by the first worker."""
    wanted = precisions(space)
    if wanted == ["float32"]:
        return
    if space.work.device == "cuda" and space.work.gpus_per_worker != 0:
        return
    from fpp_sweep.core import compute  # start-up time: load torch

    device = "cpu" if space.work.gpus_per_worker == 0 else compute.choose_device(space.work.device)
    if device == "cpu":
        for wanted_precision in wanted:
            compute.require_precision_support(wanted_precision, device)


def require_writable_cache(space: Space) -> None:
    """Raise InputError if the folder of the cache cannot be written, or cannot be made; it is not made here."""
    folder = cache_folder(space)
    try:
        with tempfile.TemporaryFile(dir=existing_part(folder)) as file:
            file.write(b"test")
    except OSError as error:
        problem = f"{folder}: {error.strerror or error}; name a folder that can be written, or set FPP_SWEEP_CACHE"
        raise InputError(problem, "work.cache") from error


def shared_results_folder(space: Space) -> Path | None:
    """Return the folder of the results that all sweeps on this machine share; None if this sweep shares none.

    A sweep shares no results if `work.reuse_results` is off, or if the time of the work is an objective.
    """
    is_timed = not all(catalogue.metric(metric).of_dataset for metric in metrics_of_space(space))
    if not space.work.reuse_results or is_timed:
        return None
    return cache_folder(space).absolute() / "tasks"


def metrics_of_space(space: Space) -> list[str]:
    """Return the metrics of the objectives and the constraints."""
    metrics = [objective.metric for objective in space.objectives]
    metrics += [constraint.metric for constraint in space.constraints]
    return metrics


def cache_folder(space: Space) -> Path:
    if space.work.cache:
        return Path(space.work.cache)
    return default_cache()


SHARED_ENVIRONMENT = ("OMP_WAIT_POLICY", "FPP_SWEEP_CACHE")  # variables that workers on other machines need, too
REQUIRED = ("fpp_sweep", "code", "python", *LIBRARIES, "cache")  # a sweep does not begin if one of these is wrong
NODE_SECONDS = 60.0  # for a node to answer
NO_ANSWER = "see with `ray status` whether the node is up, and update its code"


def shared_environment() -> dict[str, str]:
    """Return the environment variables of this process that workers on other machines need, too."""
    return {name: os.environ[name] for name in SHARED_ENVIRONMENT if name in os.environ}


def findings_of_nodes(check: Callable[..., list[Finding]], *arguments: Any, seconds: float) -> dict[str, list[Finding]]:
    """Return what is found on every node of the Ray cluster, by the node's address."""
    findings = {}
    for node, found in ray_part().on_every_node(check, *arguments, env=shared_environment(), seconds=seconds).items():
        if isinstance(found, BaseException):
            found = [Finding("wrong", first_line(found), NO_ANSWER, subject="code")]
        findings[node] = found
    return findings


def check_nodes(spec: WorkerSpec) -> None:
    """Raise InputError if results of a node would differ or fail; note whatever else `doctor` would report."""
    nodes = findings_of_nodes(check_machine, spec, True, seconds=NODE_SECONDS)
    for node, found in compare_machines({"driver": check_machine(spec, True), **nodes}).items():
        for finding in found:
            line = f"{node}: {finding.subject} {finding.text}; {finding.remedy}"
            if finding.state == "wrong" and finding.subject in REQUIRED:
                raise InputError(line)
            if finding.state != "ok":
                note(line)


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a run, the first of which is ready; several sweeps on the same model may use them in turn."""

    pool: Pool
    model: ModelInfo


@contextmanager
def sweep_workers(
    space: Space, options: Options, task_folder: Path, tracking_uri: str, shared_workers: Workers | None
) -> Iterator[Workers]:
    """Start Ray and workers, unless other sweeps share theirs, and check MLflow's store at the same time."""
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        # importing MLflow takes seconds, so its store is checked while Ray and the workers start
        wait_for_store = threads.submit(open_store, tracking_uri).result
        try:
            if shared_workers is None:
                stack.enter_context(ray_session(space, options))
                pool = start_workers(space, options, task_folder)
                stage("opening MLflow's store")
                wait_for_store()
                workers = first_worker(pool, space.work)
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
        yield first_worker(start_workers(space, options, task_folder), space.work)


@contextmanager
def ray_session(space: Space, options: Options) -> Iterator[None]:
    """Start Ray on this machine, or join the cluster at `options.address`."""
    if not options.on_cluster:
        require_cores(space.work.cpus_per_worker)
        _note_shared_cores(space.work)
    with ExitStack() as stack:
        with interrupts_wait("interrupted; Ray is left once it has started ..."):
            stage(f"joining the Ray cluster at {options.address}" if options.on_cluster else "starting Ray")
            stack.enter_context(session(options.address, cpus=session_cpus(space.work), verbose=options.verbose))
        yield


def session_cpus(work: Work) -> int:
    """Return the number of CPUs of a session on this machine: its cores, or as many as the wanted workers take."""
    return max(cores(), math.ceil((work.workers or 1) * work.cpus_per_worker))


def needs_of_workers(work: Work, machines: Sequence[Resources], *, on_cluster: bool) -> tuple[WorkerNeeds, str | None]:
    """Return what the workers of a session need, and a note if they have to wait for more machines.

    Raise InputError if no machine has room for a worker.
    """
    gpus = gpus_of_a_worker(work, sum(machine.get("GPU", 0.0) for machine in machines))
    env = shared_environment() if on_cluster else {}
    needs = WorkerNeeds(workers=work.workers, cpus=work.cpus_per_worker, gpus=gpus, env=env)
    # with both numbers given, a cluster may start machines for them
    may_grow = on_cluster and work.workers is not None and work.gpus_per_worker is not None
    if work.device == "cuda" and not may_grow and not any(machine.get("GPU") for machine in machines):
        raise InputError("no machine here has a GPU; give auto or cpu", "work.device")
    return needs, require_room(machines, needs, may_grow=may_grow)


def require_cores(cpus_per_worker: float) -> None:
    if cpus_per_worker > cores():
        problem = f"work.cpus_per_worker={cpus_per_worker:g}: this machine has {cores()} CPUs"
        raise InputError(f"{problem}; ask for no more than that")


def _note_shared_cores(work: Work) -> None:
    """Note more workers than this machine has cores for; they run nonetheless."""
    workers = work.workers or 1
    if workers * work.cpus_per_worker > cores():
        note(f"{plural(workers, 'worker')} share {plural(cores(), 'core')} of this machine and wait for each other")


def gpus_of_a_worker(work: Work, gpus_of_session: float) -> float:
    """Return how many GPUs each worker gets in a Ray session with `gpus_of_session` GPUs in all."""
    if work.device == "cpu":
        return 0.0
    if work.gpus_per_worker is not None:
        return work.gpus_per_worker
    if work.device == "cuda" or gpus_of_session:
        return 1.0
    return 0.0


def start_workers(space: Space, options: Options, task_folder: Path) -> Pool:
    """Start workers in the Ray session, which load the model from now on."""
    from fpp_sweep.workers import actors, ray_session  # load Ray, after `session` has set its environment

    work = space.work
    needs, note_on_room = needs_of_workers(work, ray_session.machines_of_session(), on_cluster=options.on_cluster)
    if note_on_room is not None:
        note(note_on_room)
    spec = replace(worker_spec(space, needs.gpus), plugins=options.plugins)
    shared_folder = None
    if options.on_cluster:
        check_nodes(spec)
    elif not options.plugins:
        shared_folder = shared_results_folder(space)
    return actors.start_pool(
        spec, needs, task_folder, attempts=work.attempts, timeout=work.task_timeout, shared_folder=shared_folder
    )


def first_worker(pool: Pool, work: Work) -> Workers:
    """Return the workers when the first one has loaded the model."""
    count = "a first worker"
    if work.workers is not None:
        count = plural(work.workers, "worker")
    stage(f"loading {work.model} on {count}")
    try:
        model = pool.open()
    except TaskFailed as error:
        raise InputError(error.reason) from error
    return Workers(pool, model)
