"""Every method, and how it differs, at a glance. Adding one: a file beside this one, and a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fpp_sweep.config import AdaptConfig
from fpp_sweep.core.datasets.base import Group
from fpp_sweep.core.methods.base import Method, TextModel
from fpp_sweep.core.methods.penalties import dispersion, orthogonality
from fpp_sweep.core.methods.tpt import Tpt, ZeroShot
from fpp_sweep.errors import unknown

__all__ = ["METHODS", "Method", "TextModel", "build_method", "require_method"]


@dataclass(frozen=True, slots=True)
class Row:
    """How to build a method from its config and the weight of its penalty, and the weights that were published."""

    build: Callable[[AdaptConfig, float], Method[Any]]
    weight: float = 0.0
    weight_on_shifts: float = 0.0


METHODS: dict[str, Row] = {
    "zero_shot": Row(lambda config, weight: ZeroShot()),
    "tpt": Row(lambda config, weight: Tpt(config=config)),
    "ctpt": Row(lambda config, weight: Tpt(config=config, penalty=dispersion, weight=weight), 50.0, 20.0),
    "otpt": Row(lambda config, weight: Tpt(config=config, penalty=orthogonality, weight=weight), 18.0, 2.0),
}


def require_method(name: str) -> Row:
    """A method's row, or an error that names the nearest."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def build_method(name: str, config: AdaptConfig, group: Group) -> Method[Any]:
    """A method by name, with the published penalty for the kind of dataset unless the config gives another."""
    row = require_method(name)
    weight = row.weight_on_shifts if group == "shifts" else row.weight
    return row.build(config, weight if config.penalty is None else config.penalty)
