"""Reading search spaces (docs/spaces.md) and config files; errors name file, line and key.

An assignment `key=value` of a command line changes one key of the document, as if the file had said so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fpp_sweep.space.objectives import MAX_NAME, Constraint, Objective
from fpp_sweep.space.params import PARAM_KEYS, Param
from fpp_sweep.space.settings import check_settings
from fpp_sweep.space.shipped import find_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import Node, join, of_plain, parse, read
from fpp_sweep.spec.config import TrialConfig, settings
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.validation import keys, shown

Criterion = TypeVar("Criterion", Objective, Constraint)


def load_space(path: Path | str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a YAML file, or the shipped space of a name such as `perturb`.

    An override is `dotted.key=value`, its value YAML, and `null` takes a key out: search.trials=20,
    work.datasets=[dtd, pets], params.fpp.gamma1.high=3.

    >>> space = load_space("perturb", ["search.trials=40", "params.fpp.class_var=null"])
    >>> space.search.trials, [param.key for param in space.params]
    (40, ['fpp.gamma1', 'fpp.gamma2', 'fpp.context_var'])
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
    if not isinstance(root.value, dict):  # the file may be a link to any other, so its text is not quoted
        raise root.error("is no search space, which has params or a grid; see docs/spaces.md")
    for assignment in overrides:
        _override(root, assignment)
    with root.locating():
        values: dict[str, Any] = {"name": _name_of(stem)}
        for key, node in root.mapping(keys(Space)).items():
            values[key] = _value_of(key, node)
        return Space(**values)


def read_config(path: Path) -> dict[str, Any]:
    """Return settings by dotted key from a file with `config:`, such as a sweep's best/*.yaml or trials/*.json."""
    root = read(path, "config")
    if not isinstance(root.value, dict) or "config" not in root.value:  # any file may be named, so none is quoted
        raise InputError(f"{path}: has no `config:`; a sweep's best/*.yaml and trials/*.json do")
    if path.suffix != ".json":  # a trial's record has more keys
        root.mapping(["config"])
    node = root.value["config"]
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
        return tuple(_criterion(Objective, item) for item in node.items())
    if key == "constraints":
        return tuple(_criterion(Constraint, item) for item in node.items())
    if key == "search":
        return Search(**_fields(node, keys(Search)))
    if key == "work":
        return Work(**_fields(node, keys(Work)))
    return node.plain()


def _fields(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """Return the plain values of a mapping with some of these keys and no others, by the names of their fields."""
    return {key: child.plain() for key, child in node.mapping(names).items()}


def _param(key: str, node: Node) -> Param:
    """Return a parameter; a bare list is its choices."""
    if isinstance(node.value, list):
        return Param(key=key, choices=node.plain())
    return Param(key=key, **_fields(node, PARAM_KEYS))


def _criterion(cls: type[Criterion], node: Node) -> Criterion:
    """Return an objective or a constraint; a bare word is its metric."""
    with node.locating():
        if isinstance(node.value, str):
            return cls(metric=node.value)
        values = _fields(node, keys(cls))
        if "metric" not in values:
            raise node.error("needs a metric, such as accuracy")
        return cls(**values)


# ------------------------------------------------------------ assignments of a command line


def _override(root: Node, assignment: str) -> None:
    """Set a key of the document, or remove it if the value is `null`.

    A setting of the trials (`fpp.gamma2=0.3`) gets one value for all trials: it moves from `params` to `base`.
    """
    path, equals, value = assignment.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {assignment!r}: expected key=value, such as fpp.gamma2=0.3 or search.trials=20")
    where = f"--set {assignment}"
    if not value.strip():
        raise InputError(f"{where}: has no value; give one, or null, which takes {path} out")
    had_params = _has_params(root)
    if path in settings():
        _require_outside_grid(root, path, where)
        _remove_param(root, path)
        path = f"base.{path}"
    elif path.partition(".")[0] not in keys(Space):
        raise InputError(f"{where}: {unknown('key', path, _known_keys())}")
    _put(root, path, of_plain(parse(value, where).plain(), where, path))
    if had_params and not _has_params(root):
        root.where = f"{root.where} with {where}"  # an error then does not say that the file has nothing to search


def _has_params(root: Node) -> bool:
    params = root.value.get("params")
    return params is not None and bool(params.value)


def _known_keys() -> list[str]:
    """Return the keys of a space and of its sections, and the settings of a trial."""
    valid_keys = [*keys(Space), *settings()]
    valid_keys += [f"search.{key}" for key in keys(Search)]
    valid_keys += [f"work.{key}" for key in keys(Work)]
    return valid_keys


def _require_outside_grid(root: Node, setting: str, where: str) -> None:
    """Raise InputError if a grid has values of the setting, which would replace the one that is set."""
    grid = root.value.get("grid")
    if grid is None or not isinstance(grid.value, list):
        return
    for block in grid.value:
        if not isinstance(block.value, dict):
            continue
        for names in block.value:
            if setting in [name.strip() for name in names.split(",")]:
                raise InputError(f"{where}: the grid has values of {setting}; change them there, or take {setting} out")


def _remove_param(root: Node, setting: str) -> None:
    params = root.value.get("params")
    if params is not None and isinstance(params.value, dict):
        params.value.pop(setting, None)


def _put(node: Node, path: str, new: Node) -> None:
    """Put a value at a path below a node."""
    if isinstance(node.value, list):
        _put_in_list(node, path, new)
        return
    if node.value is None:
        node.value = {}
    if not isinstance(node.value, dict):
        raise InputError(f"{new.where}: {node.path} is {shown(node.value)}, which has no {path!r}")
    key = node.first_key_of(path) or _new_key(node, path)
    rest = path[len(key) + 1 :]
    if rest:
        child = node.value.setdefault(key, Node({}, new.where, join(node.path, key)))
        _put(child, rest, new)
    elif new.value is None:
        node.value.pop(key, None)
    else:
        node.value[key] = new
        if node.path.startswith("params.") and new.where not in node.where:  # bounds are checked together
            node.where = f"{node.where} with {new.where}"


def _put_in_list(node: Node, path: str, new: Node) -> None:
    index, _, rest = path.partition(".")
    if not index.isdecimal() or int(index) >= len(node.value):
        raise InputError(f"{new.where}: {node.path} is a list of {len(node.value)}, which has no item {index!r}")
    if rest:
        _put(node.value[int(index)], rest, new)
    else:
        node.value[int(index)] = new


def _new_key(node: Node, path: str) -> str:
    """Return the key that a mapping lacks: a parameter's key has dots, the keys of a parameter have none."""
    if node.path in ("", "search"):
        return path.partition(".")[0]
    stem, _, last = path.rpartition(".")
    if node.path == "params" and last in PARAM_KEYS:
        return stem
    return path
