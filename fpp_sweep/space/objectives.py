"""Objectives to optimize and constraints to keep."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_args

from pydantic import BeforeValidator, WithJsonSchema

from fpp_sweep.space.work import Baseline, MetricName
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.rounding import is_rounding_error
from fpp_sweep.spec.validation import COMPUTED_DEFAULT, Number, check_fields, check_value, require, set_field, shown

MAX_OBJECTIVES = 3
MAX_NAME = 64  # characters
FLOOR = "floor"  # name of the constraint that `search.floor` stands for

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"

# ------------------------------------------------------------ types of fields


def _check_name(value: Any) -> Any:
    """Check a name that becomes part of a file name."""
    good = isinstance(value, str) and re.fullmatch(_NAME, value)
    wanted = "must be letters, digits, '.', '_' and '-', beginning with a letter or digit"
    require(good, f"{wanted} ({shown(value)})")
    return value


Name = Annotated[str, BeforeValidator(_check_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})]

# ------------------------------------------------------------ objectives and constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric to optimize."""

    metric: MetricName  # accuracy, ece, ...; ece/dtd for one dataset
    goal: Goal = COMPUTED_DEFAULT  # the metric's own
    reference: Number | None = None  # the hypervolume's corner; none: chosen by the sweep

    def __post_init__(self) -> None:
        check_fields(self)
        own_goal = catalogue.metric(self.metric).goal
        require(self.goal in (None, own_goal), f"the goal of {self.metric} is {own_goal} ({self.goal})", "goal")
        set_field(self, "goal", own_goal)

    @classmethod
    def recorded(cls, *, metric: str, goal: Goal, reference: float | None = None) -> Self:
        """Return an objective from a record: its metric may be a plugin's, which reading a sweep does not load."""
        require(isinstance(metric, str) and goal in get_args(Goal), "needs a metric and its goal, max or min")
        objective = cls.__new__(cls)
        set_field(objective, "metric", metric)
        set_field(objective, "goal", goal)
        set_field(objective, "reference", check_value(cls, "reference", reference))
        return objective


def default_objectives() -> tuple[Objective, ...]:
    """Return the first metric of each goal as objectives."""
    first: dict[Goal, str] = {}
    for row in catalogue.dataset_metrics():
        first.setdefault(row.goal, row.name)
    return tuple(Objective(metric=metric) for metric in first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A bound that a feasible trial keeps; with a baseline, it bounds the difference to the baseline's value."""

    name: Name = COMPUTED_DEFAULT  # such as accuracy_vs_zero_shot
    metric: MetricName
    at_least: Number | None = None
    at_most: Number | None = None
    baseline: Baseline | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        low, high = self.at_least, self.at_most
        require(low is not None or high is not None, "needs at_least or at_most")
        if low is not None and high is not None:
            require(low <= high, f"at_least must be <= at_most ({low:g} and {high:g})")
        if self.name is None:
            set_field(self, "name", self._default_name())

    @classmethod
    def recorded(cls, fields: Mapping[str, Any]) -> Self:
        """Return a constraint from a record: its metric may be a plugin's, which reading a sweep does not load."""
        constraint = cls.__new__(cls)
        for key in ("name", "metric", "baseline"):
            text = fields.get(key)
            require(text is None or isinstance(text, str), "must be text", key)
            set_field(constraint, key, text)
        require(constraint.metric, "must be given", "metric")
        for key in ("at_least", "at_most"):
            set_field(constraint, key, check_value(cls, key, fields.get(key)))
        return constraint

    def _default_name(self) -> str:
        name = self.metric
        if self.baseline:
            name = f"{self.metric}_vs_{self.baseline}"
        return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:MAX_NAME]

    def violation(self, value: float, baseline_value: float | None = None) -> float:
        """Return by how much the constraint is broken, in the metric's unit; it holds if that is <= 0.

        >>> rule = Constraint(metric="accuracy", at_least=-0.5, baseline="zero_shot")
        >>> rule.name, rule.violation(61.0, 62.0), rule.violation(63.0, 62.0)
        ('accuracy_vs_zero_shot', 0.5, -1.5)
        """
        bounded = value
        largest = abs(value)
        if self.baseline is not None:
            if baseline_value is None:
                raise InputError(f"constraint {self.name}: baseline {self.baseline} has no {self.metric}")
            bounded = value - baseline_value
            largest = max(largest, abs(baseline_value))
        violation = -math.inf
        if self.at_least is not None:
            violation = max(violation, self.at_least - bounded)
        if self.at_most is not None:
            violation = max(violation, bounded - self.at_most)
        if is_rounding_error(violation, largest):  # the value is on the bound, apart from rounding
            return 0.0
        return violation


def check_objectives(objectives: Sequence[Objective]) -> None:
    """Raise InputError unless there are one to three objectives, each of another metric."""
    count = len(objectives)
    require(count >= 1, "must have at least 1 entry (none)", "objectives")
    require(count <= MAX_OBJECTIVES, f"must have at most {MAX_OBJECTIVES} entries ({count})", "objectives")
    metrics: set[str] = set()
    for index, objective in enumerate(objectives):
        metric = objective.metric
        require(metric not in metrics, f"{metric} is an objective already; take one out", f"objectives.{index}")
        metrics.add(metric)


def check_constraints(constraints: Sequence[Constraint], baselines: Sequence[str]) -> None:
    """Raise InputError unless constraints have different names and refer to baselines that run."""
    names = {FLOOR}
    for index, constraint in enumerate(constraints):
        key = f"constraints.{index}"
        name, baseline = constraint.name, constraint.baseline
        if baseline is not None:
            problem = f"baseline {baseline} will have no value; add it to work.baselines"
            require(baseline in baselines, problem, key)
        require(name not in names, f"there is a constraint named {name} already; give this one another name", key)
        names.add(name)


def metrics_of(objectives: Sequence[Objective]) -> list[str]:
    return [objective.metric for objective in objectives]


def goals_of(objectives: Sequence[Objective]) -> list[Goal]:
    return [objective.goal for objective in objectives]
