"""The specification of a sweep's workers, and the results that they share with other sweeps."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import default_cache, existing_part
from fpp_sweep.spec.process import cores
from fpp_sweep.spec.specs import StagePrecision, WorkerSpec, adaptation_precision, pretraining_precision


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
        on_bad_image=work.on_bad_image,
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

    A sweep shares no results if `work.reuse_results` is off, or if the time of the work is an objective. The same holds
    if a method learns from image to image and images may be skipped: a skipped image changes the results of later
    shards, which do not record it.
    """
    is_timed = not all(catalogue.metric(metric).of_dataset for metric in metrics_of_space(space))
    learns_over_images = any(catalogue.method(name).stateful for name in space.methods())
    depends_on_skipped_images = learns_over_images and space.work.on_bad_image == "skip"
    if not space.work.reuse_results or is_timed or depends_on_skipped_images:
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
