"""Settings of a trial, as search spaces hold them: each as its type, and together what a config takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from fpp_sweep.space.rules import Rule, as_mapping, expect, list_of, shown, under
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, setting, settings
from fpp_sweep.spec.errors import InputError

Kind = Literal["float", "int", "choice"]


def check_setting(key: str, value: Any) -> Any:
    """One value as its setting's type, a number for x0.1; whether a trial can have it, `check_trial` says."""
    expect(not isinstance(value, Mapping | list | tuple), f"must be a single value, got {shown(value)}")
    for name in settings():
        expect(not name.startswith(f"{key}."), f"write its settings out, such as {name}")
    try:
        value = setting(key).parse(value)
    except InputError as error:
        raise InputError(error.problem) from None  # the path of the value names the setting
    expect(not isinstance(value, float) or math.isfinite(value), f"must be finite ({value!r})")
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
    return {"number": "float", "integer": "int"}.get(setting(key).kind, "choice")  # type: ignore[return-value]
