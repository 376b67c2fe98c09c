"""The front of a sweep with its baselines, and values and constraints of records on splits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from fpp_sweep.records import pareto
from fpp_sweep.records.records import FINAL, SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import FLOOR, Constraint, Objective, goals_of, metrics_of
from fpp_sweep.space.work import BASELINES
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.config import draws_order
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.validation import as_list, as_mapping, require

OUTSIDE = "outside the space"  # remark on a trial of an earlier question


@dataclass(frozen=True)
class Front:
    """The finished trials of a sweep, its Pareto front and the baselines."""

    info: SweepInfo
    trials: tuple[TrialRecord, ...]  # trials that keep all constraints, in the order in which they finished
    infeasible: tuple[TrialRecord, ...]  # finished, but a constraint is broken
    baselines: tuple[TrialRecord, ...]  # finished ones

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.info.objectives

    @property
    def evaluate_only(self) -> bool:
        """True if tables list every trial, as none was to be chosen."""
        return self.info.evaluate_only

    @property
    def goals(self) -> list[Goal]:
        return goals_of(self.objectives)

    @property
    def finished(self) -> list[TrialRecord]:
        return [*self.trials, *self.infeasible]

    @property
    def compared(self) -> list[TrialRecord]:
        """The rows of every table: front members, finalists beside the front, then the baselines."""
        return [*self.chosen, *self.baselines]

    @cached_property
    def chosen(self) -> tuple[TrialRecord, ...]:
        """Front members, then finalists that are not on the front; every trial if none was to be chosen."""
        if self.evaluate_only:
            return (*self.members, *self.dominated, *self.infeasible)
        finalists = [trial for trial in self.dominated if FINAL in trial.results]
        return (*self.members, *finalists)

    @cached_property
    def members(self) -> tuple[TrialRecord, ...]:
        """The trials that no other dominates, the best in the first objective first."""
        sign = catalogue.sign(self.goals[0])
        members = undominated(self.trials, self.goals)
        return tuple(sorted(members, key=lambda record: -sign * values_of(record)[0]))

    @property
    def why_empty(self) -> str:
        """The reason for which no trial is on the front, as a clause."""
        if self.infeasible and all(self.is_below_floor(trial) for trial in self.infeasible):
            return f"all finished trials are more than {self.info.floor:g} points below {catalogue.ZERO_SHOT}"
        if self.infeasible:
            return "no trial keeps all constraints"
        return "no trial is complete"

    @cached_property
    def dominated(self) -> tuple[TrialRecord, ...]:
        names_of_members = {member.name for member in self.members}
        return tuple(trial for trial in self.trials if trial.name not in names_of_members)

    @cached_property
    def hypervolume(self) -> list[tuple[float, float]]:
        """(time, hypervolume) after each trial that finished; empty without a reference."""
        if self.info.reference is None:
            return []
        volumes = pareto.hypervolume_over_time(_points(self.trials), self.goals, self.info.reference)
        times = [record.finished or 0.0 for record in self.trials]
        return list(zip(times, volumes, strict=True))

    def nearest(self, most: int) -> list[TrialRecord]:
        """Return the chosen trials, then the front of the remaining ones, and so on, until there are `most` trials.

        All chosen trials are returned, as tables show them, however many trials that break a constraint are better.
        """
        nearest = list(self.chosen)
        names_of_chosen = {record.name for record in nearest}
        others = [record for record in self.finished if record.name not in names_of_chosen]
        for layer in self.layers(others):
            if len(nearest) >= most:
                break
            nearest += layer
        return nearest

    def layers(self, records: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
        """Return the front of records, then the front of all others, and so on."""
        layers = pareto.layers(_points(records), self.goals)
        return [[records[index] for index in indices] for indices in layers]

    def is_below_floor(self, record: TrialRecord) -> bool:
        """Return True for a trial that is more than `search.floor` points less accurate than zero-shot."""
        return FLOOR in record.broken

    def keeps_constraints(self, record: TrialRecord, split: str) -> bool:
        """Return True unless a record's results on a split break a constraint or the floor of accuracy.

        The search judges its own split when a trial ends (`TrialRecord.constraints`). A trial that keeps a constraint
        there by luck may break it on the images of the final stage or of the test split.
        """
        constraints = [Constraint(**as_mapping(fields)) for fields in as_list(self.info.space.get("constraints", []))]
        constraints.append(
            Constraint(name=FLOOR, metric=catalogue.ACCURACY, at_least=-self.info.floor, baseline=catalogue.ZERO_SHOT)
        )
        return not any(self._is_broken(constraint, record, split) for constraint in constraints)

    def _is_broken(self, constraint: Constraint, record: TrialRecord, split: str) -> bool:
        """Return True if a constraint is broken. One whose numbers are missing on the split is not broken.

        A cost is that of the search: later stages have other numbers of seeds and images, which change the costs.
        """
        searched = record.results.get(self.info.search_split)
        if searched is not None and searched.cost(constraint.metric) is not None:
            split = self.info.search_split
        value = metric_of(record.results.get(split), constraint.metric)
        if value is None:
            return False
        baseline_value = None
        if constraint.baseline is not None:
            for baseline in self.baselines:
                if baseline.label == constraint.baseline:
                    baseline_value = metric_of(baseline.results.get(split), constraint.metric)
            if baseline_value is None:
                return False
        return constraint.violation(value, baseline_value) > 0

    @cached_property
    def own_baselines(self) -> list[TrialRecord]:
        """The baselines that the sweep itself ran."""
        return [baseline for baseline in self.baselines if not baseline.is_imported]

    @cached_property
    def corner(self) -> list[float]:
        """The point that the knee is measured from: in each objective the worst baseline or the median trial.

        The worse of the two counts. With the worst baseline alone, trials of which none is better than it in one
        objective would be ordered by that objective alone. Imported baselines do not count: an import leaves the order
        of the sweep's own trials as it is.
        """
        columns = zip(*_points(self.trials), strict=True)
        median_trial = [statistics.median(column) for column in columns]
        if not self.own_baselines or not self.trials:
            return median_trial
        return pareto.worst([median_trial, *_points(self.own_baselines)], self.goals)

    def by_trade_off(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return records by their trade-off of the objectives, the knee first."""
        order = pareto.knee_order(_points(records), self.goals, self.corner)
        return [records[index] for index in order]

    @cached_property
    def marks(self) -> dict[str, list[str]]:
        """The marks of each front member: `knee`, `best accuracy`, ...."""
        marks: dict[str, list[str]] = {member.name: [] for member in self.members}
        if not self.members:
            return marks
        for index, objective in enumerate(self.objectives):
            sign = catalogue.sign(objective.goal)
            winner = max(self.members, key=lambda member: sign * values_of(member)[index])
            marks[winner.name].append(f"best {objective.metric}")
        marks[self.by_trade_off(self.members)[0].name].append("knee")
        return marks

    def trial_with(self, mark: str) -> str | None:
        """Return the name of the member with a mark; None if no member has it."""
        for name, marks in self.marks.items():
            if mark in marks:
                return name
        return None

    def coordinates(self, records: Sequence[TrialRecord], pair: tuple[int, int]) -> tuple[list[float], list[float]]:
        """Return the coordinates of records in a plot: two objectives, or one over the order of finished trials."""
        x_index, y_index = pair
        xs: list[float] = []
        ys: list[float] = []
        for record in records:
            values = values_of(record)
            ys.append(values[y_index])
            if x_index != y_index:
                xs.append(values[x_index])
            else:
                xs.append(self.positions.get(record.name, 0))  # baselines are drawn at 0
        return xs, ys

    @cached_property
    def positions(self) -> dict[str, int]:
        """The number of each finished trial in the order in which they finished, from 1."""
        in_order = sorted(self.finished, key=lambda trial: trial.finished or 0.0)
        return {trial.name: position for position, trial in enumerate(in_order, 1)}

    def remarks(self, record: TrialRecord) -> list[str]:
        """Return a record's marks, and what else a table says beside its name."""
        remarks: list[str] = []
        if len(self.finished) > 1:  # a single trial has every mark
            remarks += self.marks.get(record.name, [])
            if self.evaluate_only and record in self.members:  # other tables list the front first, under its name
                remarks.append("on the front")
        if record.kind == "trial" and FINAL in record.results:
            remarks.append("finalist")
        if self.is_below_floor(record):
            remarks.append(f"more than {self.info.floor:g} points below {catalogue.ZERO_SHOT}")
        remarks += orders_remark(record, self.info.search_split)
        if set(record.broken) - {FLOOR}:
            remarks.append("breaks a constraint")
        if record.outside:
            remarks.append(OUTSIDE)
        return remarks


