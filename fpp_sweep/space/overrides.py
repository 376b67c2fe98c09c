"""Assignments `key=value` of a command line: each changes one key of a document, as if the file had said so."""

from __future__ import annotations

from fpp_sweep.space.params import PARAM_KEYS
from fpp_sweep.space.space import Space
from fpp_sweep.space.validation import keys, shown
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import Node, join, of_plain, parse
from fpp_sweep.spec.config import settings
from fpp_sweep.spec.errors import InputError, unknown


def override(root: Node, assignment: str) -> None:
    """Set a key of the document, or remove it if the value is `null`.

    A setting of the trials (`fpp.gamma2=0.3`) gets one value for all trials: it moves from `params` to `base`.
    """
    path, equals, value = assignment.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {assignment!r}: expected key=value, such as fpp.gamma2=0.3 or search.trials=20")
    where = f"--set {assignment}"
    if path in settings():
        _require_outside_grid(root, path, where)
        _remove_param(root, path)
        path = f"base.{path}"
    elif path.partition(".")[0] not in keys(Space):
        raise InputError(f"{where}: {unknown('key', path, _known_keys())}")
    _put(root, path, of_plain(parse(value, where).plain(), where, path))


def _known_keys() -> list[str]:
    """Return the keys of a space and of its sections, and the settings of a trial."""
    known = [*keys(Space), *settings()]
    known += [f"search.{key}" for key in keys(Search)]
    known += [f"work.{key}" for key in keys(Work)]
    return known


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
    key = node.key_of(path) or _new_key(node, path)
    rest = path[len(key) + 1 :]
    if rest:
        child = node.value.setdefault(key, Node({}, new.where, join(node.path, key)))
        _put(child, rest, new)
    elif new.value is None:
        node.value.pop(key, None)
    else:
        node.value[key] = new


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
