"""Repair the records of a sweep before it is resumed.

A record that cannot be used is set aside. The settings of a trial without a record are read from the Optuna study that
the last driver left, and the trial is run again with them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from fpp_sweep.records.folder import REMEDY, SweepFolder
from fpp_sweep.records.records import Command, SweepInfo, TrialRecord, baseline_name, trial_name, waiting_record
from fpp_sweep.records.requested import require_config
from fpp_sweep.records.steering import Queue
from fpp_sweep.search.samplers import GENERATION_KEY
from fpp_sweep.search.study import NAME_ATTRIBUTE, trial_of_record
from fpp_sweep.search.study_file import load_study
from fpp_sweep.space.params import check_point
from fpp_sweep.space.published import baseline_configs, preset_for
from fpp_sweep.space.space import Space
from fpp_sweep.space.validation import at_key, require, shown
from fpp_sweep.spec.config import TrialConfig, settings
from fpp_sweep.spec.errors import InputError, is_of_system
from fpp_sweep.spec.files import set_aside

MAX_LOST = 10_000  # records that a sweep may have lost; a study is built with a trial for each number


def repair_records(folder: SweepFolder, info: SweepInfo, space: Space) -> Iterator[str]:
    """Set damaged records and commands aside, and restore lost records; yield a note for each."""
    files = folder.trial_files()
    for file in files:
        try:
            _check_record(folder.trial(file.stem), info, space, len(files) + MAX_LOST)
        except InputError as error:
            yield _set_aside(file, error)
    for file in folder.command_files():
        try:
            _check_command(folder.command(file), space)
        except InputError as error:
            yield f"{_set_aside(file, error)}, and not applied"
    yield from _set_aside_study(folder.study_file)
    yield from _restore_lost_records(folder, info, space)


def _check_record(record: TrialRecord, info: SweepInfo, space: Space, max_number: int) -> None:
    """Raise InputError if this sweep cannot have written the record."""
    _check_name(record, max_number)
    if record.is_imported:
        _check_import(record)
    else:
        _check_config(record, space)
    if record.state == "complete":
        is_measured = info.search_split in record.results and len(record.values or ()) == len(info.objectives)
        require(is_measured, "complete, and without its results or values")
    if record.estimate is not None:
        require(len(record.estimate) == len(info.objectives), "is not of the sweep's objectives", "estimate")
    trial_of_record(record, space)


def _check_name(record: TrialRecord, max_number: int) -> None:
    """Raise InputError unless a record's name, kind and number go together."""
    if record.kind == "baseline":
        problem = f"has kind baseline, and a baseline is named baseline-... and has no number ({record.number})"
        require(record.name == baseline_name(record.label) and record.number is None, problem, "name")
        return
    number = record.number
    if number is None or record.name != trial_name(number):
        raise InputError("is not its number's", "number")
    require(0 <= number <= max_number, f"is far above the number of records ({number})", "number")


def _check_import(record: TrialRecord) -> None:
    """Raise InputError if `import` cannot have written the record, which is never run."""
    is_import = record.kind == "baseline" and record.state == "complete" and settings().keys().isdisjoint(record.config)
    require(is_import, f"is {record.origin}, but an import is a complete baseline without settings", "origin")


def _check_config(record: TrialRecord, space: Space) -> None:
    """Raise InputError unless a record has the config that the space gives it.

    A trial whose settings exclude each other has failed, so that it is never run.
    """
    try:
        config = _config_of_space(record, space)
    except InputError:
        if record.state == "failed" and record.config == space.settings_of(record.params):
            return
        raise
    require_config(record, config)


def _config_of_space(record: TrialRecord, space: Space) -> TrialConfig:
    """Return the config that the space gives a trial or baseline, which an earlier command line may have named."""
    if record.kind == "trial":
        with at_key("params"):
            return space.resolve(record.params)
    preset = preset_for(space.preset, space.work.model)
    try:
        return baseline_configs([record.label], space.start(), preset)[record.label]
    except KeyError:
        raise InputError(f"is not that of a baseline of this package ({record.name})", "name") from None


