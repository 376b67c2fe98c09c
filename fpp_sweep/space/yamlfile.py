"""YAML whose values know their file and line, so that errors can name them.

Values are those of YAML 1.2: `1e-3` is a number and `on` a word, which YAML 1.1 has the other way round. Tags, aliases
and keys that come twice are refused: a file that is read makes no objects, and does not grow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.spec.errors import InputError, similar_names, unknown
from fpp_sweep.spec.files import read_at_most
from fpp_sweep.spec.validation import MAX_DEPTH, as_list, as_mapping

_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class LineError(InputError):
    """An error whose message names file and line."""


@dataclass(slots=True)
class Node:
    """A value, where it was read (`file:line`), and the dotted path that leads to it."""

    value: Any  # None, bool, int, float, str, list[Node] or dict[str, Node]
    where: str
    path: str = ""
    text: str = ""  # text of a scalar as the file writes it: a number keeps its last digits

    def error(self, problem: object) -> LineError:
        """Return an error that names the value's line and path."""
        parts = [self.where, self.path, str(problem)]
        return LineError(": ".join(part for part in parts if part))

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Let errors of the block name the line of their key below this value."""
        try:
            yield
        except LineError:
            raise
        except InputError as error:
            raise self._find(error.key).error(error.problem) from None

    def mapping(self, names: Iterable[str] | None = None) -> dict[str, Node]:
        """Return the entries of a mapping; with `names`, raise InputError for any other key."""
        with self.locating():
            as_mapping(self.value)
        entries: dict[str, Node] = self.value
        if names is None:
            return entries
        allowed_names = set(names)
        for key, node in entries.items():
            if key not in allowed_names:
                paths = [join(self.path, name) for name in allowed_names]
                raise LineError(f"{node.where}: {unknown('key', node.path, paths)}")
        return entries

    def items(self) -> list[Node]:
        """Return the items of a list."""
        with self.locating():
            return list(as_list(self.value))

    def first_key_of(self, path: str) -> str | None:
        """Return the key of this mapping that a dotted path begins with; the key may have dots, too."""
        matching = [key for key in self.value if f"{path}.".startswith(f"{key}.")]
        return max(matching, key=len, default=None)

    def _find(self, path: str) -> Node:
        """Return the value at a path, or the nearest one around it.

        A step that the document does not have is skipped: a short form such as a list of choices leaves out `choices`.
        """
        if not path or not isinstance(self.value, dict | list):
            return self
        step, _, rest = path.partition(".")
        child: Node | None = None
        if isinstance(self.value, list):
            if step.isdecimal() and int(step) < len(self.value):
                child = self.value[int(step)]
        else:
            key = self.first_key_of(path)
            if key is not None:
                child = self.value[key]
                rest = path[len(key) + 1 :]
        if child is None:
            return self._find(rest)
        return child._find(rest)

    def plain(self) -> Any:
        """Return the value without lines and paths."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


# ------------------------------------------------------------ reading and writing


def read(path: Path, kind: str) -> Node:
    """Return a file's one document."""
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
    return parse(text, str(path))


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


def parse(text: str, file: str) -> Node:
    """Return the one document of a text; an empty one has the value None.

    >>> node = parse("a: {b: 1e-3}", "x.yaml").value["a"].value["b"]
    >>> node.value, node.where, node.path
    (0.001, 'x.yaml:1', 'a.b')
    """
    try:
        tree = _Loader(text).get_single_node()
        if tree is None:
            return Node(None, f"{file}:1")
        return _node(tree, file, "", None)
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
        raise InputError(f"{file}: not valid YAML: nested too deeply, beyond {MAX_DEPTH} levels") from None


def of_plain(value: Any, where: str, path: str = "") -> Node:
    """Return plain values, such as those of a record, as a document."""
    if isinstance(value, Mapping):
        entries = {key: of_plain(inner, where, join(path, key)) for key, inner in value.items()}
        return Node(entries, where, path)
    if isinstance(value, list | tuple):
        items = [of_plain(item, where, join(path, str(index))) for index, item in enumerate(value)]
        return Node(items, where, path)
    return Node(value, where, path)


