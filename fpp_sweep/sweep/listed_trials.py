"""Trials whose points are all listed beforehand, as a sweep in one process needs them."""

from __future__ import annotations

from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import set_aside
from fpp_sweep.spec.messages import note

NEED_RAY = ("wall_clock", "gpu_hours", "concurrency", "patience", "race", "notify")  # keys of `search`


def require_listed(space: Space) -> None:
    """Raise InputError if the space asks for a search, or for something that only workers on Ray do."""
    if space.search.sampler != "grid":
        raise InputError(f"sampler {space.search.sampler} needs workers on Ray; give --workers", "search.sampler")
    if space.work.baselines:
        raise InputError("baselines need workers on Ray; give --workers", "work.baselines")
    defaults = Search()
    for key in NEED_RAY:
        if getattr(space.search, key) != getattr(defaults, key):
            raise InputError("needs workers on Ray; give --workers, or leave the key out", f"search.{key}")


def write_listed_trials(space: Space, folder: SweepFolder) -> list[str]:
    """Write a record for each point that has none yet, and return the names of all of them in their order."""
    names = []
    for number, (origin, values) in enumerate(space.queue()[: space.search.trials]):
        name = f"trial-{number:04d}"  # as in search/study.py, which needs Optuna
        if not _has_record(folder, name):
            folder.write_trial(_waiting_record(space, name, number, origin, values))
        names.append(name)
    return names


def _has_record(folder: SweepFolder, name: str) -> bool:
    """Return whether a trial has a record; a damaged one is renamed, so that the trial runs again."""
    file = folder.trial_file(name)
    if not file.exists():
        return False
    try:
        folder.trial(name)
    except InputError as error:
        problem = str(error).partition(";")[0]
        note(f"{problem}; kept as {set_aside(file)}, and the trial runs again")
        return False
    return True


def _waiting_record(space: Space, name: str, number: int, origin: str, values: dict[str, Any]) -> TrialRecord:
    config = space.resolve(values)
    return TrialRecord(
        name=name,
        kind="trial",
        state="waiting",
        number=number,
        origin=origin,
        params=values,
        config=config.flat(),
        key=keys.of_config(config),
    )
