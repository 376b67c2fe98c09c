"""`--set key=value`, and the flags that are short for a key: one key of a document, as if the file had it so."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from fpp_sweep.space.params import PARAM_KEYS
from fpp_sweep.space.rules import keys, shown
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import Node, of_plain, parse
from fpp_sweep.spec.config import PRESETS
from fpp_sweep.spec.errors import InputError, unknown

FLAGS: dict[str, tuple[str, dict[str, Any]]] = {  # short for a key, and how they are told
    "model": ("work.model", {"help": "tiny (embedded), NAME/TAG of open_clip, or NAME:/path/to/checkpoint"}),
    "data_root": ("work.data_root", {"metavar": "DIR", "help": "folder of the datasets in CoOp's layout"}),
    "dataset_file": ("work.dataset_file", {"metavar": "YAML", "help": "datasets of your own"}),
    "datasets": (
        "work.datasets",
        {"nargs": "+", "metavar": "NAME", "help": "names or groups: tiny, fine_grained, ..."},
    ),
    "limit": ("work.limit", {"metavar": "N", "help": "images per dataset"}),
    "seed": ("work.seeds", {"nargs": "+", "metavar": "N", "help": "every trial runs once for each"}),
    "trials": ("search.trials", {"metavar": "N", "help": "budget"}),
    "wall_clock": (
        "search.wall_clock",
        {"metavar": "TIME", "help": "budget, such as 30m or 2h; begun trials are finished"},
    ),
    "search_split": (
        "search.split",
        {"choices": ("val", "test"), "help": "test: the paper's practice; the sweep is tagged with it"},
    ),
    "workers": (
        "work.workers",
        {"metavar": "N", "help": "processes with a model each; default: one for each GPU, else for each core"},
    ),
    "on_bad_image": (
        "work.on_bad_image",
        {"choices": ("fail", "skip"), "help": "skip: leave it out, and count it; default: fail"},
    ),
    "preset": ("preset", {"choices": tuple(PRESETS), "help": "paper, or code, where they disagree (docs/config.md)"}),
}


def add_flags(options: argparse.ArgumentParser, *names: str, **changes: dict[str, Any]) -> None:
    """The flags of these names; `changes` are what a command tells otherwise."""
    for name in names:
        told = {**FLAGS[name][1], **changes.get(name, {})}
        options.add_argument(f"--{name.replace('_', '-')}", **told)


def from_flags(args: argparse.Namespace) -> Iterator[str]:
    """What a command line says by flags of its own."""
    for flag, (key, _) in FLAGS.items():
        value = getattr(args, flag, None)
        if isinstance(value, list):
            yield f"{key}=[{', '.join(value)}]"
        elif value == "":
            raise InputError(f"--{flag.replace('_', '-')} is empty")
        elif value is not None:
            yield f"{key}={value}"


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
    if node.path in ("", "search"):
        return path.partition(".")[0]
    stem, _, last = path.rpartition(".")
    return stem if node.path == "params" and last in PARAM_KEYS else path
