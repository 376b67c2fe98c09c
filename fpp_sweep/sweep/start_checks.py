"""The checks that a sweep makes before its first trial, as probes of `doctor`: no sweep and no Ray session starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fpp_sweep.checks.probes import Readings, run_probes
from fpp_sweep.records.records import FINAL
from fpp_sweep.space.space import Space
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import CheckedPlan, check_plan, sources_of
from fpp_sweep.sweep.preflight import check_before_ray_start
from fpp_sweep.sweep.worker_pool import machine_of_session, needs_of_workers
from fpp_sweep.workers.needs import Resources
from fpp_sweep.workers.session import machines_of_session

ROOM = "room for workers"  # subject of a reading

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker


def start_readings(space: Space, options: Options) -> Readings:
    """Return the reading of the checks that the driver makes before Ray starts."""

    def check() -> str:
        check_before_ray_start(space, options)
        return "passed"

    return run_probes({"start of the sweep": check})


def room_here(space: Space) -> Readings:
    """Return the reading of the room for workers in a Ray session on this machine."""
    return run_probes({ROOM: lambda: _room(space, [machine_of_session(space.work)], on_cluster=False)})


def room_on_cluster(space: Space) -> Readings:
    """Return the reading of the room for workers on the cluster that this process has joined."""
    return run_probes({ROOM: lambda: _room(space, machines_of_session(), on_cluster=True)})


def _room(space: Space, machines: Sequence[Resources], *, on_cluster: bool) -> dict[str, Any]:
    needs, note = needs_of_workers(space.work, machines, on_cluster=on_cluster)
    return {"workers": needs.workers or needs.workers_with_room(machines), "note": note or ""}


def plan_reading(space: Space, worker: Worker) -> dict[str, Any]:
    """Return the reading of the checks that the workers make; raise InputError for the first that fails."""
    checked = check_plan(space, worker)
    return {
        "methods": len(space.methods()),
        "prompts": len(sources_of(space)),
        "notes": list(checked.validation.notes),
        "final_split": _final_split(checked, space.search.split),
    }


def _final_split(checked: CheckedPlan, split: str) -> str:
    """Return the images that the search and the final stage read of the searched split, such as `val:20`.

    Return an empty string if the final stage has no images but those of the search.
    """
    if not checked.later_plans:
        return ""
    ends = [images.stop for images in checked.later_plans[FINAL].ranges.values()]
    if not ends:
        return ""
    return f"{split}:{max(ends)}"
