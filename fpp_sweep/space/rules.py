"""What a value must be: the checks of search spaces, each with its JSON schema.

The type of a dataclass's field says its rule: `tuple[int, ...] | None`, or `Annotated[int, whole(1)]`. `check_fields`
checks an object by them when it is built; the YAML reader and the schema use the same.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from fpp_sweep.spec.errors import InputError, unknown

Schema = Mapping[str, Any]

LARGEST = 2**32 - 1  # NumPy takes no larger seed

LATER: Any = None  # default of a field that is filled in from others, by its object or by the one that holds it


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` gives the value back, converted, or raises InputError; `schema` says the same to editors."""

    check: Callable[[Any], Any]
    schema: Callable[[], Schema]


def expect(holds: object, problem: str, key: str = "") -> None:
    if not holds:
        raise InputError(problem, key)


@contextmanager
def under(key: str) -> Iterator[None]:
    """Put the key before the keys of errors raised within."""
    try:
        yield
    except InputError as error:
        raise InputError(error.problem, ".".join(filter(None, (key, error.key)))) from None


def known_name(kind: str, name: str, known: Collection[str]) -> str:
    """The name, or an error that tells the nearest."""
    if name not in known:
        raise unknown(kind, name, known)
    return name


def check_fields(checked: Any, key: str = "") -> None:
    """Check an object's fields by the rules of their types; errors name them below `key`."""
    kind: Any = type(checked)
    for name, rule in rules(kind).items():
        with under(f"{key}.{name}" if key else name):
            set_field(checked, name, rule.check(getattr(checked, name)))


def set_field(checked: Any, name: str, value: Any) -> None:
    """While an object is built, frozen or not."""
    object.__setattr__(checked, name, value)


def keys(cls: Any) -> list[str]:
    return [field.name for field in fields(cls)]


@functools.cache
def rules(cls: type) -> Mapping[str, Rule]:
    """The rules of a dataclass's fields, of those that have one."""
    hints = typing.get_type_hints(cls, include_extras=True)
    checks = {}
    for field in fields(cls):
        hint = hints[field.name]
        if rule := _rule_of(field.name, hint):
            later = field.default is LATER and type(None) not in typing.get_args(hint)
            checks[field.name] = optional(rule) if later else rule
    return checks


def _rule_of(name: str, hint: Any) -> Rule | None:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        return typing.cast(Rule, arguments[1])
    if typing.get_origin(hint) is Literal:
        return one_of(name, lambda: arguments)
    if type(None) in arguments:
        rule = _rule_of(name, arguments[0])
        return rule and optional(rule)
    if typing.get_origin(hint) is tuple:
        rule = _rule_of(name, arguments[0])
        return rule and list_of(rule)
    if typing.get_origin(hint) in (Mapping, Sequence):
        rule = _rule_of(name, arguments[-1])
        return rule and each(rule, named=typing.get_origin(hint) is Mapping)
    makers: Mapping[Any, Callable[[], Rule]] = {str: text, bool: flag, int: whole, float: number}
    return makers[hint]() if hint in makers else None


def text(pattern: str = r"\S", wanted: str = "text") -> Rule:
    """Text in which the pattern is found."""

    def check(value: Any) -> Any:
        expect(isinstance(value, str) and re.search(pattern, value), f"must be {wanted}, got {shown(value)}")
        return value

    return Rule(check, lambda: {"type": "string", "pattern": pattern})


NAME = text(  # of a file or folder
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$(?!\n)", "letters, digits, '.', '_' and '-', beginning with a letter or digit"
)


def flag() -> Rule:
    def check(value: Any) -> Any:
        expect(isinstance(value, bool), f"must be true or false, got {shown(value)}")
        return value

    return Rule(check, lambda: {"type": "boolean"})


def whole(least: int | None = None, most: int = LARGEST) -> Rule:
    def check(value: Any) -> Any:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        expect(is_whole, f"must be a whole number, got {shown(value)}")
        expect(least is None or value >= least, f"must be >= {least}, got {value}")
        expect(value <= most, f"must be <= {most}, got {value}")
        return value

    return Rule(check, lambda: _filled({"type": "integer", "minimum": least, "maximum": most}))


