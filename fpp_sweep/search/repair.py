"""What is done about damaged and deleted files before a sweep goes on: records and study are copies of each other.

A record that cannot be used is set aside, and a trial without one is run again, under its number and with the values
that the study has. A study that cannot be used, or says something else than the records, is set aside and made again.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial

from fpp_sweep.records.folder import REMEDY, SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.steering import Queue
from fpp_sweep.search.study import SweepStudy, attributes, draw, name_of, told
from fpp_sweep.space.rules import expect
from fpp_sweep.space.space import Space
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import set_aside, written_whole

DIFFERS = "says something else than the records"
NARROWER = "has narrower ranges than are searched now"
IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def mend(folder: SweepFolder, info: SweepInfo, space: Space) -> Iterator[str]:
    """Make records and study whole, and agree; a line for whatever was wrong, with what has become of it."""
    records: dict[str, FrozenTrial] = {}
    for file in folder.trial_files():
        try:
            record = folder.trial(file.stem)
            records[record.name] = _trial_of(record, info, space)
        except InputError as error:
            yield _aside(file, error)
    yield from _commands(folder)
    known, problem = _read(folder.study_file, info.name, space)
    queue = Queue.of(folder, info)
    trials = _agreed(records, known, queue)
    for number, trial in enumerate(trials):
        if name_of(number) not in records and trial not in known[number : number + 1]:
            values = "the study's values" if number < len(known) else "values drawn anew, as the study lacks it, too"
            yield f"{name_of(number)} has no usable record; it is run again, with {values}"
    for name in info.space["work"]["baselines"] if trials else ():
        if f"baseline-{name}" not in records:
            yield f"baseline-{name} has no usable record; it is run again"
    wide = [_widened(trial, space) for trial in trials]
    if wide != known or (problem and folder.study_file.exists()):
        problem = problem or (DIFFERS if trials != known else NARROWER)
        yield _made_again(folder.study_file, info.name, space, wide, problem)


def _commands(folder: SweepFolder) -> Iterator[str]:
    for file in folder.command_files():
        try:
            folder.command(file)
        except InputError as error:
            yield f"{_aside(file, error)}, and not applied"


def _aside(file: Path, error: InputError) -> str:
    """What was wrong with a file, and where it is kept; the error itself where nobody knows that it is damaged."""
    if isinstance(error.__cause__, OSError):
        raise error
    problem = str(error).removesuffix(REMEDY).removeprefix(f"{file}: ")
    return f"{file}: {problem}; kept as {set_aside(file)}"


def _trial_of(record: TrialRecord, info: SweepInfo, space: Space) -> FrozenTrial:
    """A record as the study has it; InputError if this sweep cannot have made it."""
    TrialConfig().replace(record.config)
    complete = record.state == "complete"
    if complete:
        measured = info.search_split in record.results and len(record.values or ()) == len(info.objectives)
        expect(measured, "complete, and without its results or values")
    expect(record.kind == "baseline" or record.name == name_of(record.number or 0), "is not its number's", "number")
    state, values = told(record)
    expect(values is None or len(values) == len(info.objectives), "is not of the sweep's objectives", "estimate")
    try:
        return create_trial(
            state=state,
            values=values,
            params=dict(record.params),
            distributions=_distributions(space, record.params),
            user_attrs=attributes(record) if state.is_finished() else {},
            constraints=None if values is None else dict(record.constraints),
        )
    except (ValueError, TypeError) as error:
        raise InputError(error, "params") from error


def _distributions(space: Space, params: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values outside: whoever makes a trial of them refuses them
        fixed = FixedTrial(dict(params))
        for param in space.searched():
            if param.key in params:
                draw(fixed, param)
    return fixed.distributions


def _read(file: Path, name: str, space: Space) -> tuple[list[FrozenTrial], str]:
    """The trials of a study; none, and why, where it cannot be used."""
    try:
        expect(file.is_file(), "is not there")
        with closing(sqlite3.connect(file)) as database:
            verdict = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
            expect(verdict == "ok", verdict)
            names = [row[0] for row in database.execute("SELECT study_name FROM studies")]
        expect(names in ([], [name]), f"is of another sweep, {', '.join(map(str, names))}")
        if not names:
            return [], ""
        study = optuna.load_study(study_name=name, storage=f"sqlite:///{file.resolve()}")
        goals = list(zip([way.name[:3].lower() for way in study.directions], study.metric_names or (), strict=True))
        same = goals == [(objective.goal, objective.metric) for objective in space.objectives]
        expect(same, f"is of other objectives: {goals}")
        trials = study.get_trials(deepcopy=False)
        for number, trial in enumerate(trials):
            ranges = _distributions(space, trial.params)
            same = all(_holds(ranges.get(key), narrow) for key, narrow in trial.distributions.items())
            expect(trial.number == number and same, f"has another trial {number} than the space can have")
        return trials, ""
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in IN_USE:
            raise InputError(f"{file}: {error}; end what else uses it") from error
        return [], str(error)
    except Exception as error:  # SQLite, SQLAlchemy and Optuna have many words for a damaged file
        return [], " ".join(str(error).split())[:200]


def _holds(now: BaseDistribution | None, before: BaseDistribution) -> bool:
    """Whether it is the same, or a range that has been widened since."""
    if now == before or isinstance(now, CategoricalDistribution) or type(now) is not type(before):
        return now == before
    old, new = vars(before), vars(now)
    same = all(old[key] == new[key] for key in ("log", "step"))
    return same and new["low"] <= old["low"] and old["high"] <= new["high"]


def _widened(trial: FrozenTrial, space: Space) -> FrozenTrial:
    """The trial with the ranges of now, so that samplers see one space."""
    ranges = _distributions(space, trial.params)
    if trial.distributions == ranges:
        return trial
    wider = copy(trial)
    wider.distributions = ranges
    return wider


def _agreed(records: Mapping[str, FrozenTrial], known: Sequence[FrozenTrial], queue: Queue) -> list[FrozenTrial]:
    """The study's trials, but as the records have them; one without a record is to be run again."""
    last = max([len(known) - 1, *(int(name.removeprefix("trial-")) for name in records if name.startswith("trial-"))])
    agreed = []
    for number in range(last + 1):
        record, trial = records.get(name_of(number)), known[number] if number < len(known) else None
        if record is not None:
            agreed.append(trial if trial is not None and _agree(record, trial) else record)
        elif trial is not None and not trial.state.is_finished():
            agreed.append(trial)
        else:  # as it was drawn; else with what the queue has of it, and the rest from the sampler
            point = queue.at(number)
            queued: Any = {"system_attrs": {"fixed_params": point[1]} if point else {}}
            names = ("params", "distributions", "system_attrs")
            drawn = {name: getattr(trial, name) for name in names} if trial else queued
            agreed.append(create_trial(state=TrialState.RUNNING, **drawn))
    return agreed


def _agree(record: FrozenTrial, trial: FrozenTrial) -> bool:
    """Whether the study knows what is on record, or will be told."""
    told = record.state == trial.state and record.values == trial.values
    return record.params == trial.params and (told or trial.state == TrialState.RUNNING)


def _made_again(file: Path, name: str, space: Space, trials: Sequence[FrozenTrial], problem: str) -> str:
    with written_whole(file) as partial:
        SweepStudy(partial, name, space).add(trials)
        journal = file.with_name(f"{file.name}-journal")  # left beside the new study, SQLite would play it into that
        kept = [set_aside(old) for old in (journal, file) if old.exists()][-1:]
    keeping = f"kept as {kept[0]}, and " if kept else ""
    lost = "; what the sampler itself remembered is lost" if problem not in (DIFFERS, NARROWER) else ""
    return f"{file}: {problem}; {keeping}made again from the records, with {len(trials)} trials{lost}"
