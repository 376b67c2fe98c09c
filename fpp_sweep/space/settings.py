"""Settings of a trial, as search spaces hold them: each as its type, and together what a config takes."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from fpp_sweep.space.rules import Rule, as_mapping, expect, list_of, shown, under
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, convert, setting_types
from fpp_sweep.spec.errors import InputError

Kind = Literal["float", "int", "choice"]


def check_setting(key: str, value: Any) -> Any:
    """One value as its setting's type, a number for x0.1; whether a trial can have it, `check_trial` says."""
    expect(not isinstance(value, Mapping | list | tuple), f"must be a single value, got {shown(value)}")
    for name in setting_types():
        expect(not name.startswith(f"{key}."), f"write its settings out, such as {name}")
    value = convert(key, value)
    expect(not isinstance(value, float) or math.isfinite(value), f"{key} must be finite, got {value!r}")
    if key == "method":
        catalogue.method(value)
    problem = "FPP needs words or a prompt file to stay aligned with, such as 'a photo of a'"
    expect((key, value) != ("anchor_prompt", "fpp"), problem)
    return value


def settings_rule(key: str) -> Rule:
    """A list of values of one setting."""
    return list_of(Rule(lambda value: check_setting(key, value), dict), least=1)


def check_settings(values: Any, start: TrialConfig) -> dict[str, Any]:
    """Settings by dotted key that a trial can have together."""
    checked = {}
    for key, value in as_mapping(values).items():
        with under(key):
            checked[key] = check_setting(key, value)
    check_trial(start, checked, {key: {key: value} for key, value in checked.items()})
    return checked


def check_trial(start: TrialConfig, values: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> None:
    """These settings must make a trial; an error is of the first part that cannot be by itself, else of all."""
    try:
        start.replace(values)
    except InputError:
        for key, part in parts.items():
            with under(key):
                start.replace(part)
        raise


def range_kind(key: str) -> Kind:
    """What a range of the setting is; a choice if it has none."""
    hint = setting_types()[key]
    kind = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
    return {float: "float", int: "int"}.get(kind, "choice")  # type: ignore[return-value]
