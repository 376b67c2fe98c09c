"""Methods: the contract (`base`) and those that are built in; `fpp_sweep.spec.catalogue` has the table of them."""

from __future__ import annotations

from typing import Any

from fpp_sweep.core.methods.base import Method, TextModel
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.released import with_released

__all__ = ["Method", "TextModel", "build_method"]


def build_method(name: str, adapt: AdaptConfig, group: str, dataset: str = "") -> Method[Any]:
    """Build a method by name; settings that `adapt` leaves open are the published ones for the group or the dataset."""
    row = catalogue.method(name)
    adapt = with_released(row.name, dataset, adapt)
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
