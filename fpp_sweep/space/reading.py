"""Reading search spaces (docs/spaces.md) and config files; errors name file, line and key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fpp_sweep.space.objectives import MAX_NAME, Constraint, Objective
from fpp_sweep.space.overrides import override
from fpp_sweep.space.params import PARAM_KEYS, Param
from fpp_sweep.space.settings import check_settings
from fpp_sweep.space.shipped import find_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.validation import keys
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import Node, of_plain, parse, read
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError

Goal = TypeVar("Goal", Objective, Constraint)


def load_space(path: Path | str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a YAML file, or the shipped space of a name such as `perturb`.

    An override is `dotted.key=value`, its value YAML, and `null` takes a key out: search.trials=20,
    work.datasets=[dtd, pets], params.fpp.gamma1.high=3.
    """
    path = find_space(path)
    return space_from(read(path, "search space"), path.stem, overrides)


def parse_space(text: str, where: str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a YAML text; errors name `where` as its file."""
    return space_from(parse(text, where), Path(where).stem, overrides)


def space_of(plain: Mapping[str, Any], where: str) -> Space:
    """Return the space of `Space.plain()`, as the record of a sweep holds it."""
    return space_from(of_plain(plain, where), Path(where).stem)


def space_from(root: Node, stem: str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a document; overrides change the document first."""
    if root.value is None:
        raise root.error("is empty; a search space has params or a grid, see docs/spaces.md")
    root.mapping()
    for assignment in overrides:
        override(root, assignment)
    with root.locating():
        values: dict[str, Any] = {"name": _name_of(stem)}
        for key, node in root.mapping(keys(Space)).items():
            values[key] = _value_of(key, node)
        return Space(**values)


def read_config(path: Path) -> dict[str, Any]:
    """Return settings by dotted key from a file with `config:`, such as a sweep's best/*.yaml or trials/*.json."""
    names: list[str] | None = ["config"]
    if path.suffix == ".json":  # a trial's record has more keys
        names = None
    entries = read(path, "config").mapping(names)
    if "config" not in entries:
        raise InputError(f"{path}: has no `config:`; a sweep's best/*.yaml and trials/*.json do")
    node = entries["config"]
    with node.locating():
        return check_settings(node.plain(), TrialConfig())


def _name_of(stem: str) -> str:
    """Return a file's name as the name of a space."""
    name = re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", stem).strip("-")
    return name[:MAX_NAME] or "space"


def _value_of(key: str, node: Node) -> Any:
    """Return the value of a key of a space."""
    if key == "params":
        return tuple(_param(name, child) for name, child in node.mapping().items())
    if key == "objectives":
        return tuple(_goal(Objective, item) for item in node.items())
    if key == "constraints":
        return tuple(_goal(Constraint, item) for item in node.items())
    if key == "search":
        return Search(**_fields(node, keys(Search)))
    if key == "work":
        return Work(**_fields(node, keys(Work)))
    return node.plain()


def _fields(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """Return the plain values of a mapping with some of these keys and no others."""
    return {key: child.plain() for key, child in node.mapping(names).items()}


def _param(key: str, node: Node) -> Param:
    """Return a parameter; a bare list is its choices."""
    if isinstance(node.value, list):
        return Param(key=key, choices=node.plain())
    return Param(key=key, **_fields(node, PARAM_KEYS))


def _goal(cls: type[Goal], node: Node) -> Goal:
    """Return an objective or a constraint; a bare word is its metric."""
    with node.locating():
        if isinstance(node.value, str):
            return cls(metric=node.value)
        values = _fields(node, keys(cls))
        if "metric" not in values:
            raise node.error("needs a metric, such as accuracy")
        return cls(**values)
