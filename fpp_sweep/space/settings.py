"""Settings of a trial in a search space: each as its type, and together as a trial takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, setting, settings
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
