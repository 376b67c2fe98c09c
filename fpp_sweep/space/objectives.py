"""What a trial is judged by: objectives to optimize and constraints to keep."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fpp_sweep import catalogue
from fpp_sweep.catalogue import Goal
from fpp_sweep.errors import InputError
from fpp_sweep.space.rules import LATER, NAME, Rule, check_fields, list_of, set_field, shown, text, under
from fpp_sweep.space.work import BASELINE

MOST_OBJECTIVES = 3


def _check_metric(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"must be the name of a metric, got {shown(value)}")
    row = catalogue.metric(value)
    _, slash, dataset = value.partition("/")
    if slash and not row.of_dataset:
        raise InputError(f"{value!r} is of a whole trial, not of a dataset")
    if slash and not dataset.strip():
        raise InputError(f"{value!r} lacks a dataset after '/'")
    return value


def _metric_schema() -> dict[str, Any]:
    of_dataset = "|".join(row.name for row in catalogue.qualities())
    of_trial = "|".join(row.name for row in catalogue.METRICS.values() if not row.of_dataset)
    return {"type": "string", "pattern": rf"^(({of_dataset})(/.+)?|{of_trial})$"}


METRIC = Rule(_check_metric, _metric_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric to optimize."""

    metric: Annotated[str, METRIC]  # accuracy, ece, ...; ece/dtd for one dataset
    goal: Goal = LATER  # the metric's own
    reference: float | None = None  # the hypervolume's corner; none: chosen by the sweep

    def __post_init__(self) -> None:
        check_fields(self)
        set_field(self, "goal", self.goal or catalogue.metric(self.metric).goal)


def default_objectives() -> tuple[Objective, ...]:
    """The first metric of each goal."""
    first: dict[Goal, str] = {}
    for row in catalogue.qualities():
        first.setdefault(row.goal, row.name)
    return tuple(Objective(metric=metric) for metric in first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a trial must keep to be feasible; bounds are differences from the baseline's value where one is named."""

    name: Annotated[str, NAME] = LATER  # such as accuracy_vs_zero_shot
    metric: Annotated[str, METRIC]
    at_least: float | None = None
    at_most: float | None = None
    baseline: Annotated[str, BASELINE] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.at_least is None and self.at_most is None:
            raise InputError("needs at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise InputError(f"at_least must be <= at_most, got {self.at_least:g} and {self.at_most:g}")
        if self.name is None:
            metric = re.sub(r"[^A-Za-z0-9_.-]", "_", self.metric)
            set_field(self, "name", f"{metric}_vs_{self.baseline}" if self.baseline else metric)

    def violation(self, value: float, baseline_value: float | None = None) -> float:
        """By how much it is broken, in the metric's unit; it holds where <= 0.

        >>> rule = Constraint(metric="accuracy", at_least=-0.5, baseline="zero_shot")
        >>> rule.name, rule.violation(61.0, 62.0), rule.violation(63.0, 62.0)
        ('accuracy_vs_zero_shot', 0.5, -1.5)
        """
        if self.baseline is not None and baseline_value is None:
            raise InputError(f"constraint {self.name}: baseline {self.baseline} has no {self.metric}")
        excess = value - (baseline_value if self.baseline is not None and baseline_value is not None else 0.0)
        short = -math.inf if self.at_least is None else self.at_least - excess
        over = -math.inf if self.at_most is None else excess - self.at_most
        return max(short, over)


def check_objectives(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    metrics: list[str] = []
    for index, objective in enumerate(objectives):
        with under(f"objectives.{index}"):
            if objective.metric in metrics:
                raise InputError(f"{objective.metric} is an objective already")
        metrics.append(objective.metric)
    with under("objectives"):
        list_of(text(), least=1, most=MOST_OBJECTIVES).check(metrics)
    return tuple(objectives)


def check_constraints(constraints: Sequence[Constraint], baselines: Sequence[str]) -> tuple[Constraint, ...]:
    names: list[str] = []
    for index, constraint in enumerate(constraints):
        with under(f"constraints.{index}"):
            if constraint.baseline is not None and constraint.baseline not in baselines:
                raise InputError(
                    f"baseline {constraint.baseline} is not among work.baselines, so it will have no value"
                )
            if constraint.name in names:
                raise InputError(f"there is a constraint named {constraint.name} already; give it another name")
        names.append(constraint.name)
    return tuple(constraints)
