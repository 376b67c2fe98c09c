"""Methods: the contract (`base`) and those that are built in; `fpp_sweep.spec.catalogue` has the table of them."""

from __future__ import annotations

from typing import Any

from fpp_sweep.core.methods.base import Method, TextModel
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.spec.released import keys_without_released_value, with_released

__all__ = ["Method", "TextModel", "build_method"]


def build_method(name: str, adapt: AdaptConfig, group: str, dataset: str = "") -> Method[Any]:
    """Build a method by name; settings that `adapt` leaves open are the published ones for the group or the dataset."""
    row = catalogue.method(name)
    filled = with_released(row.name, dataset, adapt)
    _warn_of_defaults(row.name, dataset, adapt, filled)
    adapt = filled
    penalty = None
    if row.penalty is not None:
        penalty = catalogue.code_of(row.penalty)
    weight = row.weight
    if group == "shifts":
        weight = row.weight_on_shifts
    if adapt.penalty_weight is not None:
        weight = adapt.penalty_weight
    method: Method[Any] = catalogue.code_of(row.build)(adapt=adapt, penalty=penalty, weight=weight)
    return method


def _warn_of_defaults(method: str, dataset: str, adapt: AdaptConfig, filled: AdaptConfig) -> None:
    """Log the settings that are neither set nor released for a dataset, with the values that are used."""
    defaults = []
    for key in keys_without_released_value(method, dataset):
        name = key.removeprefix("adapt.")
        if getattr(adapt, name) is None:
            defaults.append(f"{key}={getattr(filled, name)}")
    if defaults and dataset:
        warn_once(f"{dataset}: no settings of {method} are released for this dataset; uses {' '.join(defaults)}")
