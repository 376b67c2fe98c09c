"""Settings of a trial in a search space: each as its type, and together as a trial takes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, setting, settings
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.validation import (
    LARGEST,
    as_list,
    as_mapping,
    at_key,
    is_plain_value,
    known_name,
    require,
    require_distinct,
    shown,
)

ParamKind = Literal["float", "int", "choice"]


def check_setting(key: str, value: Any) -> Any:
    """Return one value as its setting's type, such as the number for `x0.1`.

    A trial may still refuse the value: `check_trial` checks values together.
    """
    require_setting(key)
    require(not isinstance(value, Mapping | list | tuple), f"must be a single value ({shown(value)})")
    with _without_key(key):
        value = setting(key).parse(value)
    require(not isinstance(value, float) or math.isfinite(value), f"must be finite ({value!r})")
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
    check_trial(start, checked)
    return checked


def check_trial(
    start: TrialConfig, values: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Raise InputError unless the settings make a trial; the error names the part that is wrong by itself, if one is.

    `parts` are some of the settings by the path that errors name; by default each setting is a part, by its key.
    """
    try:
        start.replace(values)
    except InputError as error:
        if parts is None:
            parts = {key: {key: value} for key, value in values.items()}
        for path, part in parts.items():
            with at_key(path):
                check_part(start, part)
        raise InputError(_with_key(error)) from None


def check_part(start: TrialConfig, part: Mapping[str, Any]) -> None:
    """Raise InputError unless a trial takes these settings."""
    with _without_key(*part):
        start.replace(part)


@contextmanager
def _without_key(*keys: str) -> Iterator[None]:
    """Leave the keys of these settings out of errors, since their path in the space names them."""
    try:
        yield
    except InputError as error:
        problem = error.problem
        if error.key not in keys:
            problem = _with_key(error)
        raise InputError(problem) from None


def _with_key(error: InputError) -> str:
    if not error.key:
        return error.problem
    return f"{error.key} {error.problem}"


def range_kind(key: str) -> ParamKind:
    """Return the kind of a range of a setting; `choice` if the setting has no range."""
    kind = setting(key).kind
    if kind == "number":
        return "float"
    if kind == "integer":
        return "int"
    return "choice"


def value_for_each_key(keys: Sequence[str], value: Any) -> tuple[Any, ...]:
    """Return a value for each of some keys that move together; a single value is that of all keys."""
    if not isinstance(value, list | tuple):
        return (value,) * len(keys)
    require(len(value) == len(keys), f"must be one value, or {len(keys)}: one for each key ({shown(value)})")
    return tuple(value)
