"""The Optuna study of a sweep: what is tried next, and the results. It survives a kill of the driver.

Trial n is the n-th of the space's queue (points, published settings, a grid) or sampled, with random streams named
after the sweep's seed, n and the parameter. So at one trial at a time a sweep that was killed and resumed, between two
parameters even, tries what the undisturbed one tries.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna import Study, Trial, samplers
from optuna.samplers import BaseSampler
from optuna.trial import BaseTrial, FrozenTrial, TrialState

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.records.steering import Queue
from fpp_sweep.space.params import Param
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search

STARTUP = 8  # sampled at random before TPE and GP have enough to go by: the two published points come first
ENDS = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL, "stopped": TrialState.PRUNED}
POPULATION = 16  # of NSGA-II: a sweep has tens to hundreds of trials, not thousands


class SweepStudy:
    """Asks and tells, by trial number; to be used by one process, which holds the sweep's lock."""

    def __init__(self, file: Path, name: str, space: Space, queue: Queue | None = None) -> None:
        optuna.logging.set_verbosity(logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._space = space
        self.queue = queue or Queue(space.queue())
        self._study: Study = optuna.create_study(
            storage=f"sqlite:///{file.resolve()}",
            study_name=name,
            directions=["maximize" if objective.goal == "max" else "minimize" for objective in space.objectives],
            load_if_exists=True,
        )
        self._study.set_metric_names([objective.metric for objective in space.objectives])
        self._params = space.searched()
        self._asked: dict[int, Trial] = {}

    def unfinished(self) -> list[int]:
        """Trials that were begun and have no result yet."""
        return [trial.number for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))]

    def begun(self) -> int:
        """How many trials there are; one that waits has not begun."""
        return sum(trial.state != TrialState.WAITING for trial in self._study.get_trials(deepcopy=False))

    def ask(self) -> tuple[int, str, dict[str, Any]]:
        """The next trial's number, where it comes from, and its values."""
        number = self.free()
        if number is not None and (point := self.queue.at(number)):
            self._study.enqueue_trial(point[1])
        return self._values(self._study.ask())

    def free(self) -> int | None:
        """The next trial's number, unless its point is in the study already."""
        number = self.begun()
        return number if number == len(self._study.get_trials(deepcopy=False)) else None

    def adopt(self, number: int) -> tuple[int, str, dict[str, Any]]:
        """A trial that an earlier driver began; what it had not yet drawn is drawn now."""
        return self._values(self._trial(number))

    def tell(self, record: TrialRecord) -> None:
        """Report a trial's result; one that failed, or that a driver stopped, has no values. Idempotent."""
        assert record.number is not None
        trial = self._asked.pop(record.number, None)
        if trial is None:
            if record.number not in self.unfinished():
                return
            trial = self._trial(record.number)
        for key, words in attributes(record).items():
            trial.set_user_attr(key, words)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a constraint that was set before the last driver was killed
            for name, value in record.constraints.items():
                trial.set_constraint(name, value)
        state, values = told(record)
        self._study.tell(record.number, None if values is None else list(values), state)

    def add(self, trials: Iterable[FrozenTrial]) -> None:
        """Trials of another study, or of records, in the order of their numbers."""
        self._study.add_trials(trials)

    def _trial(self, number: int) -> Trial:
        storage, study = self._study._storage, self._study
        return Trial(study, storage.get_trial_id_from_study_id_trial_number(study._study_id, number))

    def _values(self, trial: Trial) -> tuple[int, str, dict[str, Any]]:
        number = trial.number
        queued = self.queue.at(number)
        values: dict[str, Any] = {}
        self._study.sampler = build_sampler(self._space.search, str(number))
        _ = trial.relative_params  # drawn now, even if a point has them all: NSGA-II then counts it as a parent
        for param in self._params:
            # a block of a grid has its own keys; in a point the user may leave some to the sampler
            absent = queued is not None and queued[0] == "grid" and param.key not in queued[1]
            if not absent and param.exists(values):
                self._study.sampler = build_sampler(self._space.search, f"{number}/{param.key}")
                values[param.key] = draw(trial, param)
        self._asked[number] = trial
        return number, queued[0] if queued else "sampled", values


def name_of(number: int) -> str:
    return f"trial-{number:04d}"


def told(record: TrialRecord) -> tuple[TrialState, Sequence[float] | None]:
    """What the study hears of a trial: of one that lost a race an estimate, which stands if it is finished later."""
    if record.estimate is not None:
        return TrialState.COMPLETE, record.estimate
    return ENDS.get(record.state, TrialState.RUNNING), record.values if record.state == "complete" else None


def attributes(record: TrialRecord) -> dict[str, str]:
    """What the study keeps beside values and constraints."""
    attributes = {"name": record.name, "origin": record.origin, "key": record.key}
    if record.estimate is not None:
        attributes["fidelity"] = f"{record.fidelity:.4g}"  # the values are estimates
    return attributes if record.state == "complete" else attributes | {"reason": record.reason or ""}


def draw(trial: BaseTrial, param: Param) -> Any:
    """A parameter's value, from its distribution or the one that was enqueued for it."""
    if param.kind == "choice":
        return trial.suggest_categorical(param.key, list(param.choices))
    low, high = param.bounds
    if param.kind == "int":
        return trial.suggest_int(param.key, int(low), int(high), step=int(param.step or 1), log=param.log)
    return trial.suggest_float(param.key, low, high, step=param.step, log=param.log)


class NSGAIISampler(samplers.NSGAIISampler):  # of the same name, by which a study knows its generations
    """Parents always in the order in which the study keeps them, also for who is the first to ask for them."""

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        super().get_parent_population(study, generation)
        return super().get_parent_population(study, generation)


def build_sampler(search: Search, stream: str) -> BaseSampler:
    """The space's sampler, with a random stream of that name."""
    seed = int.from_bytes(hashlib.sha256(f"{search.seed}/{stream}".encode()).digest()[:4], "big")
    match search.sampler:
        case "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True, group=True)
        case "nsga2":
            return NSGAIISampler(seed=seed, population_size=POPULATION)
        case "gp":
            return samplers.GPSampler(seed=seed, n_startup_trials=STARTUP)
        case "random" | "grid":
            return samplers.RandomSampler(seed=seed)
