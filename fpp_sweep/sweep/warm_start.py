"""Warm start: the fronts of other sweeps, which `search.from` names, are the first points of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fpp_sweep.cli.names import find_sweep
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.later_seeds import later_seeds
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.params import check_point
from fpp_sweep.space.space import Space
from fpp_sweep.space.validation import as_list, as_mapping, at_key
from fpp_sweep.spec.errors import InputError


def with_warm_start(space: Space, info: SweepInfo | None = None) -> Space:
    """Return the space with the fronts of the sweeps that it names before its own points.

    A sweep that has not ended has the front of the trials that have finished. A point that the space has is not added.

    `info` is the record of a sweep that is resumed. It has the points of the sweeps that it names. These sweeps are not
    read again: they may have further trials since then, or be deleted.
    """
    recorded_names: Sequence[str] = ()
    if info is not None:
        recorded_names = as_list(info.search_settings.get("from", []))
    with at_key("search.from"):
        for name in reversed(space.search.from_):
            if name not in recorded_names:
                space = _with_front_of(name, space)
    if info is not None and any(name in recorded_names for name in space.search.from_):
        space = _with_recorded_points(space, info)
    return space


def _with_recorded_points(space: Space, info: SweepInfo) -> Space:
    """Return the space with the points of a resumed sweep before its own; its own if the recorded ones do not fit."""
    with suppress(InputError):  # the space has changed, which `require_same` refuses
        for point in reversed(as_list(info.space.get("points", []))):
            space = with_first_point(space, as_mapping(point))
    return space


def with_first_point(space: Space, point: Mapping[str, Any]) -> Space:
    """Return the space with a point before the others, unless it has that point."""
    if not point or point in space.points:
        return space
    return replace(space, points=(point, *space.points))


def _with_front_of(name: str, space: Space) -> Space:
    folder = SweepFolder(find_sweep(name))
    info = folder.info()
    front = front_of(info, folder.trials()).members
    _require_same_search(name, info, front, space)
    _require_other_images(name, info, space)
    _require_other_seeds(name, info, front, space)
    if not front:
        raise InputError(f"{name} has no front yet; give a sweep with a trial that finished")
    for member in reversed(front):
        try:
            point = check_point(member.params, space.searched(), space.start())
        except InputError as error:
            raise InputError(f"{name}: {member.name}: {error}") from None
        space = with_first_point(space, point)
    return space


def _require_same_search(name: str, info: SweepInfo, front: Sequence[TrialRecord], space: Space) -> None:
    """Raise InputError if a sweep had other objectives or parameters than the space."""
    theirs, ours = _goals(info.objectives), _goals(space.objectives)
    if theirs != ours:
        problem = f"{name} has the objectives {', '.join(theirs)}, and {space.name} has {', '.join(ours)}"
        raise InputError(f"{problem}; give a sweep of the same objectives")
    unknown_keys: set[str] = set()
    for member in front:
        unknown_keys |= set(member.params)
    unknown_keys -= {param.key for param in space.searched()}
    if unknown_keys:
        problem = f"{name} searched {', '.join(sorted(unknown_keys))}, which {space.name} does not"
        raise InputError(f"{problem}; give a sweep of the same parameters")


def _require_other_images(name: str, info: SweepInfo, space: Space) -> None:
    """Raise InputError if a sweep was searched on images that will judge the space's finalists: a gain may be luck."""
    if info.search_split != "test":
        return
    if space.search.split != "test":
        problem = f"{name} was searched on the test split, which will judge the finalists"
        raise InputError(f"{problem}; give a sweep that was searched on {space.search.split}")
    limit = info.work_settings.get("limit")
    has_more_images = space.work.limit is not None and (limit is None or limit > space.work.limit)
    if has_more_images:
        problem = f"{name} was searched on more test images (work.limit {limit}), which may judge the finalists"
        raise InputError(f"{problem}; give a sweep of {space.work.limit} images at most, or raise work.limit")


def _require_other_seeds(name: str, info: SweepInfo, front: Sequence[TrialRecord], space: Space) -> None:
    """Raise InputError if a front was pretrained with seeds that will judge the finalists: a gain may be luck."""
    if not any(member.has_fpp_prompt for member in front):
        return  # seeds only draw views, and other images get other views
    for seeds in later_seeds(space):
        shared = set(seeds).intersection(info.seeds)
        if shared:
            problem = f"{name} was searched with the seed {min(shared)}, which will judge the finalists"
            raise InputError(f"{problem}; search with its seeds, as in work.seeds={list(info.seeds)}")


def _goals(objectives: Sequence[Objective]) -> list[str]:
    """Return metrics with their goals, in an order of their names."""
    return sorted(f"{objective.metric} ({objective.goal})" for objective in objectives)
