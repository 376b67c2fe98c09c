"""The front of a sweep with the baselines beside it, and how its values are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, TypeGuard

from fpp_sweep.records import pareto
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.rules import as_mapping
from fpp_sweep.space.work import BASELINES
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal

GROWTH = 0.01  # of the hypervolume, that a search is worth going on for


@dataclass(frozen=True)
class Front:
    """The finished trials of a sweep, those that no other beats, and the baselines beside them."""

    objectives: tuple[Objective, ...]
    trials: tuple[TrialRecord, ...]  # that keep all constraints, in the order in which they finished
    infeasible: tuple[TrialRecord, ...]  # finished, but break a constraint
    baselines: tuple[TrialRecord, ...]  # those that finished
    reference: tuple[float, ...] | None
    confirmed: frozenset[str] = frozenset()  # names of the front by a confirmation
    evaluate_only: bool = False  # whether tables list every trial, as none was to be chosen

    @property
    def goals(self) -> list[Goal]:
        return [objective.goal for objective in self.objectives]

    @property
    def finished(self) -> list[TrialRecord]:
        return [*self.trials, *self.infeasible]

    @property
    def compared(self) -> list[TrialRecord]:
        """The rows of every table: the members, whoever else is on the confirmed front, then the baselines."""
        return [*self.chosen, *self.baselines]

    @cached_property
    def chosen(self) -> tuple[TrialRecord, ...]:
        if self.evaluate_only:
            return (*self.members, *self.dominated, *self.infeasible)
        return (*self.members, *(trial for trial in self.dominated if trial.name in self.confirmed))

    @cached_property
    def members(self) -> tuple[TrialRecord, ...]:
        """In the order of the first objective, the best first."""
        indices = pareto.front(_points(self.trials), self.goals)
        sign = -1 if self.goals[0] == "max" else 1
        return tuple(sorted((self.trials[index] for index in indices), key=lambda record: sign * values_of(record)[0]))

    @cached_property
    def dominated(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial not in self.members)

    @cached_property
    def hypervolume(self) -> list[tuple[float, float]]:
        """(time, hypervolume) after each trial that finished; empty without a reference."""
        if self.reference is None:
            return []
        volumes = pareto.hypervolume_over_time(_points(self.trials), self.goals, self.reference)
        return list(zip((record.finished or 0.0 for record in self.trials), volumes, strict=True))

    def stagnant(self, patience: int) -> bool:
        """Whether the last so many finished trials, after as many, have hardly moved the front."""
        ended = sorted(record.finished or 0.0 for record in self.finished)
        if len(ended) < 2 * patience:
            return False
        before = [volume for time, volume in self.hypervolume if time <= ended[-patience - 1]]
        return bool(self.hypervolume) and self.hypervolume[-1][1] <= (1 + GROWTH) * (before or [0.0])[-1]

    @cached_property
    def marks(self) -> dict[str, list[str]]:
        """What stands out: a member's name -> `knee`, `best accuracy`, ..."""
        marks: dict[str, list[str]] = {member.name: [] for member in self.members}
        if self.members:
            for index, objective in enumerate(self.objectives):
                best = max if objective.goal == "max" else min
                winner = best(self.members, key=lambda member: values_of(member)[index])
                marks[winner.name].append(f"best {objective.metric}")
            marks[self.members[pareto.knee(_points(self.members), self.goals)].name].append("knee")
        return marks

    def coordinates(self, records: Sequence[TrialRecord], pair: tuple[int, int]) -> tuple[list[float], list[float]]:
        """Where records are drawn: two objectives, or one over the order in which trials finished, baselines at 0."""
        x, y = pair
        order = {trial.name: index for index, trial in enumerate(self.finished, 1)}
        xs = [order.get(record.name, 0) if x == y else values_of(record)[x] for record in records]
        return xs, [values_of(record)[y] for record in records]

    def remarks(self, record: TrialRecord) -> list[str]:
        """A record's marks, whether it is on the confirmed front, or breaks a constraint, as far as is known."""
        breaks = f"{'breaks' if record.state == 'complete' else 'expected to break'} a constraint"
        more = {"confirmed": record.name in self.confirmed, breaks: not record.feasible}
        return [*self.marks.get(record.name, []), *(remark for remark, holds in more.items() if holds)]


def front_of(info: SweepInfo, records: Sequence[TrialRecord]) -> Front:
    """The front of the trials that finished and keep all constraints."""

    def usual_order(baseline: TrialRecord) -> tuple[int, str]:
        return BASELINES.index(baseline.label) if baseline.label in BASELINES else len(BASELINES), baseline.label

    complete = [record for record in records if record.state == "complete" and record.values is not None]
    complete.sort(key=lambda record: record.finished or 0.0)
    trials = [record for record in complete if record.kind == "trial"]
    return Front(
        objectives=info.objectives,
        trials=tuple(record for record in trials if record.feasible),
        infeasible=tuple(record for record in trials if not record.feasible),
        baselines=tuple(sorted((record for record in complete if record.kind == "baseline"), key=usual_order)),
        reference=None if info.reference is None else tuple(info.reference),
        confirmed=frozenset(info.tags.get("confirmed_front", "").split(", ")),
        evaluate_only=bool(as_mapping(info.space.get("search", {})).get("evaluate_only")),
    )


