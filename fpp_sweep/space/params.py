"""The settings that a space searches: values of settings, ranges and choices, their conditions, points, and grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, SkipValidation

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import Kind, TrialConfig, setting, settings
from fpp_sweep.spec.validation import (
    LARGEST,
    Several,
    as_list,
    as_mapping,
    at_key,
    checked,
    is_plain_value,
    keys,
    known_name,
    require,
    require_distinct,
    require_keys,
    set_field,
    shown,
    value_text,
)

RANGES = ("number", "integer")  # kinds of settings that have ranges
Block = Mapping[str, tuple[Any, ...]]

MAX_POINTS = 2_000  # all are checked when the space is read, which takes a second for this number

# ------------------------------------------------------------ values of settings


def check_setting(key: str, value: Any) -> Any:
    """Return one value as its setting's type, such as the number for `x0.1`.

    A trial may still refuse the value together with others: `TrialConfig.replace` checks a whole point.
    """
    require_setting(key)
    require(not isinstance(value, Mapping | list | tuple), f"must be a single value ({shown(value)})")
    value = setting(key).parse(value)
    require(is_plain_value(value), f"{LARGEST} ({shown(value)})")
    if key == "method":
        catalogue.method(value)
    if key == "anchor_prompt":
        require(value != "fpp", "must be words or a prompt file, such as 'a photo of a' ('fpp')")
    return value


def require_setting(key: str) -> None:
    """Raise InputError unless a dotted key is that of a setting."""
    for name in settings():
        require(not name.startswith(f"{key}."), f"is a section; write its settings out, such as {name}")
    known_name("setting", key, settings())


def check_choices(key: str, values: Any) -> tuple[Any, ...]:
    """Return a list of different values of one setting."""
    require_setting(key)
    items = as_list(values)
    require(len(items) >= 1, "must have at least 1 entry (none)")
    checked = []
    for index, item in enumerate(items):
        with at_key(str(index)):
            checked.append(check_setting(key, item))
    require_distinct(checked)
    return tuple(checked)


def check_settings(values: Any, start: TrialConfig) -> dict[str, Any]:
    """Return settings by dotted key that a trial can have together."""
    checked = {}
    for key, value in as_mapping(values).items():
        with at_key(key):
            checked[key] = check_setting(key, value)
    start.replace(checked)
    return checked


# ------------------------------------------------------------ parameters


@checked
class Param:
    """A searched setting: a range or choices; it exists if each setting in `when` has one of the values there."""

    key: str
    low: SkipValidation[float | int | None] = None
    high: SkipValidation[float | int | None] = None
    log: bool = False
    choices: SkipValidation[tuple[Any, ...]] = ()
    when: SkipValidation[Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_setting(self.key)
        if self.choices != ():
            self._check_choices()
        else:
            self._check_range()
        with at_key("when"):
            set_field(self, "when", _check_conditions(self.when))

    def _check_choices(self) -> None:
        for name in ("low", "high", "log"):
            value = getattr(self, name)
            require(value is None or value is False, f"does not go with choices ({shown(value)})", name)
        with at_key("choices"):
            set_field(self, "choices", check_choices(self.key, self.choices))

    def _check_range(self) -> None:
        require(setting(self.key).kind in RANGES, "has no range; give choices")
        for name in ("low", "high"):
            value = getattr(self, name)
            require(value is not None, f"needs {name}, or choices")
            with at_key(name):
                number = check_setting(self.key, value)
                require(number is not None, "must be a number (none)")
                set_field(self, name, number)
        low, high = self.bounds
        require(low < high, f"low must be < high ({low:g} and {high:g})")
        if self.log:
            require(low > 0, f"must be > 0 if log is true ({low:g})", "low")

    @property
    def kind(self) -> Kind:
        if self.choices:
            return "choice"
        return setting(self.key).kind

    @property
    def bounds(self) -> tuple[float | int, float | int]:
        """Low and high of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def exists(self, values: Mapping[str, Any]) -> bool:
        """Return True if a trial with these values of the parameter's parents has a value of the parameter."""
        for parent, allowed in self.when.items():
            if parent not in values or values[parent] not in allowed:
                return False
        return True

    def problem(self, value: Any) -> str | None:
        """Return why the parameter cannot take a value; None if it can."""
        if self.kind == "choice":
            if value in self.choices:
                return None
            choices = [value_text(choice) for choice in self.choices]
            return f"{value_text(value)} is not among {', '.join(choices)}"
        low, high = self.bounds
        if value is None or not low <= value <= high:
            return f"{value_text(value)} is outside {low:g}..{high:g}"
        return None

    def plain(self) -> dict[str, Any]:
        """Return the parameter's keys as a space file would have them."""
        plain: dict[str, Any] = {}
        if self.kind == "choice":
            plain["choices"] = self.choices
        else:
            plain |= {"low": self.low, "high": self.high, "log": self.log}
        if self.when:
            plain["when"] = dict(self.when)
        return plain


PARAM_KEYS = [name for name in keys(Param) if name != "key"]


