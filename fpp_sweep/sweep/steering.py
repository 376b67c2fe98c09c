"""The requests of `steer`: they are checked, written as commands into the sweep's folder, and answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, Command, TrialRecord
from fpp_sweep.records.steering import budget_in_force
from fpp_sweep.space.params import check_point
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.space.yamlfile import parse as parse_yaml
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.validation import as_list, as_mapping, require
from fpp_sweep.sweep.resume_command import resume_command

SECONDS_PER_HOUR = 3600.0
FLAGS = {"search.trials": "--trials", "search.wall_clock": "--hours", "search.concurrency": "--concurrency"}


def add_point(sweep: Path, assignments: Sequence[str]) -> str:
    """Ask a sweep to try a point, and return what happens next."""
    folder = SweepFolder.open(sweep)
    return _what_happens_next(folder, folder.send_command("add", checked_point(folder, assignments)))


def stop_trial(sweep: Path, name: str) -> str:
    """Ask a sweep to stop a trial, and return what happens next."""
    folder = SweepFolder.open(sweep)
    record = folder.known_trial(name)
    if record.state in ENDED:
        raise InputError(f"{name} is {record.state}; only a trial that has not ended can be stopped")
    _require_no_reference(folder, record)
    return _what_happens_next(folder, folder.send_command("stop", {"trial": record.name}))


def _require_no_reference(folder: SweepFolder, record: TrialRecord) -> None:
    """Raise InputError if a constraint is relative to the baseline: without it no trial can be compared."""
    for constraint in as_list(folder.info().space.get("constraints", [])):
        if record.kind == "baseline" and as_mapping(constraint).get("baseline") == record.label:
            raise InputError(
                f"{record.name}: a constraint of the space needs this baseline; let it end, or interrupt the sweep"
            )


def change_budget(sweep: Path, *, trials: str | None, hours: str | None, concurrency: str | None) -> str:
    """Ask a sweep to keep to new limits, and return what happens next."""
    folder = SweepFolder.open(sweep)
    limits = checked_budget(folder, trials=trials, hours=hours, concurrency=concurrency)
    return _what_happens_next(folder, folder.send_command("budget", limits))


def checked_point(folder: SweepFolder, assignments: Sequence[str]) -> Mapping[str, Any]:
    """Return the values of a point to be added, as the space takes them."""
    space = _require_search(folder)
    values = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"{assignment!r}: expected key=value, such as {space.searched()[0].key}=...")
        if key in values:
            raise InputError("comes twice; take one out", key)
        values[key] = parse_yaml(value, assignment).value
    return check_point(values, space.searched(), space.start())


def checked_budget(
    folder: SweepFolder, *, trials: str | None, hours: str | None, concurrency: str | None
) -> Mapping[str, Any]:
    """Return the new limits by key of `search`; raise InputError if one is below what has been spent."""
    values = {}
    if trials:
        values["trials"] = _parse_limit(trials, "--trials")
    if hours:
        values["wall_clock"] = _parse_limit(hours, "--hours")
    if concurrency:
        values["concurrency"] = _parse_limit(concurrency, "--concurrency")
    if not values:
        raise InputError("budget: nothing to change; give --trials, --hours or --concurrency")
    space = _require_search(folder)
    with _flags_in_errors():
        checked = Search(**values)
        limits = {key: getattr(checked, key) for key in values}
        require_above_spent(folder, limits, folder.info().spent)
    _require_an_end(folder, space, limits)
    return limits


@contextmanager
def _flags_in_errors() -> Iterator[None]:
    """Name the flag of `steer` in errors about the key that it sets."""
    try:
        yield
    except InputError as error:
        if error.key not in FLAGS:
            raise
        raise InputError(error.problem, FLAGS[error.key]) from error


def _parse_limit(text: str, flag: str) -> Any:
    """Return a limit as a space file has it: `none` is no limit, a bare number of hours becomes seconds."""
    value = parse_yaml(text, flag).value
    if value == "none":
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if flag == "--hours" and is_number:
        require(value > 0, f"must be > 0 ({value})", flag)  # in hours, as it was typed
        return SECONDS_PER_HOUR * value
    return value


def _require_an_end(folder: SweepFolder, space: Space, limits: Mapping[str, Any]) -> None:
    """Raise InputError if the search, with the new limits, would never end."""
    in_force = budget_in_force(folder.info(), space.search, folder.commands())
    search = replace(in_force, **limits)
    if search.trials is None and search.wall_clock is None and search.gpu_hours is None:
        raise InputError("budget: without trials, hours and GPU-hours the search has no end; give one of them")


def require_above_spent(folder: SweepFolder, limits: Mapping[str, Any], spent: float) -> None:
    """Raise InputError if new limits, by key of `search`, are below the trials or the seconds that are spent."""
    begun = [record for record in folder.trials() if record.kind == "trial" and record.state != "waiting"]
    trials = limits.get("trials")
    if trials is not None and trials < len(begun):
        raise InputError(f"{len(begun)} have begun already ({trials}); give no fewer", "search.trials")
    seconds = limits.get("wall_clock")
    if seconds is not None and seconds < spent:
        hours, hours_spent = seconds / SECONDS_PER_HOUR, spent / SECONDS_PER_HOUR
        raise InputError(f"{hours_spent:.3g} hours are spent already ({hours:.3g}); give more", "search.wall_clock")


def _require_search(folder: SweepFolder) -> Space:
    """Return the sweep's space; raise InputError for an evaluation, whose trials were listed beforehand."""
    space = space_of(folder.info().space, str(folder.info_file))
    if space.search.evaluate_only:
        problem = "was run by `evaluate`, which takes no further points and no budget"
        raise InputError(f"{folder.path.name}: {problem}; call evaluate again with other values")
    return space


def _what_happens_next(folder: SweepFolder, command: Command) -> str:
    """Return the command in words, and when it is applied: soon, or after the sweep is resumed."""
    info = folder.info()
    text = command.text.removesuffix(": waits for a driver")
    if info.state == "running":
        return f"{text}: the running sweep applies it within seconds; if it was killed, it is applied on --resume"
    return f"{text}: {folder.path.name} is {info.state}; to have it applied: {resume_command(folder, info)}"
