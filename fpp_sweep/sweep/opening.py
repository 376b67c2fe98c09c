"""Check the datasets, methods and prompts of a sweep with its workers, and record what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fpp_sweep.records.folder import SweepRecord
from fpp_sweep.search.question import TAKEN_OVER, asked_now, with_answer
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.sweep.plan import check_plan
from fpp_sweep.sweep.start import Start
from fpp_sweep.sweep.sweep_info import image_changes, with_inputs
from fpp_sweep.sweep.worker_pool import Workers
from fpp_sweep.trial.plan import Plan
from fpp_sweep.trial.results import TaskFailed


@dataclass(frozen=True, slots=True)
class OpenedSweep:
    """The workers and the plan of a sweep, checked."""

    workers: Workers
    plan: Plan
    later_plans: Mapping[str, Plan]  # plans of the final stage and the test split; empty: there is no final stage


def open_sweep(start: Start, workers: Workers) -> OpenedSweep:
    """Check that all inputs exist and are those of the start, record them, and tell the workers the tasks' keys."""
    pool, model = workers.pool, workers.model
    stage("looking at datasets and prompts")
    try:
        plan, later_plans, validation = check_plan(start.space, pool)
    except TaskFailed as error:
        raise InputError(error.reason) from error
    datasets = plan.datasets_by_key()
    for later_plan in later_plans.values():
        datasets.update(later_plan.datasets_by_key())
    before = start.record.info
    info = with_inputs(before, start.space, model, datasets.values(), validation)
    images = {split: later_plans.get(split, plan).images(split) for split in (*plan.datasets, *later_plans)}
    info = replace(info, images_by_split=images)
    for line in (*validation.notes, *start.space.notes(), *image_changes(before, info)):
        note(line)
    pool.begin(TaskKeys(model, datasets, validation.prompts))
    start.accept(info)
    return OpenedSweep(workers, plan, later_plans)


def reopen(record: SweepRecord, space: Space, command: int, workers: Workers) -> OpenedSweep | None:
    """Ask the space of a command of a running sweep with the same workers; refused inputs change nothing."""
    before = record.info
    answers = with_answer(before.answers, command, TAKEN_OVER)
    asked = SweepRecord(record.folder, replace(before, answers=answers, **asked_now(before, space)))
    try:
        opened = open_sweep(Start(space=space, record=asked, before=before), workers)
    except InputError as error:
        record.update(answers=with_answer(before.answers, command, f"refused: {error}"))
        return None
    record.info = asked.info
    return opened