def _check_command(command: Command, space: Space) -> None:
    """Raise InputError for a point that the space does not hold: no trial can have its settings."""
    if command.kind == "add":
        with at_key("values"):
            point = check_point(command.values, space.searched(), space.start())
            for key, value in command.values.items():
                require(point[key] == value, f"is not a {settings()[key].kind} ({shown(value)})", key)


def _set_aside(file: Path, error: InputError) -> str:
    """Keep a damaged file under another name, and return what is wrong with it.

    Raise the error itself if the file system gave it: the file may be sound then.
    """
    if is_of_system(error):
        raise error
    problem = str(error).removesuffix(REMEDY).removeprefix(f"{file}: ")
    return f"{file}: {problem}; kept as {set_aside(file)}"


# ------------------------------------------------------------ lost records


def _set_aside_study(file: Path) -> Iterator[str]:
    """Set aside a folder or pipe with the name of the study's file, with a note; the driver builds the study anew."""
    if os.path.lexists(file) and not file.is_file():
        yield f"{file}: not a regular file; kept as {set_aside(file)}"


def _restore_lost_records(folder: SweepFolder, info: SweepInfo, space: Space) -> Iterator[str]:
    """Write a record for each trial that the study has and the folder lacks; yield a note for each lost record."""
    names = [file.stem for file in folder.trial_files()]
    stored_trials = _trials_of_study(folder.study_file, info.name)
    queue = Queue.of(folder, info)
    max_number = len(names) + MAX_LOST
    last_recorded = min(_last_number(names), max_number)
    last_stored = min(_last_number(stored_trials), max_number)
    for number in range(max(last_recorded, last_stored) + 1):
        name = trial_name(number)
        if name in names:
            continue
        record = None
        if name in stored_trials:
            record = _record_of_trial(stored_trials[name], number, space, queue)
        if record is not None:
            folder.write_trial(record)
            yield f"{name} has no usable record; it is run again, with the study's values"
        elif number < last_recorded:
            yield f"{name} has no usable record; it is run again, with values drawn anew, as the study lacks it, too"
    if names or stored_trials:
        for name in space.work.baselines:
            had_record = name in info.requested_baselines  # else this resume adds the baseline
            if had_record and baseline_name(name) not in names:
                yield f"{baseline_name(name)} has no usable record; it is run again"


def _last_number(names: Iterable[str]) -> int:
    """Return the number of the last trial; -1 if there is none. Baselines have no numbers."""
    numbers = [-1]
    for name in names:
        if re.fullmatch(r"trial-\d+", name):
            numbers.append(int(name.removeprefix("trial-")))
    return max(numbers)


def _trials_of_study(file: Path, name: str) -> dict[str, FrozenTrial]:
    """Return the trials of the study that the last driver left, by name; none if the file cannot be read.

    The numbers in the file are not used: if it has lost a line, trials after it may have the numbers of others.
    """
    if not file.is_file():
        return {}
    try:
        trials = load_study(file, name).get_trials(deepcopy=False)
    except Exception:  # a damaged file raises errors of many types
        return {}
    by_name = {}
    for trial in trials:
        by_name[str(trial.user_attrs.get(NAME_ATTRIBUTE))] = trial
    return by_name


def _record_of_trial(trial: FrozenTrial, number: int, space: Space, queue: Queue) -> TrialRecord | None:
    """Return a trial of the study as a record that waits for its start; None unless all its settings are there."""
    settings: dict[str, Any] = {}
    for param in space.searched():
        if param.exists(settings):
            if param.key not in trial.params:
                return None
            settings[param.key] = trial.params[param.key]
    point = queue.at(number)
    origin = "sampled"
    if point is not None:
        origin = point.origin
    try:
        record = waiting_record(
            trial_name(number),
            "trial",
            space.resolve(settings),
            number=number,
            origin=origin,
            params=settings,
            generation=trial.system_attrs.get(GENERATION_KEY),
        )
        trial_of_record(record, space)
    except InputError:
        return None
    return record
