"""Resume a sweep: load its record, and add what is requested now to what was requested before."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import FINAL, Command, SweepInfo
from fpp_sweep.records.steering import budget_in_force, space_at_start
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import STEERED, Search
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.spec.messages import stage
from fpp_sweep.sweep.api import Options

MAX_SHOWN = 3  # differences between two spaces; another space has dozens


def load_for_resume(space: Space, options: Options, folder: SweepFolder) -> SweepInfo:
    """Return the record of a sweep that is to be resumed; raise InputError for a damaged file of its folder."""
    stage("reading what is done")
    info = load_stopped_info(folder)
    require_same(info, space, options, folder)
    _require_same_final_stage(info, space, folder)
    _require_measured_baselines(info, space, folder)
    return info


def load_stopped_info(folder: SweepFolder) -> SweepInfo:
    """Return the record of a sweep that no driver runs."""
    info = folder.info()
    if info.state == "running":  # its driver was killed
        info = replace(info, state="interrupted")
    return info


def require_same(info: SweepInfo, space: Space, options: Options, folder: SweepFolder) -> None:
    """Raise InputError if a setting or code that decides results has changed; budgets and machines may change."""
    if info.engine != ENGINE_NAME:
        problem = f"it was begun with engine {info.engine or 'unknown'}, and engine {ENGINE_NAME} gives other results"
        remedy = "install the version of fpp_sweep that began it, or begin another with --name"
        raise InputError(f"{folder.path.name} cannot be resumed: {problem}; {remedy}")
    plugins = options.plugin_digests()
    if info.plugins != plugins:
        changes = [f"plugins: {_plugins_text(info.plugins)} -> {_plugins_text(plugins)}"]
    else:
        changes = space_of(info.space, str(folder.info_file)).difference(space)
    if changes:
        changed = "; ".join(changes[:MAX_SHOWN])
        if len(changes) > MAX_SHOWN:
            changed += f"; and {len(changes) - MAX_SHOWN} more"
        raise InputError(
            f"{folder.path.name} cannot be resumed, its space has changed: {changed}; begin another with --name"
        )


def _require_same_final_stage(info: SweepInfo, space: Space, folder: SweepFolder) -> None:
    """Raise InputError if there are results of the seeds or images of finalists, and others are requested."""
    former = space_of(info.space, str(folder.info_file)).search.finalists
    requested = space.search.finalists
    if former.seeds != requested.seeds:
        splits = {FINAL, "test"} - {info.search_split}  # the seeds of both splits follow from this number
        _require_no_results(folder, splits, "search.finalists.seeds", former.seeds, requested.seeds)
    if former.images != requested.images:
        _require_no_results(folder, {FINAL}, "search.finalists.images", former.images, requested.images)


def _require_measured_baselines(info: SweepInfo, space: Space, folder: SweepFolder) -> None:
    """Raise InputError if a baseline with results of the search is taken out.

    Trials are still judged by it, and none could be recommended, as it would lack results of the later splits.
    """
    requested = space.baselines()
    for record in folder.trials():
        is_measured = record.kind == "baseline" and info.search_split in record.results and not record.is_imported
        if is_measured and record.label not in requested:
            problem = f"{record.label} is missing, but it has results, by which trials are judged"
            raise InputError(f"{problem}; list it again, or begin another sweep", "work.baselines")


def _require_no_results(
    folder: SweepFolder, splits: Collection[str], key: str, former: int | None, requested: int | None
) -> None:
    """Raise InputError if a trial has results on one of the splits, with the former value of a setting."""
    for record in folder.trials():
        if not record.results.keys().isdisjoint(splits):
            problem = f"{record.name} has run with {_in_words(former)}, and {_in_words(requested)} is requested"
            raise InputError(f"{problem}; resume with the former value, or begin another sweep", key)


def _in_words(value: int | None) -> str:
    if value is None:
        return "the default"
    return str(value)


def _plugins_text(digests: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {digest}" for name, digest in sorted(digests.items())) or "none"


def reopen_failed_trials(folder: SweepFolder) -> None:
    """Write that failed trials wait for another start.

    Call this before the study is built: the study then has no result of a waiting trial, and takes its next one.
    """
    for record in folder.trials():
        if record.can_run_again:
            folder.write_trial(replace(record, state="waiting", finished=None))


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The points and the budgets that a resume requests for the first time."""

    points: Sequence[dict[str, Any]]
    budget: Mapping[str, Any]  # by key of `search`

    def send(self, folder: SweepFolder) -> list[Command]:
        """Write the request as commands, as `steer` writes them, and return the commands."""
        commands = [folder.send_command("add", point) for point in self.points]
        if self.budget:
            commands.append(folder.send_command("budget", self.budget))
        return commands