def orders_remark(record: TrialRecord, split: str) -> list[str]:
    """Return a remark on the orders of the stream that a result is the mean of; none if no order changes it.

    The plus-minus of a table is then the spread over orders.
    """
    row = catalogue.METHODS.get(str(record.config.get("method")))  # a plugin's method may not be loaded
    if row is None or not row.ordered or split not in record.results:
        return []
    orders = max(1, len(record.results[split].by_seed))
    if not draws_order(row.name, record.config.get("adapt.order")):
        orders = 1
    if orders == 1:
        return ["one order of the stream"]
    return [f"{orders} orders of the stream"]


def undominated(trials: Sequence[TrialRecord], goals: Sequence[Goal]) -> list[TrialRecord]:
    """Return the trials that no other dominates; of trials that repeat settings and values, the first."""
    members: dict[object, TrialRecord] = {}
    for index in pareto.front(_points(trials), goals):
        trial = trials[index]
        members.setdefault((trial.key, tuple(values_of(trial))), trial)
    return list(members.values())


def front_of(info: SweepInfo, records: Sequence[TrialRecord]) -> Front:
    """Return the front of the trials that finished and keep all constraints."""
    feasible = []
    infeasible = []
    baselines = []
    for record in sorted(records, key=lambda record: record.finished or 0.0):
        if record.state != "complete" or record.values is None or (record.kind == "baseline" and record.outside):
            continue
        require(
            len(record.values) == len(info.objectives),
            f"{record.name} has {len(record.values)} values of {len(info.objectives)} objectives",
            info.name,
        )
        if record.kind == "baseline":
            baselines.append(record)
        elif record.feasible:
            feasible.append(record)
        else:
            infeasible.append(record)
    in_order = sorted(baselines, key=lambda baseline: usual_order(baseline.label))
    return Front(info, tuple(feasible), tuple(infeasible), tuple(in_order))


