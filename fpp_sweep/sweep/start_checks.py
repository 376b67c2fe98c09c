"""The checks that a sweep makes before its first trial, for `doctor`: no sweep and no Ray session starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fpp_sweep.checks.findings import Finding, run_check
from fpp_sweep.space.space import Space
from fpp_sweep.spec.messages import plural
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import check_plan, sources_of
from fpp_sweep.sweep.preflight import check_before_ray_start
from fpp_sweep.sweep.worker_pool import machine_of_session, needs_of_workers
from fpp_sweep.workers.needs import Resources
from fpp_sweep.workers.session import machines_of_session

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker


def start_finding(space: Space, options: Options) -> Finding:
    """Check what the driver checks before Ray starts."""
    remedy = "correct the setting or plugin that is named there: `tune` would stop there, too"
    return run_check("start of the sweep", remedy, partial(check_start, space, options))


def check_start(space: Space, options: Options) -> Finding:
    check_before_ray_start(space, options)
    return Finding("ok", "the settings can be used")


def room_finding(space: Space, *, on_cluster: bool) -> Finding:
    """Check the room for workers in a Ray session on this machine, or on the cluster that this process has joined."""
    remedy = "lower the setting that is named there, or run on a larger machine or cluster"
    return run_check("room for workers", remedy, partial(check_room, space, on_cluster=on_cluster))


def check_room(space: Space, *, on_cluster: bool) -> Finding:
    machines: Sequence[Resources]
    if on_cluster:
        machines = machines_of_session()
    else:
        machines = [machine_of_session(space.work)]
    needs, note = needs_of_workers(space.work, machines, on_cluster=on_cluster)
    if note:
        return Finding("note", note)
    return Finding("ok", plural(needs.workers or needs.workers_with_room(machines), "worker"))


def check_plan_of(space: Space, worker: Worker) -> Finding:
    """Check what the workers check; the error of the first check that fails ends the others."""
    notes = check_plan(space, worker).validation.notes
    if notes:
        return Finding("note", "; ".join(notes))
    n_methods, n_prompts = len(space.methods()), len(sources_of(space))
    return Finding("ok", f"{plural(n_methods, 'method')} and {plural(n_prompts, 'prompt')} can be used")
