"""The JSON schema of search spaces, for editors: `python -m fpp_sweep.space.schema > search_spaces/schema.json`."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fpp_sweep.cli import parser, run
from fpp_sweep.config import PRESETS, TrialConfig
from fpp_sweep.space.reading import (
    CONSTRAINT,
    METRIC,
    MOST_OBJECTIVES,
    NAME,
    OBJECTIVE,
    SEARCH,
    WORK,
    range_kind,
    setting_types,
)
from fpp_sweep.space.space import METHODS
from fpp_sweep.space.yamlfile import flag, number, text, whole


def schema() -> dict[str, Any]:
    """What editors check a file against while it is written; complaints of `load_space` go further."""
    settings = {key: _setting_schema(key, hint) for key, hint in setting_types().items()}
    references = {key: {"$ref": f"#/$defs/{key}"} for key in settings}
    several = {key: _one_or_more(reference) for key, reference in references.items()}
    objective = _object({key: rule.schema for key, rule in OBJECTIVE.items()}, required=["metric"])
    constraint = _object({key: rule.schema for key, rule in CONSTRAINT.items()}, required=["metric"])
    block = _object(several) | {"minProperties": 1, "patternProperties": {",": _one_or_more({})}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A search space of fpp_sweep",
        **_object(
            {
                "name": NAME.schema,
                "question": text().schema,
                "preset": {"enum": ["auto", *PRESETS]},
                "base": _object(references),
                "params": _object({key: _param_schema(key, reference) for key, reference in references.items()}),
                "grid": {"type": "array", "items": block},
                "points": {"type": "array", "items": _object(references) | {"minProperties": 1}},
                "objectives": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_OBJECTIVES,
                    "items": {"anyOf": [METRIC.schema, objective]},
                },
                "constraints": {"type": "array", "items": constraint},
                "search": _object({key: rule.schema for key, rule in SEARCH.items()}),
                "work": _object({key: rule.schema for key, rule in WORK.items()}),
            }
        ),
        "$defs": {**settings, "when": _object(several)},
    }


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    made = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


def _one_or_more(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]}


def _setting_schema(key: str, hint: Any) -> dict[str, Any]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found = [each for part in parts for each in _type_schemas(key, part)]
    default = TrialConfig().flat()[key]
    return {**(found[0] if len(found) == 1 else {"anyOf": found}), "default": default}


def _type_schemas(key: str, kind: Any) -> list[dict[str, Any]]:
    if typing.get_origin(kind) is Literal:
        return [{"enum": list(typing.get_args(kind))}]
    if kind is bool:
        return [{"type": "boolean"}, {"enum": ["on", "off"]}]
    if kind is float:
        return [{"type": "number"}, {"type": "string", "pattern": r"^x[0-9.eE+-]+$"}]
    if kind is int:
        return [{"type": "integer"}]
    if kind is type(None):
        return [{"enum": [None, "none"]}]
    return [{"enum": list(METHODS)} if key == "method" else {"type": "string"}]


def _param_schema(key: str, one: Mapping[str, Any]) -> dict[str, Any]:
    choices = {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}

    forms = [choices, _object({"choices": choices, "when": {"$ref": "#/$defs/when"}}, required=["choices"])]
    if range_kind(key) != "choice":
        step = whole(1) if range_kind(key) == "int" else number(above=0)
        rest = {"log": flag().schema, "step": step.schema, "when": {"$ref": "#/$defs/when"}}
        forms.append(_object({"low": one, "high": one, **rest}, required=["low", "high"]))
    return {"anyOf": forms}


def main(argv: Sequence[str] | None = None) -> None:
    parser("spaceschema", __doc__ or "").parse_args(argv)
    print(json.dumps(schema(), indent=1))


if __name__ == "__main__":
    run(main)
