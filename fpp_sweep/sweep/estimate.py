"""The dry run of a sweep: its configs and tasks, and about how long it would take (`tune --dry-run`).

The tasks are those of the sweep itself: baselines, published points, as many sampled trials as the budget allows, and
the test split, with everything that trials share counted once. What a task takes is measured here, on this machine's
device, with a few steps and a few images of each dataset.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Work
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import stage
from fpp_sweep.spec.process import cores, terminable
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.sweep import timing
from fpp_sweep.sweep.cost_report import budget_lines, config_lines, cost_lines, final_stage_lines, worker_table
from fpp_sweep.sweep.costs import Costs
from fpp_sweep.sweep.expected import ExpectedSweep, expected_configs
from fpp_sweep.sweep.plan import check_plan
from fpp_sweep.sweep.timing import Speed
from fpp_sweep.sweep.worker_spec import worker_spec
from fpp_sweep.trial.worker import Worker
from fpp_sweep.workers.needs import WorkerNeeds


def dry_run(spaces: Sequence[Space], worker_counts: Sequence[int] = ()) -> str:
    """Return configs, tasks and cost of a sweep, or of several that share their results.

    `worker_counts` are numbers of workers to compare.
    """
    work = spaces[0].work
    with terminable(), tempfile.TemporaryDirectory() as cache:
        stage(f"loading {work.model}")
        worker = _open_worker(spaces[0], cache)
        sweeps, notes = _expected_sweeps(spaces, worker)
        workers = work.workers or _workers_that_fit(work)
        speeds = _measure_all(sweeps, worker, workers)
    model = worker.model_info()
    costs = Costs.of(sweeps, speeds, TaskKeys(model, _datasets_of(sweeps)))
    lines: list[str] = []
    for sweep in sweeps:
        lines += config_lines(sweep.space, sweep.configs)
    lines += [f"note: {note}" for note in notes]
    lines += ["", *cost_lines(costs, workers, device="CPU" if model.device == "cpu" else "GPU")]
    if worker_counts:
        lines += worker_table(costs, worker_counts, view_bytes=_view_bytes(worker))
    for sweep in sweeps:
        lines += final_stage_lines(sweep, costs)
    if len(sweeps) == 1:
        lines += budget_lines(sweeps[0], costs, workers)
    return "\n".join(lines)


def _open_worker(space: Space, cache: str) -> Worker:
    """Open a worker whose cache has no features, so that the time for computing them is measured, not for reading."""
    gpus, machine_share = 0.0, 1.0
    if _uses_gpus(space.work):
        gpus = space.work.gpus_per_worker or 1.0
        machine_share = min(1.0, gpus / torch.cuda.device_count())
    return Worker(replace(worker_spec(space, gpus), cache=cache, machine_share=machine_share))


def _uses_gpus(work: Work) -> bool:
    return torch.cuda.is_available() and work.gpus_per_worker != 0


def _workers_that_fit(work: Work) -> int:
    """Return how many workers this machine holds."""
    machine = {"CPU": float(cores())}
    gpus = 0.0
    if _uses_gpus(work):
        machine["GPU"] = float(torch.cuda.device_count())
        gpus = work.gpus_per_worker or 1.0
    needs = WorkerNeeds(workers=None, cpus=work.cpus_per_worker, gpus=gpus, env={})
    return needs.workers_with_room([machine])


def _expected_sweeps(spaces: Sequence[Space], worker: Worker) -> tuple[list[ExpectedSweep], list[str]]:
    """Return the sweeps, and the notes that they would print, each once."""
    sweeps = []
    notes: dict[str, None] = {}
    for space in spaces:
        plan, final, validation = check_plan(space, worker)
        notes.update(dict.fromkeys([*validation.notes, *space.notes()]))
        sweeps.append(ExpectedSweep(space, plan, expected_configs(space), final))
    return sweeps, list(notes)


def _measure_all(sweeps: Sequence[ExpectedSweep], worker: Worker, workers: int) -> dict[str, Speed]:
    """Measure the speed on each dataset, with as many cores busy as the other workers will keep busy."""
    speeds: dict[str, Speed] = {}
    with busy_cores(min(workers, cores()) - 1):
        for sweep in sweeps:
            for dataset in sweep.plan.datasets[sweep.space.search.split]:
                if dataset.name not in speeds:
                    stage(f"measuring pretraining, adaptation and image features on {dataset.name}")
                    speeds[dataset.name] = timing.measure(worker, sweep.space.start(), dataset)
    return speeds


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep cores busy, as other workers will: a core is faster while others are idle.

    A loop ends by itself if this process is killed.
    """
    loop_code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    loops = [subprocess.Popen([sys.executable, "-c", loop_code]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _datasets_of(sweeps: Sequence[ExpectedSweep]) -> dict[tuple[str, str], DatasetInfo]:
    datasets = {}
    for sweep in sweeps:
        datasets.update(sweep.plan.datasets_by_key())
        for later_plan in sweep.later_plans.values():
            datasets.update(later_plan.datasets_by_key())
    return datasets


def _view_bytes(worker: Worker) -> int:
    """Return the bytes of a view's features in the cache."""
    width = len(worker.clip.text.projection[0])
    return width * (4 if worker.spec.float32_cache else 2)