def usual_order(label: str) -> tuple[int, str]:
    """Return a sort key of baselines by label: zero-shot comes first, other than the default baselines come last."""
    if label in BASELINES:
        return BASELINES.index(label), label
    return len(BASELINES), label


def values_of(record: TrialRecord) -> Sequence[float]:
    assert record.values is not None, record.name  # only finished trials and baselines are asked
    return record.values


def _points(records: Sequence[TrialRecord]) -> list[Sequence[float]]:
    return [values_of(record) for record in records]


def metrics_shown(info: SweepInfo) -> list[str]:
    """Return the metrics of the objectives, then accuracy and ECE, which every reader asks for.

    ECE is shown after each post-hoc map of the sweep, too.
    """
    names = [*metrics_of(info.objectives), catalogue.ACCURACY, catalogue.ECE]
    for posthoc in info.work_settings.get("posthoc", ()):
        if posthoc in catalogue.POSTHOC:
            names.append(f"{catalogue.ECE}@{posthoc}")
    return list(dict.fromkeys(names))


def splits_of(info: SweepInfo, records: Sequence[TrialRecord]) -> list[str]:
    """Return the split that was searched, then the other splits on which any record has a result."""
    splits: set[str] = set()
    for record in records:
        splits.update(record.results)
    return [info.search_split, *sorted(splits - {info.search_split})]


def metric_of(result: SplitResult | None, metric: str) -> float | None:
    """Return the average of a metric, the value on one dataset, as in `ece/dtd`, or a cost, as `seconds`."""
    if result is None:
        return None
    cost = result.cost(metric)
    if cost is not None:
        return cost
    parts = catalogue.parts_of(metric)
    if parts.dataset:
        return result.datasets.get(parts.dataset, {}).get(parts.of_average)
    return result.average.get(parts.of_average)


def measured_value(result: SplitResult, metric: str) -> float:
    """Return a metric as `metric_of` does; raise InputError without one, FloatingPointError if it is not finite."""
    value = metric_of(result, metric)
    if value is None:
        raise InputError(f"objective {metric!r}: was not measured; the result has {', '.join(result.average)}")
    if not math.isfinite(value):
        raise FloatingPointError(f"{metric} is {value}")
    return value


def values_on(record: TrialRecord, split: str, metrics: Sequence[str]) -> list[float]:
    """Return a record's values on a split; NaN, which is no better and no worse than any value, if one is missing."""
    values = []
    for metric in metrics:
        value = metric_of(record.results.get(split), metric)
        values.append(math.nan if value is None else value)
    return values


def objective_pairs(info: SweepInfo) -> list[tuple[int, int]]:
    """Return the pairs of objectives to plot against each other; a single objective is paired with itself."""
    count = len(info.objectives)
    if count == 1:
        return [(0, 0)]
    return list(combinations(range(count), 2))


def staircase(front: Front) -> tuple[list[float], list[float]]:
    """Return the edge of the area that a front of two objectives dominates, from member to member."""
    xs: list[float] = []
    ys: list[float] = []
    for member in front.members:
        x, y = values_of(member)
        if xs:  # the corner is the worse of both values of two neighbours
            xs.append(x)
            ys.append(ys[-1])
        xs.append(x)
        ys.append(y)
    return xs, ys
