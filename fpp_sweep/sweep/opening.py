"""Check the datasets, methods and prompts of a sweep with its workers, and record what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.sweep.plan import check_plan
from fpp_sweep.sweep.sweep_info import image_changes, with_inputs
from fpp_sweep.sweep.worker_pool import Workers
from fpp_sweep.trial.plan import Plan
from fpp_sweep.trial.results import TaskFailed

if TYPE_CHECKING:
    from fpp_sweep.workers.actors import Pool


@dataclass(frozen=True, slots=True)
class OpenedSweep:
    """The workers and the plan of a sweep, checked."""

    pool: Pool
    plan: Plan
    later_plans: Mapping[str, Plan]  # plans of the final stage and the test split; empty: there is no final stage
    gpus_per_worker: float


def open_sweep(space: Space, folder: SweepFolder, workers: Workers) -> OpenedSweep:
    """Check that all inputs exist and are those of the start, record them, and tell the workers the tasks' keys."""
    pool, model = workers.pool, workers.model
    stage("looking at datasets and prompts")
    try:
        plan, later_plans, validation = check_plan(space, pool)
    except TaskFailed as error:
        raise InputError(error.reason) from error
    datasets = plan.datasets_by_key()
    for later_plan in later_plans.values():
        datasets.update(later_plan.datasets_by_key())
    before = folder.info()
    info = with_inputs(before, space, model, datasets.values(), validation)
    for line in (*validation.notes, *space.notes(), *image_changes(before, info)):
        note(line)
    pool.begin(TaskKeys(model, datasets, validation.prompts))
    folder.write_info(info)
    return OpenedSweep(pool, plan, later_plans, workers.gpus_per_worker)
