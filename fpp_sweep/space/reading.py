"""What people write: search spaces in YAML (docs/spaces.md) with `--set`, and configs; a complaint names the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.overrides import override
from fpp_sweep.space.params import PARAM_KEYS, Param
from fpp_sweep.space.rules import keys
from fpp_sweep.space.settings import check_settings
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import Node, of_plain, parse, read
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError

Goal = TypeVar("Goal", Objective, Constraint)


def load_space(path: Path | str, overrides: Sequence[str] = ()) -> Space:
    """Read a file; an override is `dotted.key=value`, its value YAML, and `null` takes a key out.

    Examples: search.trials=20, work.datasets=[dtd, pets], params.fpp.gamma1.high=3.
    """
    path = Path(path)
    return space_from(read(path, "search space"), path.stem, overrides)


def parse_space(text: str, where: str, overrides: Sequence[str] = ()) -> Space:
    """The same of a text; `where` is the file that complaints name."""
    return space_from(parse(text, where), Path(where).stem, overrides)


def space_of(plain: Mapping[str, Any], where: str) -> Space:
    """The same of `Space.plain()`, as a record of a sweep holds it."""
    return space_from(of_plain(plain, where), Path(where).stem, ())


def read_config(path: Path) -> dict[str, Any]:
    """Settings by dotted key from a file with `config:`, as a sweep's report writes its best ones."""
    known = None if path.suffix == ".json" else ["config"]  # a trial's record has more
    entries = read(path, "config").mapping(known)
    if "config" not in entries:
        raise InputError(f"{path}: has no `config:`; a sweep's best/*.yaml and trials/*.json do")
    node = entries["config"]
    with node.locating():
        return check_settings(node.plain(), TrialConfig())


def space_from(root: Node, stem: str, overrides: Sequence[str] = ()) -> Space:
    """The same of a document that is read already; the overrides change it."""
    if root.value is None:
        raise root.error("is empty; a search space has params or a grid, see docs/spaces.md")
    root.mapping()
    for assignment in overrides:
        override(root, assignment)
    with root.locating():
        top = root.mapping(keys(Space))
        values = {key: _READERS.get(key, Node.plain)(node) for key, node in top.items()}
        return Space(**{"name": _name_of(stem), **values})


def _name_of(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", stem).strip("-")[:64] or "space"


def _fields(node: Node, known: Iterable[str]) -> dict[str, Any]:
    return {key: child.plain() for key, child in node.mapping(known).items()}


def _param(key: str, node: Node) -> Param:
    """A bare list is choices."""
    return Param(key=key, **({"choices": node.plain()} if isinstance(node.value, list) else _fields(node, PARAM_KEYS)))


def _goal(cls: type[Goal], node: Node) -> Goal:
    """A word is a metric."""
    values = {"metric": node.value} if isinstance(node.value, str) else _fields(node, keys(cls))
    if "metric" not in values:
        raise node.error("needs a metric")
    with node.locating():
        return cls(**values)


_READERS: Mapping[str, Callable[[Node], Any]] = {
    "params": lambda node: tuple(_param(key, child) for key, child in node.mapping().items()),
    "objectives": lambda node: tuple(_goal(Objective, item) for item in node.items()),
    "constraints": lambda node: tuple(_goal(Constraint, item) for item in node.items()),
    "search": lambda node: Search(**_fields(node, keys(Search))),
    "work": lambda node: Work(**_fields(node, keys(Work))),
}
