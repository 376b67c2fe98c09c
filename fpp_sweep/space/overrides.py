"""`--set key=value`, and the flags that are short for a key: they set one key of a document as if its file had it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from fpp_sweep.space.params import PARAM_KEYS
from fpp_sweep.space.space import Space
from fpp_sweep.space.validation import keys, shown
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import Node, join, of_plain, parse
from fpp_sweep.spec.config import PRESETS, settings
from fpp_sweep.spec.errors import InputError, unknown

FLAGS: dict[str, tuple[str, dict[str, Any]]] = {  # the key that a flag is short for, and argparse's description
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
        {"metavar": "TIME", "help": "budget, such as 30m or 2h; trials that have begun are finished"},
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
    """Add the flags of these names; `changes` are a command's own descriptions."""
    for name in names:
        _, description = FLAGS[name]
        options.add_argument(f"--{name.replace('_', '-')}", **{**description, **changes.get(name, {})})


def from_flags(args: argparse.Namespace) -> Iterator[str]:
    """Yield what the flags of a command line say as overrides."""
    for flag, (key, _) in FLAGS.items():
        value = getattr(args, flag, None)
        if value == "":
            raise InputError(f"--{flag.replace('_', '-')} is empty")
        if isinstance(value, list):
            yield f"{key}=[{', '.join(value)}]"
        elif value is not None:
            yield f"{key}={value}"


def override(root: Node, assignment: str) -> None:
    """Set a key of a document, or take it out if the value is `null`; a setting of a trial is set in `base`."""
    path, equals, value = assignment.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {assignment!r}: expected key=value, such as search.trials=20")
    where = f"--set {assignment}"
    if path in settings():
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
