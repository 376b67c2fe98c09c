"""Checks of dataclasses by the types of their fields, done by pydantic and reported as InputError.

A field's type says what its value must be: `int | None`, `Literal["val", "test"]`, or a type with pydantic's markers
such as `Annotated[int, Field(ge=1)]`. A class with the decorator `checked` checks and converts its fields when it is
built; `json_schema` describes the same types to editors.
"""

from __future__ import annotations

import functools
import json
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import ErrorDetails

from fpp_sweep.spec.errors import InputError, unknown

Item = TypeVar("Item")
Part = TypeVar("Part")
Items = TypeVar("Items", bound=Sequence[Any])

MAX_SHOWN = 80  # characters of a value in a message
MAX_NUMBER = 1e100  # largest magnitude of a number in a record; sums and products of a few such numbers are finite
MAX_WHOLE = 2**63 - 1  # largest magnitude of a whole number in a record; NumPy and SQLite hold no larger one
LARGEST = f"a number must not be beyond {MAX_NUMBER:g}, a whole one not beyond 2^63"

COMPUTED_DEFAULT: Any = None  # marks a field whose default `__post_init__` computes
STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")  # "3" is not a number, and true is not 1

# ------------------------------------------------------------ checking


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def checked(cls: type[Part]) -> type[Part]:
    """Make a frozen dataclass that checks and converts its fields by their types when it is built."""
    made: Any = pydantic_dataclass(cls, frozen=True, slots=True, kw_only=True, config=STRICT)
    check = made.__init__

    def check_and_set(self: Any, **values: Any) -> None:
        require_keys(values, keys(made))
        with _errors_as_input():
            check(self, **values)

    made.__init__ = check_and_set
    return cast(type[Part], made)


def build(cls: type[Part], values: Any) -> Part:
    """Return an object of a checked class from a mapping of its fields, or such an object."""
    if isinstance(values, cls):
        return values
    return cls(**as_mapping(values))


def part(cls: type[Any]) -> BeforeValidator:
    """Return the marker of a field that holds an object of a checked class, which may be given as a mapping."""
    return BeforeValidator(functools.partial(build, cls))


def checked_record(cls: type[Part], values: Any) -> Part:
    """Return an object of a plain dataclass, which checks its fields here only, from a mapping of them."""
    with _errors_as_input():
        found = _checking_class(cast(Any, cls))(**as_mapping(values))
    return cls(**{name: getattr(found, name) for name in keys(cls)})


@functools.cache
def _checking_class(cls: Any) -> Any:
    return pydantic_dataclass(cls, frozen=True, kw_only=True, config=STRICT)


def check_value(cls: type, name: str, value: Any) -> Any:
    """Return a value as a field of a class would hold it, checked; text may stand for numbers."""
    with _errors_as_input(name):
        return _adapter(cls, name).validate_python(value)


@functools.cache
def _adapter(cls: type, name: str) -> TypeAdapter[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return TypeAdapter(hints[name], config=ConfigDict(allow_inf_nan=False))


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON schema of each field of a checked class."""
    properties: dict[str, Any] = TypeAdapter(cls).json_schema()["properties"]
    for schema in properties.values():
        for key in ("title", "default"):
            schema.pop(key, None)
    return properties


# ------------------------------------------------------------ messages

_PROBLEMS = {  # by pydantic's type of error
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping such as {{key: value}}",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number",
    "int_type": "must be a whole number",
    "is_instance_of": "must be a list",
    "less_than_equal": "must be <= {le}",
    "mapping_type": "must be a mapping such as {{key: value}}",
    "sequence_str": "must be a list",
    "sequence_type": "must be a list",
    "string_pattern_mismatch": "must be text",
    "string_type": "must be text",
    "too_short": "must have at least {min_length} entry",
    "tuple_type": "must be a list",
    "unexpected_keyword_argument": "is not a key that is known here",
}


@contextmanager
def _errors_as_input(name: str = "") -> Iterator[None]:
    """Raise the first of pydantic's errors in the block, about a field of a name or an object, as ours."""
    try:
        yield
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
    else:
        return
    path = [str(step) for step in details["loc"] if step != "[key]"]  # the key of a mapping, as against its value
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InputError):  # raised by a function of this package
        raise InputError(cause.problem, _joined([*path, cause.key])) from None
    if details["type"] == "missing":
        raise InputError(f"needs the key {path.pop()!r}", _joined(path)) from None
    raise InputError(_problem(details, name), _joined(path)) from None


