"""The Optuna study of a sweep, which suggests the settings of the next trial.

The study lives in the driver's memory, and is built anew from the trial records whenever a driver starts or a space is
asked. A new trial is the first of the space's queue (points, published settings, a grid) that no trial has tried, or
sampled, with random streams named after the sweep's seed, its number and the parameter. So at one trial at a time a
sweep that was killed and resumed, between two parameters even, tries the same settings as an undisturbed one. Records
that the space does not hold keep their number in the study, without settings.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState, create_trial

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.search.samplers import build_sampler, naming_plugin
from fpp_sweep.space.objectives import Objective, goals_of, metrics_of
from fpp_sweep.space.params import Param
from fpp_sweep.space.space import QueuedPoint, Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole

DIRECTIONS = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}
STATES = {
    "complete": TrialState.COMPLETE,
    "failed": TrialState.FAIL,
    "stopped": TrialState.PRUNED,
    "collapsed": TrialState.PRUNED,
}


class Suggestion(NamedTuple):
    """The settings of the next trial."""

    number: int
    origin: str
    settings: dict[str, Any]


class SweepStudy:
    """The study of a sweep, with the trials on record and the suggestions since then."""

    def __init__(self, space: Space, records: Iterable[TrialRecord] = ()) -> None:
        self._space = space
        self._params = space.searched()
        by_number = {record.number or 0: record for record in records if record.kind == "trial"}
        self._pending = deque(_untried_points(space, by_number.values()))
        self._points: dict[int, QueuedPoint] = {}  # by number of the trials that begin or are asked again
        self._study = _new_study(space.objectives)
        self._suggested: dict[int, Trial] = {}
        self.n_outside = 0  # trials that the space does not hold
        for number in range(max(by_number, default=-1) + 1):
            self._study.add_trial(self._recorded_trial(number, by_number.get(number)))

    def _recorded_trial(self, number: int, record: TrialRecord | None) -> FrozenTrial:
        """Return a record as a trial of the study; a trial that has lost its record has no settings, to be asked again.

        Settings of such a trial that the queue has are fixed, as `enqueue_trial` fixes them.
        """
        if record is None:
            point = self._next_point(number)
            return create_trial(state=TrialState.RUNNING, system_attrs={"fixed_params": point.values})
        if record.outside:
            self.n_outside += 1
            return create_trial(state=TrialState.FAIL, user_attrs={"name": record.name})
        return trial_of_record(record, self._space)

    def _next_point(self, number: int) -> QueuedPoint:
        """Return the point that a trial tries, which has no values if all are sampled."""
        point = self._pending.popleft() if self._pending else QueuedPoint("sampled", {})
        self._points[number] = point
        return point

    def count(self) -> int:
        """Return the number of trials, which is also the number of the next trial."""
        return len(self.trials())

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def unfinished(self) -> list[int]:
        """Return the trials that have no result yet."""
        return [trial.number for trial in self.trials() if trial.state == TrialState.RUNNING]

    def ask(self) -> Suggestion:
        """Begin the next trial."""
        point = self._next_point(self.count())
        if point.values:
            self._study.enqueue_trial(point.values)
        return self._suggest(self._study.ask())

    def ask_again(self, number: int) -> Suggestion:
        """Return the settings of a trial that has lost its record."""
        return self._suggest(self._trial(number))

    def tell(self, record: TrialRecord) -> None:
        """Report a trial's result; a trial that has one already keeps it."""
        assert record.number is not None
        trial = self._suggested.pop(record.number, None)
        if trial is None:
            if record.number not in self.unfinished():
                return
            trial = self._trial(record.number)
        _set_attributes(trial, record)
        state, values = study_outcome(record)
        with naming_plugin(self._space.search.sampler):
            self._study.tell(record.number, values, state)

    def export(self, file: Path, name: str) -> None:
        """Write the study to a file, which replaces an older one, for `optuna-dashboard` and Optuna's plots."""
        with written_whole(file) as partial:
            exported = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(partial.absolute()))),
                study_name=name,
                directions=self._study.directions,
            )
            exported.set_metric_names(self._study.metric_names or [])
            exported.add_trials(self.trials())

    def _trial(self, number: int) -> Trial:
        """Return a trial that can take suggestions, which Optuna makes public for new trials only."""
        return Trial(self._study, self.trials()[number]._trial_id)

    def _suggest(self, trial: Trial) -> Suggestion:
        number = trial.number
        point = self._points[number]
        with naming_plugin(self._space.search.sampler):
            self._study.sampler = build_sampler(self._space.search, str(number))
            _ = trial.relative_params  # sampled now: with the stream of the trial, not that of its first parameter
            settings: dict[str, Any] = {}
            for param in self._params:
                if point.origin == "grid" and param.key not in point.values:
                    continue  # a point of a grid is complete; other points leave keys to the sampler
                if param.exists(settings):
                    settings[param.key] = self._suggest_value(trial, param)
        self._suggested[number] = trial
        return Suggestion(number, point.origin, settings)

    def _suggest_value(self, trial: Trial, param: Param) -> Any:
        search = self._space.search
        self._study.sampler = build_sampler(search, f"{trial.number}/{param.key}")
        with naming_plugin(search.sampler, param.key):
            value = suggest(trial, param)
        problem = param.problem(value)
        if problem is not None:
            raise InputError(f"sampler {search.sampler}: draws {param.key}: {problem}")
        return value