def values_of(record: TrialRecord) -> Sequence[float]:
    assert record.values is not None, record.name  # only finished trials and baselines are asked
    return record.values


def _points(records: Sequence[TrialRecord]) -> list[Sequence[float]]:
    return [values_of(record) for record in records]


def metrics_shown(objectives: Sequence[Objective]) -> list[str]:
    """The metrics of the objectives, then accuracy and ECE, which every reader asks for."""
    return list(dict.fromkeys([*(objective.metric for objective in objectives), catalogue.ACCURACY, catalogue.ECE]))


def splits_of(info: SweepInfo, records: Sequence[TrialRecord]) -> list[str]:
    """The split that was searched, then the others on which any record has a result."""
    others = {split for record in records for split in record.results} - {info.search_split}
    return [info.search_split, *sorted(others)]


def metric_of(result: SplitResult | None, metric: str) -> float | None:
    """The average of a metric, or the value on one dataset, as in `ece/dtd`."""
    if result is None:
        return None
    name, _, dataset = metric.partition("/")
    return (result.datasets.get(dataset, {}) if dataset else result.average).get(name)


def format_metric(metric: str, value: float | None, deviation: float | None = None) -> str:
    """A metric's value with the decimals that the papers print, and its standard deviation.

    >>> format_metric("ece", 3.14159), format_metric("ece", 3.14159, 0.2), format_metric("nll", 0.5)
    ('3.14', '3.14±0.20', '0.5000')
    """
    if value is None:
        return ""
    row = catalogue.METRICS.get(metric.partition("/")[0])
    decimals = 2 if row is None else row.decimals  # a plugin's metric that is not loaded
    spread = "" if deviation is None else f"±{deviation:.{decimals}f}"
    return f"{value:.{decimals}f}{spread}"


def format_result(metric: str, result: SplitResult | None, *, deviation: bool = True) -> str:
    """The same of a trial's result on a split; empty where there is none."""
    spread = result.deviation.get(metric) if result and deviation else None
    return format_metric(metric, metric_of(result, metric), spread)


def format_values(objectives: Sequence[Objective], values: Sequence[float]) -> str:
    """The values of all objectives: `accuracy 71.00, ece 4.00`."""
    pairs = zip(objectives, values, strict=True)
    return ", ".join(f"{objective.metric} {format_metric(objective.metric, value)}" for objective, value in pairs)


def format_setting(value: Any, digits: int = 6) -> str:
    """A setting's value in a few letters, on one line.

    >>> format_setting(0.1 + 0.2), format_setting(True), format_setting(None), format_setting("a photo of a")
    ('0.3', 'true', 'none', 'a photo of a')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.{digits}g}" if isinstance(value, float) else " ".join(str(value).split())


def values_by_setting(records: Sequence[TrialRecord]) -> dict[str, list[Any]]:
    """The searched settings with the value in each record; None where a condition leaves the setting out."""
    keys = dict.fromkeys(key for record in records for key in record.params)
    return {key: [record.params.get(key) for record in records] for key in keys}


def varies(values: Sequence[Any]) -> bool:
    return len(set(map(format_setting, values))) > 1


def search_range(info: SweepInfo, key: str) -> Mapping[str, Any]:
    """What the space says of a setting: low, high, log, ...; nothing of one given as a list of choices."""
    params = info.space.get("params")
    setting = params.get(key) if isinstance(params, Mapping) else None
    return setting if isinstance(setting, Mapping) else {}


def format_range(given: Any) -> str:
    """What a space says of a setting.

    >>> format_range({"low": 1, "high": 5, "log": True}), format_range({"choices": ["a", True]})
    ('1 to 5, log', 'a, true')
    """
    if isinstance(given, Mapping) and "low" in given:
        return f"{given['low']} to {given['high']}" + ", log" * bool(given.get("log"))
    choices = given.get("choices", given) if isinstance(given, Mapping) else given
    return ", ".join(map(format_setting, choices)) if isinstance(choices, list | tuple) else format_setting(choices)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def objective_pairs(info: SweepInfo) -> list[tuple[int, int]]:
    """Which objectives to draw against each other; a single one stands alone."""
    count = len(info.objectives)
    return list(combinations(range(count), 2)) if count > 1 else [(0, 0)]


def staircase(front: Front) -> tuple[list[float], list[float]]:
    """The edge of what a front of two objectives dominates, member to member."""
    xs: list[float] = []
    ys: list[float] = []
    for x, y in map(values_of, front.members):
        if xs:  # the corner is the worse of both values of two neighbours
            xs.append(x)
            ys.append(ys[-1])
        xs.append(x)
        ys.append(y)
    return xs, ys
