"""The JSON schema of search spaces, for editors: `python -m tools.schema > search_spaces/schema.json`."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fpp_sweep.cli.command import parser, run
from fpp_sweep.space.objectives import METRIC, MOST_OBJECTIVES, Constraint, Objective
from fpp_sweep.space.rules import Schema, flag, number, rules, whole
from fpp_sweep.space.settings import range_kind
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, settings

SPREAD = 4  # levels of the file that are spread over lines, where they are longer than WIDTH
WIDTH = 110
NUMBERS: Mapping[str, Schema] = {  # how they may be written; x0.1 is relative to the setting's default
    "float": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^x[0-9.eE+-]+$"}]},
    "int": {"type": "integer"},
}


def schema() -> dict[str, Any]:
    """What editors check a file against while it is written; complaints of `load_space` go further."""
    keys = settings()
    one = {key: _ref(key) for key in keys}
    one_or_more = {key: {"anyOf": [_ref(key), _ref(f"{key}.list")]} for key in keys}
    goal = {"anyOf": [METRIC.schema(), _fields(Objective, required=["metric"])]}
    properties = {
        **{key: rule.schema() for key, rule in rules(Space).items()},
        "base": _ref("settings"),
        "params": _object({key: {"anyOf": _param_forms(key)} for key in keys}),
        "grid": {"type": "array", "items": {**_ref("values"), "minProperties": 1}},
        "points": {"type": "array", "items": {**_ref("settings"), "minProperties": 1}},
        "objectives": {"type": "array", "minItems": 1, "maxItems": MOST_OBJECTIVES, "items": goal},
        "constraints": {"type": "array", "items": _fields(Constraint, required=["metric"])},
        "search": _fields(Search),
        "work": _fields(Work),
    }
    definitions = {
        **{key: _setting(key, hint) for key, hint in keys.items()},
        **{f"{key}.list": _list(_ref(key)) for key in keys},
        **NUMBERS,
        **{f"{kind}.range": _range(kind) for kind in NUMBERS},
        "settings": _object(one),
        "values": {**_object(one_or_more), "patternProperties": {",": {}}},  # keys that move together
        "when": {**_ref("values"), "propertyNames": {"pattern": "^[^,]+$"}},
    }
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A search space of fpp_sweep"}
    return {**title, **_object(properties), "$defs": definitions}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _list(item: Schema) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}


def _object(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> dict[str, Any]:
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**closed, "required": required} if required else closed


def _fields(cls: type, required: Sequence[str] = ()) -> dict[str, Any]:
    return _object({key: rule.schema() for key, rule in rules(cls).items()}, required)


def _param_forms(key: str) -> list[Schema]:
    choices = _object({"choices": _ref(f"{key}.list"), "when": _ref("when")}, required=["choices"])
    kind = range_kind(key)
    return [_ref(f"{key}.list"), choices, *([] if kind == "choice" else [_ref(f"{kind}.range")])]


def _range(kind: str) -> dict[str, Any]:
    step = (whole(1) if kind == "int" else number(above=0)).schema()
    inner = {"low": _ref(kind), "high": _ref(kind), "log": flag().schema(), "step": step, "when": _ref("when")}
    return _object(inner, required=["low", "high"])


def _setting(key: str, hint: Any) -> dict[str, Any]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    forms = [form for part in parts for form in _forms(key, part)]
    return {**(forms[0] if len(forms) == 1 else {"anyOf": forms}), "default": TrialConfig().flat()[key]}


def _forms(key: str, kind: Any) -> list[Schema]:
    """How a value of a type may be written."""
    if typing.get_origin(kind) is Literal:
        return [{"enum": list(typing.get_args(kind))}]
    if kind is bool:
        return [flag().schema(), {"enum": ["on", "off"]}]
    if kind is float:
        return [_ref("float")]
    if kind is int:
        return [_ref("int")]
    if kind is type(None):
        return [{"enum": [None, "none"]}]
    return [{"enum": list(catalogue.METHODS)} if key == "method" else {"type": "string"}]


def written(value: Any, depth: int = 0) -> str:
    """JSON whose first levels are spread over lines, as far as they need it.

    >>> print(written({"a": {"b": [1, 2]}}))
    {"a": {"b": [1, 2]}}
    """
    line = json.dumps(value)
    if depth == SPREAD or len(line) <= WIDTH or not isinstance(value, dict):
        return line
    inner = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(key)}: {written(value[key], depth + 1)}" for key in value)
    return f"{{\n{inner}\n{' ' * depth}}}"


def main(argv: Sequence[str] | None = None) -> None:
    parser("tools.schema", __doc__ or "").parse_args(argv)
    print(written(schema()))


if __name__ == "__main__":
    run(main)
