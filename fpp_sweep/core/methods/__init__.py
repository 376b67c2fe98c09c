"""Methods: what one is (base), and those that are built in. The table of all of them is `fpp_sweep.spec.catalogue`."""

from __future__ import annotations

from typing import Any

from fpp_sweep.core.methods.base import Method, TextModel
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig

__all__ = ["Method", "TextModel", "build_method"]


def build_method(name: str, adapt: AdaptConfig, group: str) -> Method[Any]:
    """A method by name, with the published penalty for the kind of dataset unless the settings give another."""
    row = catalogue.method(name)
    published = row.weight_on_shifts if group == "shifts" else row.weight
    weight = published if adapt.penalty_weight is None else adapt.penalty_weight
    penalty = None if row.penalty is None else catalogue.code_of(row.penalty)
    method: Method[Any] = catalogue.code_of(row.build)(adapt=adapt, penalty=penalty, weight=weight)
    return method
