"""YAML documents that know the file and line of each value, so that errors can name them.

Values are those of YAML 1.2: `1e-3` is a number and `on` a word, which YAML 1.1 has the other way round. Tags, aliases
and keys that come twice are refused: a file that is read makes no objects, and does not grow.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.spec.errors import InputError, similar_names
from fpp_sweep.spec.files import read_at_most

MAX_DIGITS = 4_000  # Python converts few more; a longer number is infinite
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class LineError(InputError):
    """An error whose message names file and line."""


@dataclass(slots=True)
class Document:
    """Plain values, and where errors place them: by dotted path, `file:line` and the path that errors name."""

    value: Any  # None, bool, int, float, str, list or dict
    places: dict[str, tuple[str, str]] = field(default_factory=dict)

    def error(self, key: str, problem: object) -> LineError:
        """Return an error at the line of a key, or else of the nearest value around it."""
        path = key
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        where, name = self.places[path]
        rest = key[len(path) :].removeprefix(".")
        if not rest.isdecimal():  # an index that the file lacks is that of a value without a list around it
            name = join(name, rest)
        return LineError(": ".join(part for part in (where, name, str(problem)) if part))

    @contextmanager
    def locating(self, path: str = "") -> Iterator[None]:
        """Let errors of the block, whose keys are below a path, name their line."""
        try:
            yield
        except LineError:
            raise
        except InputError as error:
            raise self.error(join(path, error.key), error.problem) from None

    def use_places(self, path: str, of: str) -> None:
        """Let errors below a path name the places of another one, of which the path's value is made."""
        for known, place in list(self.places.items()):
            if f"{known}.".startswith(f"{of}."):
                self.places[path + known[len(of) :]] = place

    def copy(self) -> Document:
        return copy.deepcopy(self)


# ------------------------------------------------------------ reading and writing


def read(path: Path, kind: str, verbatim: str = "") -> Document:
    """Return a file's one document; see `parse`."""
    try:
        content = read_at_most(path)
    except IsADirectoryError:
        raise InputError(f"{kind} {path} is a folder; give the file") from None
    except FileNotFoundError:
        raise InputError(f"{kind} {path} does not exist{_similar_file(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{kind} {path} cannot be read ({reason}); give another file") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8 text (byte {content[error.start]:#04x})") from None
    return parse(text, str(path), verbatim)


def _similar_file(path: Path) -> str:
    """Return what to do about a missing file: the file beside it whose name is similar, or another one."""
    try:
        names = [file.name for file in path.parent.glob(f"*{path.suffix}")]
    except (OSError, ValueError):
        names = []
    similar = similar_names(path.stem, [Path(name).stem for name in names])
    if not similar:
        return "; give another file"
    return f", did you mean {path.with_name(similar[0] + path.suffix)}?"


def parse(text: str, file: str, verbatim: str = "") -> Document:
    """Return the one document of a text; an empty one has the value None.

    Numbers below a key `verbatim` stay text, so that 8.50 keeps its last digit.

    >>> document = parse("a: {b: 1e-3}", "x.yaml")
    >>> document.value, document.places["a.b"]
    ({'a': {'b': 0.001}}, ('x.yaml:1', 'a.b'))
    """
    try:
        tree = _Loader(text).get_single_node()
        reader = _Reader(file, verbatim)
        if tree is None:
            return Document(None, {"": (f"{file}:1", "")})
        value = reader.value_of(tree, "", tree.start_mark.line + 1)
        return Document(value, reader.places)
    except yaml.MarkedYAMLError as error:
        line = 1
        if error.problem_mark:
            line = error.problem_mark.line + 1
        raise InputError(f"{file}:{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "reason", None) or "unreadable"
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise InputError(f"{file}:{line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise InputError(f"{file}: not valid YAML: nested too deeply") from None


def of_plain(value: Any, where: str) -> Document:
    """Return plain values, such as those of a record, as a document; errors name `where` as their place."""
    return Document(copy.deepcopy(value), {"": (where, "")})


def config_text(config: Mapping[str, Any]) -> str:
    """Return a trial's settings as `evaluate --config` reads them.

    >>> config_text({"method": "tpt"})
    'config:\\n  method: tpt\\n'
    """
    document = {"config": dict(config)}
    try:
        text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError:  # half of a surrogate pair, which libyaml does not escape
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def join(path: str, name: str) -> str:
    """Return the dotted path of a name below a path; either may be empty."""
    return f"{path}.{name}".strip(".")


# ------------------------------------------------------------ PyYAML


class _Loader(yaml.SafeLoader):
    """The composer of a document's tree; `_scalar` makes the values."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name and type

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        tag = getattr(event, "tag", None)
        if tag is not None:
            problem = f"tag {tag.replace('tag:yaml.org,2002:', '!!')} is not allowed here"
        elif isinstance(event, yaml.AliasEvent):
            problem = f"alias *{event.anchor} is not allowed here; write the value out"
        if problem is not None:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


# libyaml's dumper where PyYAML has it: a page has the settings of every trial, and the other dumper is slow
_Dumper: Any = type("_Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
# text that only YAML 1.2 reads as a number, such as 1e3, is quoted
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT.pattern})$"), None)


@dataclass(slots=True)
class _Reader:
    """Values of a tree of PyYAML, with their places."""

    file: str
    verbatim: str
    places: dict[str, tuple[str, str]] = field(default_factory=dict)

    def value_of(self, tree: yaml.Node, path: str, line: int) -> Any:
        """Return the value of a tree; the line of an entry is that of its key."""
        self.places[path] = (f"{self.file}:{line}", path)
        if isinstance(tree, yaml.MappingNode):
            return self._entries(tree, path)
        if isinstance(tree, yaml.SequenceNode):
            items = []
            for index, item in enumerate(tree.value):
                items.append(self.value_of(item, join(path, str(index)), item.start_mark.line + 1))
            return items
        assert isinstance(tree, yaml.ScalarNode)
        value = _scalar(tree)
        if isinstance(value, int | float) and self.verbatim and self.verbatim in path.split("."):
            return tree.value
        return value

    def _entries(self, tree: yaml.MappingNode, path: str) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key, value in tree.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{self.file}:{line}: a key must be a word, not a {key.id}")
            name = _join_surrogates(key.value)
            inner = join(path, name)
            if name in entries:
                first = self.places[inner][0].rpartition(":")[2]
                raise InputError(f"{self.file}:{line}: key {inner!r} comes twice, first in line {first}")
            entries[name] = self.value_of(value, inner, line)
        return entries


def _join_surrogates(text: str) -> str:
    """Return text in which each surrogate pair is one character: JSON, which is YAML, escapes some characters so."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _scalar(tree: yaml.ScalarNode) -> Any:
    """Return the value of a word, by YAML 1.2's rules."""
    text = _join_surrogates(tree.value)
    if tree.style is not None:  # quoted, or a block of text
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= MAX_DIGITS:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