def _new_study(objectives: Sequence[Objective]) -> Study:
    optuna.logging.set_verbosity(logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    study = optuna.create_study(directions=[DIRECTIONS[goal] for goal in goals_of(objectives)])
    study.set_metric_names(metrics_of(objectives))
    return study


# ------------------------------------------------------------ from records to trials


def _untried_points(space: Space, records: Iterable[TrialRecord]) -> Iterator[QueuedPoint]:
    """Yield the points of a space that none of the records has tried."""
    tried = [record for record in records if not record.outside]
    tried_values = {json.dumps(record.params, sort_keys=True) for record in tried}
    searched = space.searched()
    for point in space.queue():
        if not point.is_partial(searched):
            if json.dumps(point.values, sort_keys=True) not in tried_values:
                yield point
        elif not any(record.origin == point.origin and record.has_values(point.values) for record in tried):
            yield point


def trial_of_record(record: TrialRecord, space: Space) -> FrozenTrial:
    """Return a record as a trial of the study; raise InputError if the space does not hold its settings."""
    state, values = study_outcome(record)
    try:
        trial = create_trial(
            state=state, values=values, params=dict(record.params), distributions=_distributions(space, record.params)
        )
    except (ValueError, TypeError) as error:
        raise InputError(error, "params") from error
    trial.datetime_start = datetime.fromtimestamp(record.started)
    if state.is_finished():
        trial.datetime_complete = datetime.fromtimestamp(record.finished or record.started)
        _set_attributes(trial, record)
    return trial


def _set_attributes(trial: Trial | FrozenTrial, record: TrialRecord) -> None:
    """Give a trial of the study its texts, for dashboards, and the values of its constraints."""
    texts = {"name": record.name, "state": record.state, "origin": record.origin, "key": record.key}
    if record.state != "complete":
        texts["reason"] = record.reason or ""
    for key, text in texts.items():
        trial.set_user_attr(key, text)
    for name, value in record.constraints.items():
        trial.set_constraint(name, value)


def study_outcome(record: TrialRecord) -> tuple[TrialState, Sequence[float] | None]:
    """Return a trial's state and values in the study."""
    values = None
    if record.state == "complete":
        values = list(record.values or ())
    return STATES.get(record.state, TrialState.RUNNING), values


def _distributions(space: Space, settings: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    trial = FixedTrial(dict(settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values out of range, which `create_trial` refuses
        for param in space.searched():
            if param.key in settings:
                suggest(trial, param)
    return trial.distributions


def suggest(trial: BaseTrial, param: Param) -> Any:
    """Return a parameter's value: the one that is fixed for the trial, or a sample of its distribution."""
    if param.kind == "choice":
        return trial.suggest_categorical(param.key, list(param.choices))
    low, high = param.bounds
    if param.kind == "integer":
        return trial.suggest_int(param.key, int(low), int(high), log=param.log)
    return trial.suggest_float(param.key, low, high, log=param.log)
