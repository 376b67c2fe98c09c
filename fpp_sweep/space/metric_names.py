"""Names of metrics in a search space: of the average, of one dataset, or after a post-hoc map."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.validation import require, shown


def check_metric(value: Any) -> Any:
    """Check the name of a metric, or of a metric of one dataset such as `ece/dtd`."""
    require(isinstance(value, str), f"must be the name of a metric ({shown(value)})")
    row = catalogue.metric(value)
    _, slash, dataset = value.partition("/")
    if slash:
        require(
            "@" not in dataset, f"a post-hoc map stands before the dataset, such as ece@isotonic/dtd ({shown(value)})"
        )
        require(row.of_dataset, f"{row.name} is a metric of a whole trial, not of a dataset ({shown(value)})")
        require(dataset.strip(), f"a dataset is missing after '/' ({shown(value)})")
    if "@" in value:
        _check_posthoc(value, row)
    return value


def _check_posthoc(value: str, row: catalogue.MetricRow) -> None:
    """Check a metric that is measured after a post-hoc map, such as `ece@temperature_val`."""
    posthoc = catalogue.parts_of(value).posthoc
    require(posthoc, f"a post-hoc map is missing after '@' ({shown(value)})")
    is_of_sets = any(column in catalogue.CONFORMAL for column in row.columns)
    problem = f"conformal sets are made of a method's own probabilities; write {row.name} ({shown(value)})"
    require(not is_of_sets, problem)
    is_changed = row.of_dataset and not row.columns and row.name not in catalogue.ACCURACIES
    require(is_changed, f"no post-hoc map changes {row.name}; write {row.name} ({shown(value)})")
    is_bound = catalogue.POSTHOC[posthoc].fitted_on == "the measured labels"
    require(not is_bound, f"{posthoc} is fitted on the labels that it is measured on; take another map")


def _metric_schema() -> dict[str, Any]:
    of_dataset, of_trial = [], []
    for row in catalogue.METRICS.values():
        if row.of_dataset:
            of_dataset.append(row.name)
        else:
            of_trial.append(row.name)
    maps = "|".join(catalogue.POSTHOC)
    return {"type": "string", "pattern": rf"^(({'|'.join(of_dataset)})(@({maps}))?(/.+)?|{'|'.join(of_trial)})$"}


MetricName = Annotated[str, BeforeValidator(check_metric), WithJsonSchema(_metric_schema())]
