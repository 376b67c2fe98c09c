"""All commands behind one name: `fpp-sweep COMMAND ...`, or `python -m fpp_sweep COMMAND ...`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "tune": "search FPP's settings: begin a sweep, or go on with one",
    "evaluate": "evaluate methods and prompts on this machine",
    "reproduce": "the paper's tables and figures",
    "report": "make the page of a sweep or a reproduction again",
    "show": "what a sweep, or one of its trials, looks like now",
    "list": "the sweeps of a folder",
    "compare": "sweeps against each other, or trials of one",
    "steer": "add a point to a sweep, stop a trial, change its budget",
    "sync": "bring MLflow up to date from a sweep's folder",
    "datasets": "which datasets are there, and what is missing",
    "cache": "list and prune the cache of image features and finished tasks",
    "doctor": "what would break or spoil a sweep, before it does",
}
ELSEWHERE = {"reproduce": "reproduce.__main__", "report": "report.__main__", "list": "show"}  # than in its own module


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        lines = (f"    {name:<10} {what}\n" for name, what in COMMANDS.items())
        print(f"usage: fpp-sweep COMMAND ...\n\n{''.join(lines)}\nfpp-sweep COMMAND --help tells more of each")
        return
    if words[0] not in COMMANDS:
        from fpp_sweep.spec.errors import unknown

        raise unknown("command", words[0], COMMANDS)
    module = import_module(f"fpp_sweep.{ELSEWHERE.get(words[0], words[0])}")
    (module.list_sweeps if words[0] == "list" else module.main)(words[1:])


def command() -> None:
    """The console script."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as long as nobody is there to say it in a line
    from fpp_sweep.cli.command import run

    signal.signal(signal.SIGINT, before)
    run(main)


if __name__ == "__main__":
    command()
