"""Search spaces as people write them: a YAML file (docs/spaces.md) and `--set`; a complaint names the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.overrides import override
from fpp_sweep.space.params import PARAM_KEYS, Param
from fpp_sweep.space.rules import keys, list_of, text
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work, require_plugins
from fpp_sweep.space.yamlfile import Node, of_plain, parse, read

Goal = TypeVar("Goal", Objective, Constraint)


def load_space(path: Path | str, overrides: Sequence[str] = (), loaded: Iterable[str] | None = None) -> Space:
    """Read a file; an override is `dotted.key=value`, its value YAML, and `null` takes a key out.

    Examples: search.trials=20, work.datasets=[dtd, pets], params.fpp.gamma1.high=3. A space that needs other plugins
    than those that are `loaded` is refused, unless that is none.
    """
    path = Path(path)
    return _space(read(path, "search space"), path.stem, overrides, loaded)


def parse_space(text: str, where: str, overrides: Sequence[str] = (), loaded: Iterable[str] | None = None) -> Space:
    """The same of a text; `where` is the file that complaints name."""
    return _space(parse(text, where), Path(where).stem, overrides, loaded)


def space_of(plain: Mapping[str, Any], where: str, loaded: Iterable[str] | None = None) -> Space:
    """The same of `Space.plain()`, as a record of a sweep holds it."""
    return _space(of_plain(plain, where), Path(where).stem, (), loaded)


def _space(root: Node, stem: str, overrides: Sequence[str], loaded: Iterable[str] | None) -> Space:
    if root.value is None:
        raise root.error("is empty; a search space has params or a grid, see docs/spaces.md")
    root.mapping()
    for assignment in overrides:
        override(root, assignment)
    with root.locating():
        top = root.mapping(keys(Space))
        if loaded is not None and "work" in top:
            work = _fields(top["work"], Work)
            require_plugins(list_of(text()).check(work.get("plugins", ())), loaded)  # they have names that follow
        values = {key: _READERS.get(key, Node.plain)(node) for key, node in top.items()}
        return Space(**{"name": _name_of(stem), **values})


def _name_of(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", stem).strip("-")[:64] or "space"


def _fields(node: Node, cls: type) -> dict[str, Any]:
    return {key: child.plain() for key, child in node.mapping(keys(cls)).items()}


def _params(node: Node) -> tuple[Param, ...]:
    return tuple(Param(key=key, **_range_or_choices(child)) for key, child in node.mapping().items())


def _range_or_choices(node: Node) -> dict[str, Any]:
    """The fields of a parameter; a bare list is choices."""
    if isinstance(node.value, list):
        return {"choices": node.plain()}
    return {key: child.plain() for key, child in node.mapping(PARAM_KEYS).items()}


def _objectives(node: Node) -> tuple[Objective, ...]:
    return tuple(_goal(Objective, item) for item in node.items())


def _constraints(node: Node) -> tuple[Constraint, ...]:
    return tuple(_goal(Constraint, item) for item in node.items())


def _goal(cls: type[Goal], node: Node) -> Goal:
    """A word is a metric."""
    values = {"metric": node.value} if isinstance(node.value, str) else _fields(node, cls)
    if "metric" not in values:
        raise node.error("needs a metric")
    with node.locating():
        return cls(**values)


_READERS: Mapping[str, Callable[[Node], Any]] = {
    "params": _params,
    "objectives": _objectives,
    "constraints": _constraints,
    "search": lambda node: Search(**_fields(node, Search)),
    "work": lambda node: Work(**_fields(node, Work)),
}
