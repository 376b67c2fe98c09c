"""The command line: parser, exit statuses, flags and names of sweeps that all commands share.

Bad input is one line and status 2, an interrupt is status 130. Each flag is declared once, and some are short for
assignments `key=value`. Every command that takes a folder takes its name as well.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fpp_sweep.spec.config import EMBEDDED_LIMIT
from fpp_sweep.spec.errors import InputError, problem_of_system, unknown
from fpp_sweep.spec.files import existing_part, listed_names, user_path
from fpp_sweep.spec.messages import SCRIPT, printable, show_warning
from fpp_sweep.spec.process import set_thread_defaults, terminable
from fpp_sweep.spec.progress import Screen
from fpp_sweep.spec.version import VERSION

PACKAGE = "fpp_sweep"


class Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong arguments like all other bad input: in one line, with exit status 2."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)  # a recorded command has each flag in one form
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists the options")


def parser(module: str, description: str, usage: str | None = None) -> Parser:
    """Return the parser of the command in a module; help texts name the command as the user typed it.

    `usage` is the command's arguments in brief; without it, the help text lists all of them.
    """
    program = program_name(module, sys.argv[0])
    if usage is not None:
        usage = f"{program} {usage}"
    command_parser = Parser(
        prog=program,
        usage=usage,
        description=description.replace(f"python -m {module}", program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command_parser.add_argument("--version", action="version", version=f"{PACKAGE} {VERSION}")
    return command_parser


def typed_words(argv: Sequence[str] | None) -> list[str]:
    """Return the words after the command's name: those that `main` was called with, or else those of this process."""
    if argv is None:
        return sys.argv[1:]
    return list(argv)


def program_name(module: str, typed: str) -> str:
    """Return the words that start the command in a module, from the first word that the user typed.

    >>> program_name("fpp_sweep.tune", "/env/bin/fpp-sweep")
    'fpp-sweep tune'
    >>> program_name("fpp_sweep.tune", "/env/lib/fpp_sweep/__main__.py")
    'python -m fpp_sweep tune'
    >>> program_name("fpp_sweep.tune", "/env/lib/fpp_sweep/tune.py")
    'python -m fpp_sweep.tune'
    """
    command = module.removeprefix(f"{PACKAGE}.")
    path = Path(typed)
    if path.name == SCRIPT:
        return f"{SCRIPT} {command}"
    if path.name == "__main__.py" and path.parent.name == PACKAGE:
        return f"python -m {PACKAGE} {command}"
    return f"python -m {module}"


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command's main function and exit with its status; a bug still shows its traceback."""
    set_thread_defaults()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # let all encodings print all text
    warnings.showwarning = show_warning
    try:
        with terminable():
            main()
    except InputError as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        end_children()
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output has ended, as in `... | head`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        print(f"error: {printable(problem_of_system(error))}", file=sys.stderr)
        sys.exit(1)
    except (FloatingPointError, MemoryError) as error:  # a number that is not finite, or a machine that fails
        message = printable(error) or "out of memory"  # a MemoryError has no text
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def terminal_width() -> int:
    """Return the columns of the terminal; in a pipe or a file, more than any table needs."""
    return Screen(sys.stdout).columns()


def end_children() -> None:
    """Kill the processes that read images: they have nothing to save, and may be blocked in a read."""
    for child in multiprocessing.active_children():
        child.kill()


# ------------------------------------------------------------ names of sweeps and reproductions

SWEEPS = Path("sweeps")  # where `tune` and `evaluate` write unless --out says otherwise
REPRODUCTIONS = Path("reproductions")  # where `reproduce` writes
SWEEP_FILE = "sweep.json"  # in the folder of every sweep
REPRODUCTION_FILE = "reproduction.json"


def find_sweep(word: str) -> Path:
    """Return the folder of a sweep, from its path or its name in `sweeps`."""
    for path in (user_path(word), SWEEPS / word):
        if is_sweep(path):
            return path
    names = [path.name for path in sweeps_below(SWEEPS)]
    if names and not _is_path(word):
        raise unknown("sweep", word, names)
    if os.path.exists(user_path(word)):
        raise InputError(f"{word} is not a sweep's folder (it has no {SWEEP_FILE}); `show` lists the sweeps")
    raise InputError(f"{word}: there is no such sweep; `show` lists the sweeps")


def find_folder(word: str) -> Path:
    """Return the folder of a sweep, of a reproduction or of several sweeps, from its path or its name."""
    for path in (user_path(word), SWEEPS / word, REPRODUCTIONS / word):
        if is_sweep(path) or is_reproduction(path) or sweeps_below(path):
            return path
    names = [path.name for path in sweeps_below(SWEEPS)]
    names += [path.parent.name for path in REPRODUCTIONS.glob(f"*/{REPRODUCTION_FILE}")]
    if "/" in word and not os.path.lexists(user_path(word)):
        raise InputError(f"{word}: does not exist; `show` lists the sweeps")
    if _is_path(word) or not names:
        raise InputError(
            f"{word}: neither a sweep (it has no {SWEEP_FILE}), nor a reproduction (no {REPRODUCTION_FILE}), nor a "
            "folder of sweeps; give such a folder, or a name in sweeps/ or reproductions/"
        )
    raise unknown("sweep", word, names)


def is_sweep(path: Path) -> bool:
    return os.path.isfile(path / SWEEP_FILE)


def is_sweep_or_path(word: str) -> bool:
    """Return whether a word names a sweep, or can only be meant as the path of one."""
    return is_sweep(SWEEPS / word) or _is_path(word)


def is_reproduction(path: Path) -> bool:
    return os.path.isfile(path / REPRODUCTION_FILE)


def sweeps_below(root: Path) -> list[Path]:
    """Return the folders of the sweeps directly below a folder, by name."""
    if not os.path.isdir(root):  # a word that is too long for a path, for example
        return []
    return sorted({path.parent for path in root.glob(f"*/{SWEEP_FILE}")})


def _is_path(word: str) -> bool:
    return "/" in word or os.path.exists(word)


def require_writable(root: Path) -> None:
    """Raise InputError for a folder that cannot be written or created, or that is part of a sweep.

    The folder is created with the first sweep in it. A sweep deletes and rewrites files in its folder.
    """
    resolved = Path(os.path.realpath(root))
    for folder in (resolved, *resolved.parents):
        if is_sweep(folder):
            raise InputError(f"--out {root}: lies in the folder of the sweep {folder}; name a folder outside it")
    existing = existing_part(root)
    if not existing.is_dir():
        raise InputError(f"--out {root}: {existing} is not a folder; name a folder that can be written")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--out {root}: the folder cannot be written; name one that can")


# ------------------------------------------------------------ flags

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
RUN_FLAGS = (  # every command that runs trials has these flags
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
