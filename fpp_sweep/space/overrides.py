"""`--set key=value`: one key of a document, as if the file had it so."""

from __future__ import annotations

from fpp_sweep.errors import InputError, unknown
from fpp_sweep.space.params import PARAM_KEYS
from fpp_sweep.space.rules import keys, shown
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import Node, of_plain, parse


def override(root: Node, assignment: str) -> None:
    """Set a key, or take it out where the value is `null`."""
    path, equals, value = assignment.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {assignment!r}: expected key=value, such as search.trials=20")
    where = f"--set {assignment}"
    head = path.partition(".")[0]
    if head not in keys(Space):
        raise InputError(f"{where}: {unknown('key', head, keys(Space))}")
    _put(root, path, of_plain(parse(value, where).plain(), where, path))


def _put(node: Node, path: str, new: Node) -> None:
    if isinstance(node.value, list):
        index, _, rest = path.partition(".")
        if not index.isdecimal() or int(index) >= len(node.value):
            raise InputError(f"{new.where}: {node.path} is a list of {len(node.value)}, which has no item {index!r}")
        if rest:
            _put(node.value[int(index)], rest, new)
        else:
            node.value[int(index)] = new
        return
    if node.value is None:
        node.value = {}
    if not isinstance(node.value, dict):
        raise InputError(f"{new.where}: {node.path} is {shown(node.value)}, which has no {path!r}")
    key = node.key_of(path) or _new_key(node, path)
    rest = path[len(key) + 1 :]
    if rest:
        child = node.value.setdefault(key, Node({}, new.where, f"{node.path}.{key}" if node.path else key))
        _put(child, rest, new)
    elif new.value is None:
        node.value.pop(key, None)
    else:
        node.value[key] = new


def _new_key(node: Node, path: str) -> str:
    """The key of a path that a mapping does not have yet; a parameter's key has dots, its own keys have none."""
    if not node.path:
        return path.partition(".")[0]
    stem, _, last = path.rpartition(".")
    return stem if node.path == "params" and last in PARAM_KEYS else path