def merge_resume_request(space: Space, info: SweepInfo, folder: SweepFolder) -> tuple[Space, ResumeRequest]:
    """Return the space of a resumed sweep, and what is requested now for the first time.

    The space is as it was at the start, with all requests since then.
    """
    initial = space_at_start(folder, info)
    points = _new_points(space, initial, folder)
    budget = budget_in_force(info, space.search, folder.commands())
    if budget.trials is not None:
        budget = replace(budget, trials=budget.trials + len(points))
    changes = _budget_changes(space, initial, folder, budget)
    merged = replace(space, points=initial.points, search=replace(budget, **changes))
    return merged, ResumeRequest(points, changes)


def announced_space(space: Space, options: Options, folder: SweepFolder) -> Space:
    """Return the space as a sweep begins with it; raise InputError if the sweep cannot begin or resume."""
    if not options.resume:
        return space
    info = folder.info()
    require_same(info, space, options, folder)
    merged, _ = merge_resume_request(space, info, folder)
    return merged


def _new_points(space: Space, initial: Space, folder: SweepFolder) -> list[dict[str, Any]]:
    """Return the points of the space that the sweep did not have before."""
    old_points = [values for _, values in initial.first_points()]
    for command in folder.commands():
        if command.kind == "add":
            old_points.append(dict(command.values))
    new_points = []
    for _, values in space.first_points():
        if values not in old_points:
            new_points.append(values)
    return new_points


def _budget_changes(space: Space, initial: Space, folder: SweepFolder, budget: Search) -> dict[str, Any]:
    """Return the budgets that are requested now for the first time.

    A budget that the space had at the start, or that an earlier command asked for, is not a new request: the same
    command line may have been used before.
    """
    commands = [command for command in folder.commands() if command.kind == "budget"]
    changes = {}
    for key in STEERED:
        requested = getattr(space.search, key)
        if requested in (getattr(initial.search, key), getattr(budget, key)):
            continue
        if any(key in command.values and command.values[key] == requested for command in commands):
            continue
        changes[key] = requested
    return changes


@contextmanager
def undo_if_refused(
    folder: SweepFolder, before: SweepInfo | None, sent: Sequence[Command] = ()
) -> Iterator[Callable[[], None]]:
    """If bad input ends a sweep before its first trial, remove a new folder, or restore a resumed sweep's record.

    The commands that the resume has sent are removed with it. The function that is yielded accepts the input: nothing
    is undone after its call.
    """
    is_accepted = False

    def accept() -> None:
        nonlocal is_accepted
        is_accepted = True

    try:
        yield accept
    except InputError:
        if is_accepted:
            raise
        if before is not None:
            folder.write_info(before)
            for command in sent:
                folder.remove_command(command)
        elif not folder.trial_files():
            _remove_new_folder(folder)
        raise


def _remove_new_folder(folder: SweepFolder) -> None:
    """Remove what the sweep has written; results of another sweep that the user has put there stay."""
    if not folder.tasks.exists():
        shutil.rmtree(folder.path, ignore_errors=True)
        return
    for path in (folder.info_file, folder.lock_file):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder.report, ignore_errors=True)
