"""Searched settings: ranges and choices, what they depend on, and points among their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fpp_sweep.space.rules import (
    as_list,
    as_mapping,
    expect,
    flag,
    keys,
    known_name,
    number,
    set_field,
    text,
    under,
    whole,
    word,
)
from fpp_sweep.space.settings import Kind, check_setting, check_trial, range_kind, settings_rule
from fpp_sweep.spec.config import TrialConfig, settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A searched setting, a range or choices; it exists where each setting in `when` has one of the values there."""

    key: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    step: float | int | None = None
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with under(f"params.{self.key}"):
            known_name("setting", text().check(self.key), settings())
            with under("log"):
                flag().check(self.log)
            if self.choices != ():
                self._check_choices()
            else:
                self._check_range()
            with under("when"):
                set_field(self, "when", dict(_conditions(self.when)))

    def _check_choices(self) -> None:
        for name in ("low", "high", "step", "log"):
            absent = getattr(self, name) is None or getattr(self, name) is False
            expect(absent, "does not go with choices", name)
        with under("choices"):
            set_field(self, "choices", settings_rule(self.key).check(self.choices))

    def _check_range(self) -> None:
        expect(self.kind != "choice", "has no range; give choices")
        for name in ("low", "high"):
            expect(getattr(self, name) is not None, f"needs {name}, or choices")
            with under(name):
                set_field(self, name, check_setting(self.key, getattr(self, name)))
                expect(getattr(self, name) is not None, "must be a number, got none")
        low, high = self.bounds
        expect(low < high, f"low must be < high, got {low:g} and {high:g}")
        expect(not self.log or low > 0, f"must be > 0 where log is true, got {low:g}", "low")
        if self.step is not None:
            with under("step"):
                set_field(self, "step", (whole(1) if self.kind == "int" else number(above=0)).check(self.step))
                expect(not self.log, "does not go with log: true")
                expect(divides(self.step, high - low), f"must divide high - low = {high - low:g}, got {self.step:g}")

    @property
    def kind(self) -> Kind:
        return "choice" if self.choices else range_kind(self.key)

    @property
    def bounds(self) -> tuple[float | int, float | int]:
        """Of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def exists(self, values: Mapping[str, Any]) -> bool:
        return all(key in values and values[key] in allowed for key, allowed in self.when.items())

    def problem(self, value: Any) -> str | None:
        """Why it cannot take a value; none if it can."""
        if self.kind == "choice":
            return None if value in self.choices else f"{word(value)} is not among {', '.join(map(word, self.choices))}"
        low, high = self.bounds
        if value is None or not low <= value <= high:
            return f"{word(value)} is outside {low:g}..{high:g}"
        if self.step is not None and not divides(self.step, value - low):
            return f"{word(value)} is not {low:g} plus steps of {self.step:g}"
        return None

    def plain(self) -> dict[str, Any]:
        when = {"when": dict(self.when)} if self.when else {}
        if self.kind == "choice":
            return {"choices": self.choices, **when}
        step = {} if self.step is None else {"step": self.step}
        return {"low": self.low, "high": self.high, "log": self.log, **step, **when}


PARAM_KEYS = [name for name in keys(Param) if name != "key"]


def divides(step: float, width: float) -> bool:
    steps = width / step
    return math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-6)  # decimals such as 0.1 are not exact


def _conditions(when: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The parents and their values; one value may be written without a list."""
    for key, values in as_mapping(when).items():
        with under(key):
            yield key, settings_rule(key).check(values if isinstance(values, list | tuple) else [values])


def check_params(params: Iterable[Param], base: Mapping[str, Any], start: TrialConfig) -> tuple[Param, ...]:
    """The parameters of a space, parents before their children."""
    by_key: dict[str, Param] = {}
    for param in params:
        with under(f"params.{param.key}"):
            expect(param.key not in by_key, "comes twice")
            expect(param.key not in base, "is fixed in base as well; take it out of one of them")
            ends = {f"choices.{index}": choice for index, choice in enumerate(param.choices)}
            for name, value in (ends or {"low": param.low, "high": param.high}).items():
                with under(name):
                    start.replace({param.key: value})
        by_key[param.key] = param
    for param in by_key.values():
        for key, values in param.when.items():
            with under(f"params.{param.key}.when.{key}"):
                _check_condition(key, values, by_key)
    return _parents_first(by_key)


def _check_condition(key: str, values: Sequence[Any], params: Mapping[str, Param]) -> None:
    parent = params[known_name("parameter", key, params)]
    problem = f"{key} is a range of real numbers, on whose values nothing can depend; give it choices"
    expect(parent.kind != "float", problem)
    for value in values:
        expect(not parent.problem(value), f"can never hold: {parent.problem(value)}")


def _parents_first(params: Mapping[str, Param]) -> tuple[Param, ...]:
    ordered: dict[str, Param] = {}
    waiting = dict(params)
    while waiting:
        ready = [key for key, param in waiting.items() if set(param.when) <= set(ordered)]
        expect(ready, f"when goes in a circle among {', '.join(waiting)}", f"params.{next(iter(waiting))}")
        ordered[ready[0]] = waiting.pop(ready[0])
    return tuple(ordered.values())


def check_points(points: Any, params: Sequence[Param], start: TrialConfig) -> tuple[dict[str, Any], ...]:
    """Points: values of some of the parameters, checked against ranges, choices and conditions."""
    by_key = {param.key: param for param in params}
    checked: list[dict[str, Any]] = []
    for index, values in enumerate(as_list(points)):
        with under(str(index)):
            point = {key: _check_value(key, value, by_key) for key, value in as_mapping(values).items()}
            expect(point, "is an empty point")
            for key in point:
                for parent in set(by_key[key].when) & set(point):
                    exists = point[parent] in by_key[key].when[parent]
                    expect(exists, f"{key} does not exist where {parent} is {word(point[parent])}")
            expect(point not in checked, "comes twice")
            check_trial(start, point, {key: {key: value} for key, value in point.items()})
        checked.append(point)
    return tuple(checked)


def _check_value(key: str, value: Any, params: Mapping[str, Param]) -> Any:
    with under(key):
        param = params[known_name("parameter", key, params)]
        value = check_setting(key, value)
        expect(not param.problem(value), str(param.problem(value)))
        return value
