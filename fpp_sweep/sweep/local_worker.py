"""A worker in this process, opened and checked for a space, as `opening` does with workers on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fpp_sweep.core.models.names import EMBEDDED
from fpp_sweep.space.space import Space
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.process import cores, readers
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import ModelInfo, PluginFile, WorkerSpec
from fpp_sweep.sweep.plan import make_plan, validate
from fpp_sweep.sweep.start import Start
from fpp_sweep.sweep.sweep_info import image_changes, with_inputs
from fpp_sweep.sweep.worker_spec import shared_results_folder, worker_spec
from fpp_sweep.trial.local_runner import LocalExecutor
from fpp_sweep.trial.plan import Plan
from fpp_sweep.trial.store import TaskStore, folder_for
from fpp_sweep.trial.worker import Worker


def open_locally(start: Start, plugins: Sequence[PluginFile]) -> tuple[Plan, LocalExecutor]:
    """Load the model, check all that the space names, and record both; raise InputError if something has changed."""
    space, folder = start.space, start.record.folder
    worker = Worker(local_worker_spec(space, plugins), Bar)
    plan = make_plan(space, worker)
    validation = validate(space, worker, plan)
    model = worker.model_info()
    before = start.record.info
    datasets = plan.datasets_by_key()
    info = with_inputs(before, space, model, datasets.values(), validation)
    for line in (*validation.notes, *image_changes(before, info)):
        note(line)
    start.accept(info)
    store = TaskStore(folder.tasks, _shared_folder(space, plugins, model))
    return plan, LocalExecutor(worker, TaskKeys(model, datasets, validation.prompts), store)


def local_worker_spec(space: Space, plugins: Sequence[PluginFile]) -> WorkerSpec:
    """Return what the worker of this process opens: unlike a worker on Ray, it has the whole machine."""
    work = space.work
    # operations of the embedded model are too small for a second thread, and its images for a second process
    is_embedded = work.model == EMBEDDED
    threads = work.threads
    if threads is None:
        threads = 1 if is_embedded else cores()
    loaders = work.loaders
    if loaders is None:
        loaders = 0 if is_embedded else readers()
    device = work.device
    if work.gpus_per_worker == 0:
        device = "cpu"
    on_ray = worker_spec(space, gpus=1.0)
    return replace(on_ray, device=device, threads=threads, loaders=loaders, device_share=1.0, plugins=tuple(plugins))


def _shared_folder(space: Space, plugins: Sequence[PluginFile], model: ModelInfo) -> Path | None:
    """Return the folder of results that sweeps on this machine share; results of plugins are not shared."""
    folder = shared_results_folder(space)
    if plugins or folder is None:
        return None
    return folder_for(folder, model)
