"""The flags that commands share, each declared once, and the `key=value` assignments that some are short for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fpp_sweep.cli.command import Parser
from fpp_sweep.cli.names import SWEEPS
from fpp_sweep.spec.config import EMBEDDED_LIMIT
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.names import listed_names

DATA = "model and data"
SETTINGS = "settings"
MACHINES = "machines"
RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag as the parser needs it."""

    group: str
    help: str
    metavar: str = ""  # a flag without one is a switch
    key: str = ""  # key of a space: the flag is short for `--set KEY=VALUE`
    is_text: bool = False  # the value is text, even if YAML would read a number or a list
    several: bool = False  # takes more than one value, and may be given again, which adds to the values
    type: Callable[[str], Any] | None = None
    default: Any = None


FLAGS: dict[str, Flag] = {
    "--model": Flag(
        group=DATA,
        key="work.model",
        is_text=True,
        metavar="MODEL",
        help="tiny (embedded, the default), NAME/TAG of open_clip, or NAME:/path/to/checkpoint",
    ),
    "--data-root": Flag(
        group=DATA, key="work.data_root", is_text=True, metavar="DIR", help="folder of the datasets in CoOp's layout"
    ),
    "--dataset-file": Flag(
        group=DATA, key="work.dataset_file", is_text=True, metavar="YAML", help="your own datasets (docs/datasets.md)"
    ),
    "--datasets": Flag(
        group=DATA,
        key="work.datasets",
        is_text=True,
        several=True,
        metavar="NAME",
        help="names, groups (tiny, fine_grained, ...), or NAME=FOLDER for your own images in class folders; "
        "default: tiny, with --data-root fine_grained",
    ),
    "--limit": Flag(
        group=DATA,
        key="work.limit",
        metavar="N",
        help=f"images per dataset; default: all, or {EMBEDDED_LIMIT} embedded ones",
    ),
    "--seed": Flag(
        group=DATA,
        key="work.seeds",
        several=True,
        metavar="N",
        help="seeds of views and pretraining; every trial runs once with each",
    ),
    "--trials": Flag(group=SETTINGS, key="search.trials", metavar="N", help="number of trials"),
    "--set": Flag(
        group=SETTINGS,
        several=True,
        metavar="KEY=VALUE",
        help="a setting of the trials, such as fpp.gamma2=0.3, or a key of the space, such as work.threads=1",
    ),
    "--plugin": Flag(
        group=SETTINGS,
        several=True,
        type=user_path,
        metavar="FILE",
        help="your own methods, penalties, metrics and samplers (docs/plugins.md)",
    ),
    "--workers": Flag(
        group=MACHINES,
        key="work.workers",
        metavar="N",
        help="processes that hold a model each; default: one for each GPU, or for each core without GPUs",
    ),
    "--address": Flag(
        group=MACHINES, metavar="ADDRESS", help="Ray cluster: auto or HOST:PORT; default: start Ray on this machine"
    ),
    "--verbose": Flag(group=MACHINES, default=False, help="show the output of Ray's workers"),
    "--out": Flag(
        group=RESULTS,
        type=user_path,
        default=SWEEPS,
        metavar="DIR",
        help="where the folder of results is made; default: %(default)s",
    ),
    "--name": Flag(group=RESULTS, metavar="NAME", help="name of that folder; default: from the input and the time"),
    "--tracking-uri": Flag(group=RESULTS, metavar="URI", help="MLflow store or server"),
}
RUN_FLAGS = (
    *("--model", "--data-root", "--dataset-file", "--datasets", "--limit", "--seed", "--set", "--plugin"),
    *("--workers", "--address", "--verbose", "--out", "--name", "--tracking-uri"),
)


def add_flags(options: Parser, *names: str, helps: Mapping[str, str] | None = None) -> None:
    """Add flags by name, each below the heading of its group; `helps` replaces the help of some of them."""
    helps = helps or {}
    groups: dict[str, Any] = {}
    for name in names:
        flag = FLAGS[name]
        if flag.group not in groups:
            groups[flag.group] = options.add_argument_group(flag.group)
        help_text = helps.get(name, flag.help)
        groups[flag.group].add_argument(name, help=help_text, **_argparse_options(flag))


def add_run_flags(options: Parser, helps: Mapping[str, str] | None = None) -> None:
    """Add the flags of every command that runs trials; `helps` replaces the help of some of them."""
    add_flags(options, *RUN_FLAGS, helps=helps)


def _argparse_options(flag: Flag) -> dict[str, Any]:
    options: dict[str, Any] = {"default": flag.default}
    if not flag.metavar:
        return options | {"action": "store_true"}
    options["metavar"] = flag.metavar
    if flag.type is not None:
        options["type"] = flag.type
    if flag.several:
        options |= {"nargs": "+", "action": "extend"}
    if flag.several and not flag.key:
        options["default"] = []
    return options


def overrides(args: argparse.Namespace) -> list[str]:
    """Return `key=value` for each flag that is short for a key, then the assignments of --set, which count more."""
    return [*_flag_assignments(args), *args.set]


def _flag_assignments(args: argparse.Namespace) -> dict[str, str]:
    """Return the assignments that flags are short for, each with the flag and its value as typed."""
    assignments = {}
    for name, flag in FLAGS.items():
        value = getattr(args, name.removeprefix("--").replace("-", "_"), None)
        if not flag.key or value is None:
            continue
        values = value if flag.several else [value]
        assignments[f"{flag.key}={_as_yaml(flag, values)}"] = f"{name} {' '.join(values)}"
    return assignments


def _as_yaml(flag: Flag, values: list[str]) -> str:
    """Return values as they stand in a space file."""
    if flag.is_text and flag.several:
        return json.dumps(listed_names(values))  # JSON is YAML
    if flag.is_text:
        return json.dumps(values[0])
    if flag.several:
        return f"[{', '.join(values)}]"
    return values[0]


@contextmanager
def flags_in_errors(args: argparse.Namespace) -> Iterator[None]:
    """Name a flag as it was typed in errors about the assignment that it is short for."""
    try:
        yield
    except InputError as error:
        message = str(error)
        for assignment, typed in _flag_assignments(args).items():
            prefix = f"--set {assignment}:"
            if message.startswith(prefix):
                raise InputError(f"{typed}:{message.removeprefix(prefix)}") from error
        raise
