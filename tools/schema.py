"""The JSON schema of search spaces, for editors: `python -m tools.schema > search_spaces/schema.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fpp_sweep.cli import parser, run
from fpp_sweep.space.objectives import MAX_OBJECTIVES, Constraint, Objective
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Finalists, Search, Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import Setting, settings
from fpp_sweep.spec.validation import json_schema

Schema = dict[str, Any]

INDENTED_LEVELS = 4  # number of levels that are written on several lines if they are longer than WIDTH
WIDTH = 110
NUMBERS: Mapping[str, Schema] = {  # forms in which numbers may be written; x0.1 is relative to the setting's default
    "number": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^x[0-9.eE+-]+$"}]},
    "integer": {"type": "integer"},
}


def schema() -> Schema:
    """Return the schema with which editors check a search space; `load_space` checks more."""
    metric = json_schema(Objective)["metric"]
    objective = _object(json_schema(Objective), required=["metric"])
    constraint = _object(json_schema(Constraint), required=["metric"])
    properties = {
        **json_schema(Space),
        "base": _ref("settings"),
        "params": _object({key: {"anyOf": _param_forms(key)} for key in settings()}),
        "grid": {"type": "array", "items": {**_ref("values"), "minProperties": 1}},
        "points": {"type": "array", "items": {**_ref("settings"), "minProperties": 1}},
        "objectives": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_OBJECTIVES,
            "items": {"anyOf": [metric, objective]},
        },
        "constraints": {"type": "array", "items": constraint},
        "search": _search(),
        "work": _object(json_schema(Work)),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A search space of fpp_sweep",
        **_object(properties),
        "$defs": _definitions(),
    }


def _search() -> Schema:
    return _object({**json_schema(Search), "finalists": _object(json_schema(Finalists))})


def _definitions() -> Schema:
    """Return the schemas that others refer to: values of each setting, lists of them, and ranges."""
    definitions: Schema = {}
    single_values: Schema = {}
    values: Schema = {}
    for key, setting in settings().items():
        definitions[key] = {**_setting(setting), "default": setting.default}
        definitions[f"{key}.list"] = _list(_ref(key))
        single_values[key] = _ref(key)
        values[key] = {"anyOf": [_ref(key), _ref(f"{key}.list")]}
    for kind, number in NUMBERS.items():
        definitions[kind] = number
        definitions[f"{kind}.range"] = _range(kind)
    definitions["settings"] = _object(single_values)
    definitions["values"] = _object(values)
    return definitions


def _setting(setting: Setting) -> Schema:
    """Return how a value of a setting may be written."""
    if setting.key == "method":
        return {"enum": list(catalogue.METHODS)}
    schemas: Mapping[str, Schema] = {
        "number": _ref("number"),
        "integer": _ref("integer"),
        "switch": {"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]},
        "choice": {"enum": list(setting.choices)},
        "text": {"type": "string"},
    }
    if setting.optional:
        return {"anyOf": [schemas[setting.kind], {"enum": [None, "none"]}]}
    return schemas[setting.kind]


def _param_forms(key: str) -> list[Schema]:
    """Return how a parameter may be written: a list of choices, a mapping with choices, or a range."""
    choices = _object({"choices": _ref(f"{key}.list"), "when": _ref("values")}, required=["choices"])
    forms = [_ref(f"{key}.list"), choices]
    kind = settings()[key].kind
    if kind in NUMBERS:
        forms.append(_ref(f"{kind}.range"))
    return forms


def _range(kind: str) -> Schema:
    properties = {"low": _ref(kind), "high": _ref(kind), "log": {"type": "boolean"}, "when": _ref("values")}
    return _object(properties, required=["low", "high"])


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}


def _object(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    closed: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        closed["required"] = list(required)
    return closed


def written(value: Any, depth: int = 0) -> str:
    """Return JSON whose first levels are written on several lines where one line would be too long.

    >>> print(written({"a": {"b": [1, 2]}}))
    {"a": {"b": [1, 2]}}
    """
    line = json.dumps(value)
    if depth == INDENTED_LEVELS or len(line) <= WIDTH or not isinstance(value, dict):
        return line
    indent = " " * depth
    lines = []
    for key in value:
        lines.append(f"{indent} {json.dumps(key)}: {written(value[key], depth + 1)}")
    inner = ",\n".join(lines)
    return f"{{\n{inner}\n{indent}}}"


def main(argv: Sequence[str] | None = None) -> None:
    parser("tools.schema", __doc__ or "").parse_args(argv)
    print(written(schema()))


if __name__ == "__main__":
    run(main)