def dump(value: Any) -> str:
    """Return YAML that `parse` reads back to the same value: words that look like its numbers are quoted.

    >>> dump({"a": 0.001, "b": "1e-3", "c": "on"})
    "a: 0.001\\nb: '1e-3'\\nc: on\\n"
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def config_text(config: Mapping[str, Any]) -> str:
    """Return a trial's settings as `evaluate --config` reads them.

    >>> config_text({"method": "tpt"})
    'config:\\n  method: tpt\\n'
    """
    if not config:
        return "config: {}\n"
    entries = []
    for key, value in config.items():
        if isinstance(value, list | dict):  # cannot be the key of a cache
            entries.append(_config_entry(key, value))
        elif type(value) is float and math.isfinite(value):  # NumPy writes its own in another form
            entries.append(_float_entry(key, value))
        else:
            entries.append(_cached_entry(key, value))
    return "config:\n" + "".join(entries)


def _config_entry(key: str, value: Any) -> str:
    """Return the lines of one setting, indented below `config`."""
    document = {"config": {key: value}}
    try:
        text: str = yaml.dump(document, Dumper=_FastDumper, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError:  # half of a surrogate pair, which libyaml does not escape
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text.removeprefix("config:\n")


def _float_entry(key: str, value: float) -> str:
    """Return what `_config_entry` returns: PyYAML would take half of the time for the searched settings of a sweep."""
    key_text = _cached_entry(key, 0.5).removesuffix("0.5\n")  # PyYAML quotes it if it must
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # YAML 1.1 reads 1e-05 as text
    return f"{key_text}{text}\n"


# the trials of a sweep share most settings; typed: 1, 1.0 and True are equal
_cached_entry = lru_cache(maxsize=10_000, typed=True)(_config_entry)


def join(path: str, name: str) -> str:
    """Return the dotted path of a name below a path."""
    if not path:
        return name
    return f"{path}.{name}"


# ------------------------------------------------------------ PyYAML


class _Loader(yaml.SafeLoader):
    """The composer of a document's tree; `_scalar` makes the values."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name and type
    depth = 0  # levels around the node that is composed

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
        if self.depth > MAX_DEPTH:
            raise RecursionError  # before Python raises it, here or in a reader of the values
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name and type

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Return text as a scalar; line breaks that only Unicode has are escaped, since other styles fold them."""
    style = None
    if set(text) & {"\x85", "\u2028", "\u2029"}:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)

# libyaml's dumper where PyYAML has it: a page has the settings of every trial, and the other dumper is slow
_FastDumper: Any = type("_FastDumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
# text that only YAML 1.2 reads as a number, such as 1e3, is quoted
_FastDumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT.pattern})$"), None)

for _tag, _pattern in (
    ("tag:yaml.org,2002:null", "~?|null|Null|NULL"),
    ("tag:yaml.org,2002:bool", "true|True|TRUE|false|False|FALSE"),
    ("tag:yaml.org,2002:int", _INT.pattern),
    ("tag:yaml.org,2002:float", _FLOAT.pattern),
):
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})$"), None)


def _node(tree: yaml.Node, file: str, path: str, line: int | None) -> Node:
    """Return a tree of PyYAML's as ours; the line of a value is that of its key."""
    if line is None:
        line = tree.start_mark.line + 1
    where = f"{file}:{line}"
    if isinstance(tree, yaml.MappingNode):
        return Node(_entries(tree, file, path), where, path)
    if isinstance(tree, yaml.SequenceNode):
        children = [_node(item, file, join(path, str(index)), None) for index, item in enumerate(tree.value)]
        return Node(children, where, path)
    assert isinstance(tree, yaml.ScalarNode)
    try:
        return Node(_scalar(tree), where, path, tree.value)
    except ValueError:  # Python converts no whole number of more digits than `sys.get_int_max_str_digits()`
        raise InputError(f"{where}: {path}: is a number of {len(tree.value)} digits; write a shorter one") from None


def _entries(tree: yaml.MappingNode, file: str, path: str) -> dict[str, Node]:
    entries: dict[str, Node] = {}
    for key, value in tree.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(f"{file}:{line}: a key must be a word, not a {key.id}")
        name = _join_surrogates(key.value)
        if name in entries:
            first = entries[name].where.rpartition(":")[2]
            raise InputError(f"{file}:{line}: key {join(path, name)!r} comes twice, first in line {first}")
        entries[name] = _node(value, file, join(path, name), line)
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
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