def number(above: int | None = None, least: float | None = None) -> Rule:
    """A finite number, > `above`, >= `least`."""

    def check(value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and abs(value) <= sys.float_info.max):  # `expect` would word a complaint for each of 10^6
            raise InputError(f"must be a number, got {shown(value)}")
        if above is None is least:
            return float(value)
        expect(above is None or value > above, f"must be > {above}, got {value}")
        expect(least is None or value >= least, f"must be >= {least}, got {value}")
        return float(value)

    return Rule(check, lambda: _filled({"type": "number", "exclusiveMinimum": above, "minimum": least}))


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = r"[0-9]+(?:\.[0-9]+)?[smhd]"


def duration() -> Rule:
    """Seconds, or words such as 90s, 5m, 1h30m, 2d."""
    seconds = number(above=0)

    def check(value: Any) -> float:
        if isinstance(value, str):
            wanted = "a duration such as 90s, 5m, 1h30m or seconds"
            expect(re.fullmatch(f"(?:{_PART})+", value), f"must be {wanted}, got {shown(value)}")
            value = sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(_PART, value))
        return float(seconds.check(value))

    return Rule(check, lambda: {"anyOf": [seconds.schema(), {"type": "string", "pattern": f"^({_PART})+$"}]})


def one_of(kind: str, names: Callable[[], Iterable[str]]) -> Rule:
    """One of some names, which are looked up when they are needed."""

    def check(value: Any) -> str:
        known = list(names())
        expect(isinstance(value, str), f"must be one of {', '.join(known)}, got {shown(value)}")
        return known_name(kind, value, known)

    return Rule(check, lambda: {"enum": list(names())})


def list_of(item: Rule, least: int = 0) -> Rule:
    """A list without repetitions, as a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        items = as_list(value)
        expect(len(items) >= least, f"must have at least {least} entry, is empty")
        checked: list[Any] = []
        for index, entry in enumerate(items):
            with under(str(index)):
                entry = item.check(entry)
                expect(entry not in checked, f"{shown(entry)} comes twice")
            checked.append(entry)
        return tuple(checked)

    limits = {"minItems": least or None, "uniqueItems": True}
    return Rule(check, lambda: _filled({"type": "array", "items": item.schema(), **limits}))


def each(item: Rule, *, named: bool) -> Rule:
    """A mapping, or a list, any value of which may come again."""

    def check(value: Any) -> Any:
        entries = as_mapping(value) if named else dict(enumerate(as_list(value)))
        checked: dict[Any, Any] = {}
        key: Any = ""
        try:
            for key, entry in entries.items():
                checked[key] = item.check(entry)
        except InputError as error:
            raise InputError(error.problem, f"{key}.{error.key}".rstrip(".")) from None
        return checked if named else list(checked.values())

    return Rule(check, dict)


def optional(rule: Rule) -> Rule:
    """None, or what the rule says."""

    def check(value: Any) -> Any:
        return None if value is None else rule.check(value)

    return Rule(check, lambda: {"anyOf": [rule.schema(), {"type": "null"}]})


def _filled(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if value is not None}


def as_mapping(value: Any) -> Mapping[str, Any]:
    expect(isinstance(value, Mapping), f"must be a mapping (key: value), got {shown(value)}")
    expect(all(isinstance(key, str) for key in value), "must have keys that are text")
    checked: Mapping[str, Any] = value
    return checked


def as_list(value: Any) -> list[Any] | tuple[Any, ...]:
    example = "..." if value is None or isinstance(value, Mapping) else value
    expect(isinstance(value, list | tuple), f"must be a list, such as [{example}], got {shown(value)}")
    items: list[Any] | tuple[Any, ...] = value
    return items


def shown(value: Any) -> str:
    """A value in a complaint."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def word(value: Any) -> str:
    """A value as a file would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