def _problem(details: ErrorDetails, name: str) -> str:
    value = details["input"]
    context = details.get("ctx", {})
    if details["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])  # pydantic gives them as text: 'val' or 'test'
        if isinstance(value, str):
            path = (name, *details["loc"])
            return unknown(str(path[-1]), value, choices).problem
        return f"must be one of {', '.join(choices)} ({shown(value)})"
    wanted = _PROBLEMS.get(details["type"], details["msg"])
    limits = {name: value_text(limit) for name, limit in context.items()}
    return f"{wanted.format(**limits)} ({shown(value)})"


def _joined(path: Sequence[str]) -> str:
    return ".".join(step for step in path if step)


def shown(value: Any) -> str:
    """Return a value as a message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "none"
    text = repr(value)
    if len(text) > MAX_SHOWN:
        return f"{text[: MAX_SHOWN - 3]}..."
    return text


def value_text(value: Any) -> str:
    """Return a value as a space file would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


# ------------------------------------------------------------ checks that objects make themselves


def require(condition: object, problem: str, key: str = "") -> None:
    """Raise InputError with a problem unless a condition holds."""
    if not condition:
        raise InputError(problem, key)


@contextmanager
def at_key(key: str, without: str = "") -> Iterator[None]:
    """Put a key before the keys of errors that the block raises; `without` is a key below that the user left out."""
    try:
        yield
    except InputError as error:
        below = error.key.removeprefix(without).removeprefix(".")
        raise InputError(error.problem, _joined([key, below])) from None


def is_plain_value(value: Any) -> bool:
    """Return True for text, a switch, none, and a number that is not too large."""
    if isinstance(value, float):
        return -MAX_NUMBER <= value <= MAX_NUMBER
    if isinstance(value, int):
        return -MAX_WHOLE <= value <= MAX_WHOLE
    return value is None or isinstance(value, str)


def known_name(kind: str, name: Any, names: Collection[str], listed: Collection[str] | None = None) -> str:
    """Return a name that is in a table; raise InputError with the nearest, or with those of `listed`, if it is not."""
    require(isinstance(name, str), f"must be text ({shown(name)})")
    if name not in names:
        raise unknown(kind, name, names, listed=listed)
    checked: str = name
    return checked


def require_distinct(items: Items) -> Items:
    """Return a sequence without repetitions; raise InputError for another one."""
    seen: set[Any] = set()
    for index, item in enumerate(items):
        require(item not in seen, f"{shown(item)} comes twice; take one out", str(index))
        seen.add(item)
    return items


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping whose keys are text; raise InputError for anything else."""
    require(isinstance(value, Mapping), f"must be a mapping such as {{key: value}} ({shown(value)})")
    require(all(isinstance(key, str) for key in value), "must have keys that are text")
    checked: Mapping[str, Any] = value
    return checked


def as_list(value: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list or tuple; raise InputError for anything else."""
    if isinstance(value, list | tuple):
        return value
    example = value  # the message suggests a list of the one value, if that makes sense
    if value is None or isinstance(value, Mapping):
        example = "..."
    raise InputError(f"must be a list, such as [{example}] ({shown(value)})")


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(as_list(value))


Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Several = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
UNIQUE = Field(json_schema_extra={"uniqueItems": True})
Distinct = Annotated[Several[Item], UNIQUE, AfterValidator(require_distinct)]
DistinctAndSome = Annotated[
    tuple[Item, ...], Field(min_length=1), UNIQUE, BeforeValidator(_as_tuple), AfterValidator(require_distinct)
]


def set_field(target: Any, name: str, value: Any) -> None:
    """Set a field of an object that is being built, frozen or not."""
    object.__setattr__(target, name, value)


def require_keys(values: Any, names: Collection[str]) -> None:
    """Raise InputError for anything but a mapping with some of these keys."""
    for key in as_mapping(values):
        if key not in names:
            raise InputError(unknown("key", key, names).problem, key)


def keys(cls: Any) -> list[str]:
    """Return the keys of a dataclass's fields."""
    return [entry.name for entry in fields(cls)]
