"""What a trial is judged by: objectives to optimize and constraints to keep."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_args

from fpp_sweep.space.rules import LATER, NAME, Rule, check_fields, expect, rules, set_field, shown, word
from fpp_sweep.space.work import BASELINE
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.errors import InputError

MOST_OBJECTIVES = 3


def _check_metric(value: Any) -> Any:
    expect(isinstance(value, str), f"must be the name of a metric, got {shown(value)}")
    row = catalogue.metric(value)
    _, slash, dataset = value.partition("/")
    expect(row.of_dataset or not slash, f"{value!r} is of a whole trial, not of a dataset")
    expect(dataset.strip() or not slash, f"{value!r} lacks a dataset after '/'")
    return value


def _metric_schema() -> dict[str, Any]:
    of_dataset = "|".join(row.name for row in catalogue.METRICS.values() if row.of_dataset)
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

    @classmethod
    def recorded(cls, *, metric: str, goal: Goal, reference: float | None = None) -> Self:
        """As a record has it: its metric may be a plugin's, which reading a sweep does not load."""
        expect(isinstance(metric, str) and goal in get_args(Goal), "needs a metric and its goal, max or min")
        reference = rules(Objective)["reference"].check(reference)
        objective = cls.__new__(cls)
        for name, value in (("metric", metric), ("goal", goal), ("reference", reference)):
            set_field(objective, name, value)
        return objective


def default_objectives() -> tuple[Objective, ...]:
    """The first metric of each goal."""
    first: dict[Goal, str] = {}
    for row in catalogue.dataset_metrics():
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
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        expect(bounds, "needs at_least or at_most")
        expect(bounds == sorted(bounds), f"at_least must be <= at_most, got {' and '.join(map(word, bounds))}")
        if self.name is None:
            words = f"{self.metric}_vs_{self.baseline}" if self.baseline else self.metric
            set_field(self, "name", re.sub(r"[^A-Za-z0-9_.-]", "_", words)[:64])

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


def check_objectives(objectives: Sequence[Objective]) -> None:
    metrics = [objective.metric for objective in objectives]
    expect(metrics, "must have at least 1 entry, is empty", "objectives")
    problem = f"must have at most {MOST_OBJECTIVES} entries, has {len(metrics)}"
    expect(len(metrics) <= MOST_OBJECTIVES, problem, "objectives")
    for index, metric in enumerate(metrics):
        expect(metric not in metrics[:index], f"{metric} is an objective already", f"objectives.{index}")


def check_constraints(constraints: Sequence[Constraint], baselines: Sequence[str]) -> None:
    names = [constraint.name for constraint in constraints]
    for index, constraint in enumerate(constraints):
        problem = f"baseline {constraint.baseline} is not among work.baselines, so it will have no value"
        expect(constraint.baseline in (None, *baselines), problem, f"constraints.{index}")
        problem = f"there is a constraint named {constraint.name} already; give it another name"
        expect(constraint.name not in names[:index], problem, f"constraints.{index}")