def _params(values: Any) -> Any:
    """Return parameters from a mapping as in a file, where a bare list is the choices of one."""
    if isinstance(values, list | tuple) and all(isinstance(value, Param) for value in values):
        return values
    params = []
    for key, description in as_mapping(values).items():
        with at_key(key):
            if isinstance(description, list):
                with at_key("", without="choices"):
                    params.append(Param(key=key, choices=cast(Any, description)))
            else:
                require_keys(description, PARAM_KEYS)
                params.append(Param(key=key, **description))
    return params


Params = Annotated[Several[Param], BeforeValidator(_params)]


def _check_conditions(when: Any) -> dict[str, tuple[Any, ...]]:
    """Return the values of the parents by key; one value may be written without a list."""
    conditions = {}
    for key, values in as_mapping(when).items():
        if not isinstance(values, list | tuple):
            values = [values]
        with at_key(key):
            conditions[key] = check_choices(key, values)
    return conditions


# ------------------------------------------------------------ the parameters of a space


def check_params(params: Sequence[Param], base: Mapping[str, Any]) -> None:
    """Raise InputError unless the parameters of a space go together; parents must stand before their children."""
    before: dict[str, Param] = {}
    names = [param.key for param in params]
    for param in params:
        with at_key(f"params.{param.key}"):
            require(param.key not in before, "comes twice; take one out")
            require(param.key not in base, "is fixed in base as well; take it out of one of them")
            for key, values in param.when.items():
                with at_key(f"when.{key}"):
                    known_name("parameter", key, names)
                    require(key in before, f"must stand before {param.key}, which depends on it")
                    _check_condition(before[key], values)
        before[param.key] = param


def _check_condition(parent: Param, values: Sequence[Any]) -> None:
    is_range = parent.kind == "number"
    require(not is_range, f"{parent.key} is a range of real numbers, so no value ever recurs; give it choices")
    for value in values:
        problem = parent.problem(value)
        require(problem is None, f"can never hold: {problem}")


# ------------------------------------------------------------ points


def check_points(points: Any, params: Sequence[Param], start: TrialConfig) -> tuple[dict[str, Any], ...]:
    """Return the points of a space, each once."""
    checked: list[dict[str, Any]] = []
    for index, values in enumerate(as_list(points)):
        with at_key(str(index)):
            point = check_point(values, params, start)
            require(point not in checked, "comes twice; take one out")
        checked.append(point)
    return tuple(checked)


def check_point(values: Any, params: Sequence[Param], start: TrialConfig) -> dict[str, Any]:
    """Return a point, which is values of some parameters, checked against ranges, choices and conditions."""
    by_key = {param.key: param for param in params}
    point = {}
    for key, value in as_mapping(values).items():
        with at_key(key):
            point[key] = _check_value(key, value, by_key)
    require(point, "is empty; give a value of a parameter")
    for key in point:
        for parent, allowed in by_key[key].when.items():
            choices = " or ".join(value_text(value) for value in allowed)
            fits = parent in point and point[parent] in allowed
            require(fits, f"{key} exists only where {parent} is {choices}; give that as well")
    start.replace(point)
    return point


def _check_value(key: str, value: Any, params: Mapping[str, Param]) -> Any:
    param = params[known_name("parameter", key, params)]
    value = check_setting(key, value)
    problem = param.problem(value)
    require(problem is None, str(problem))
    return value


# ------------------------------------------------------------ grids


def check_grid(grid: Any, start: TrialConfig) -> tuple[Block, ...]:
    """Return the blocks of a grid, each a list of values for each key."""
    blocks: list[Block] = []
    points = 0
    for index, values in enumerate(as_list(grid)):
        with at_key(str(index)):
            block = _check_block(as_mapping(values))
            points += math.prod(len(choices) for choices in block.values())
            check_size(points, "a sampler")
            for point in block_points(block):
                start.replace(point)
        blocks.append(block)
    return tuple(blocks)


def check_size(points: int, alternative: str) -> None:
    """Raise InputError if a grid is too large to be checked."""
    require(points <= MAX_POINTS, f"makes a grid of more than {MAX_POINTS} points; use {alternative}")


def _check_block(values: Mapping[str, Any]) -> Block:
    block = {}
    for key, choices in values.items():
        if not isinstance(choices, list | tuple):
            choices = [choices]
        with at_key(key):
            block[key] = check_choices(key, choices)
    require(block, "is empty; give a setting with its values")
    return block


def block_points(block: Block) -> Iterator[dict[str, Any]]:
    """Yield all combinations of a block's values."""
    for combination in itertools.product(*block.values()):
        yield dict(zip(block, combination, strict=True))


def combinations(params: Sequence[Param], values: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the choices of `params`, each added to `values`.

    Parents stand before their children in `params`; a parameter that does not exist in a combination is left out.
    """
    values = dict(values or {})
    if not params:
        yield values
        return
    first = params[0]
    rest = params[1:]
    if not first.exists(values):
        yield from combinations(rest, values)
        return
    for choice in first.choices:
        yield from combinations(rest, {**values, first.key: choice})
