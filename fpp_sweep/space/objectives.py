"""Objectives to optimize and constraints to keep."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from fpp_sweep.space.work import BaselineName, MetricName, check_baseline, check_metric
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.validation import (
    COMPUTED_DEFAULT,
    Number,
    Several,
    at_key,
    build,
    checked,
    part,
    require,
    set_field,
    shown,
)

MAX_OBJECTIVES = 3
MAX_NAME = 64  # characters
DIGITS = 12  # significant digits of a mean that are right; any difference that images make shows in them
RELATIVE_ERROR = 10.0**-DIGITS
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


@checked
class Objective:
    """A metric to optimize. Of a record it may be a plugin's that is not loaded; a space checks the metric."""

    metric: MetricName  # accuracy, ece, ...; ece/dtd for one dataset
    goal: Goal = COMPUTED_DEFAULT  # the metric's own
    reference: Number | None = None  # the hypervolume's corner; none: chosen by the sweep

    def __post_init__(self) -> None:
        if self.goal is None:
            with at_key("metric"):
                set_field(self, "goal", check_metric(self.metric).goal)


def _objective(item: Any) -> Objective:
    """Return an objective from its keys, or from the word that is its metric."""
    if isinstance(item, str):
        with at_key("", without="metric"):
            return Objective(metric=item)
    return build(Objective, item)


Objectives = Several[Annotated[Objective, BeforeValidator(_objective)]]


def default_objectives() -> tuple[Objective, ...]:
    """Return the first metric of each goal as objectives."""
    first: dict[Goal, str] = {}
    for row in catalogue.dataset_metrics():
        first.setdefault(row.goal, row.name)
    return tuple(Objective(metric=metric) for metric in first.values())


@checked
class Constraint:
    """A bound that a feasible trial keeps; with a baseline, it bounds the difference to the baseline's value."""

    name: Name = COMPUTED_DEFAULT  # such as accuracy_vs_zero_shot
    metric: MetricName
    at_least: Number | None = None
    at_most: Number | None = None
    baseline: BaselineName | None = None

    def __post_init__(self) -> None:
        low, high = self.at_least, self.at_most
        require(low is not None or high is not None, "needs at_least or at_most")
        if low is not None and high is not None:
            require(low <= high, f"at_least must be <= at_most ({low:g} and {high:g})")
        if self.name is None:
            set_field(self, "name", self._default_name())

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


Constraints = Several[Annotated[Constraint, part(Constraint)]]


def check_objectives(objectives: Sequence[Objective]) -> None:
    """Raise InputError unless there are one to three objectives, each of another metric, with the metric's goal."""
    count = len(objectives)
    require(count >= 1, "must have at least 1 entry (none)")
    require(count <= MAX_OBJECTIVES, f"must have at most {MAX_OBJECTIVES} entries ({count})")
    metrics: set[str] = set()
    for index, objective in enumerate(objectives):
        metric = objective.metric
        with at_key(str(index)):
            goal = check_metric(metric).goal
            require(objective.goal == goal, f"the goal of {metric} is {goal} ({objective.goal})", "goal")
            require(metric not in metrics, f"{metric} is an objective already; take one out")
        metrics.add(metric)


def check_constraints(constraints: Sequence[Constraint], baselines: Sequence[str]) -> None:
    """Raise InputError unless constraints have different names, and metrics and baselines that are measured."""
    names = {FLOOR}
    for index, constraint in enumerate(constraints):
        name, baseline = constraint.name, constraint.baseline
        with at_key(str(index)):
            with at_key("metric"):
                check_metric(constraint.metric)
            if baseline is not None:
                with at_key("baseline"):
                    check_baseline(baseline)
                require(baseline in baselines, f"baseline {baseline} will have no value; add it to work.baselines")
            require(name not in names, f"there is a constraint named {name} already; give this one another name")
        names.add(name)


def metrics_of(objectives: Sequence[Objective]) -> list[str]:
    return [objective.metric for objective in objectives]


def goals_of(objectives: Sequence[Objective]) -> list[Goal]:
    return [objective.goal for objective in objectives]


# ------------------------------------------------------------ rounding errors: equal means may differ in last digits


def is_rounding_error(difference: float, largest: float) -> bool:
    """Return True for a difference that rounding explains; `largest` is the largest value that it was computed from.

    >>> is_rounding_error(1e-14, 72.9), is_rounding_error(0.05, 72.9)
    (True, False)
    """
    return abs(difference) <= RELATIVE_ERROR * largest


def without_rounding_error(value: float) -> float:
    """Return a value with as many digits as a mean has right.

    >>> without_rounding_error(72.91666666666667) == without_rounding_error(72.91666666666666)
    True
    """
    return float(f"{value:.{DIGITS}g}")
