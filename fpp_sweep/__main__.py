"""All commands behind one name: `fpp-sweep COMMAND ...`, or `python -m fpp_sweep COMMAND ...`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from fpp_sweep.spec.errors import unknown
from fpp_sweep.spec.version import VERSION

COMMANDS = {
    "init": "write a commented search space, and a dataset file for your own images",
    "tune": "search for the best settings: start or resume a sweep",
    "evaluate": "evaluate methods and prompts",
    "reproduce": "the paper's tables and figures",
    "show": "list sweeps; show a sweep or a trial; write a page again",
    "import": "add predictions of other programs to a sweep",
    "compare": "compare sweeps, or trials of a sweep",
    "steer": "add a point to a sweep, stop a trial, ask another space",
    "sync": "bring MLflow up to date from a sweep's folder",
    "doctor": "check machine, cluster, model and datasets before a sweep",
    "cache": "list and prune the cache of image features and finished tasks",
}
MODULES = {"reproduce": "reproduce.__main__"}  # modules of commands that are packages


def main(words: Sequence[str]) -> None:
    """Call the command that the first word names with the words after it."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
    elif words[0] == "--version":
        print(f"fpp_sweep {VERSION}")
    elif words[0] in COMMANDS:
        import_module(module_of(words[0])).main(words[1:])
    else:
        raise unknown("command", words[0], COMMANDS)


def module_of(command: str) -> str:
    return f"fpp_sweep.{MODULES.get(command, command)}"


def usage() -> str:
    lines = ["usage: fpp-sweep COMMAND ...", ""]
    for name, purpose in COMMANDS.items():
        lines.append(f"    {name:<10} {purpose}")
    lines += ["", "fpp-sweep COMMAND --help describes a command", "fpp-sweep --version prints the version"]
    return "\n".join(lines)


def command() -> None:
    """Run the console script."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fpp_sweep.cli import run  # an interrupt ends the process quietly until `run` can report it

    signal.signal(signal.SIGINT, handler)
    run(partial(main, sys.argv[1:]))


if __name__ == "__main__":
    command()
