"""All commands behind one name: `fpp-sweep COMMAND ...`, or `python -m fpp_sweep COMMAND ...`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {  # each is `python -m fpp_sweep.COMMAND`, too
    "tune": "search FPP's settings: a sweep, or going on with one",
    "evaluate": "evaluate methods and prompts on this machine",
    "reproduce": "the paper's tables and figures",
    "report": "make the page of a sweep or a reproduction again",
    "show": "what a sweep, or one of its trials, looks like now",
    "list": "the sweeps of a folder",
    "sync": "bring MLflow up to date from a sweep's folder",
    "datasets": "which datasets are there, and what is missing",
    "cache": "list and prune the cache of image features",
    "doctor": "what would break or spoil a sweep, before it does",
}


def main(argv: Sequence[str] | None = None) -> None:
    from fpp_sweep.errors import InputError, unknown
    from fpp_sweep.version import VERSION

    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return
    if words[0] == "--version":
        print(VERSION)
        return
    if words[0] not in COMMANDS:
        raise InputError(f"{unknown('command', words[0], COMMANDS)} (--help lists them)")
    name = f"fpp_sweep.{words[0]}"
    module = import_module(f"{name}.__main__" if words[0] in ("reproduce", "report") else name)
    module.main(words[1:])


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"    {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return "\n".join(["usage: fpp-sweep COMMAND ...", "", *lines, "", "fpp-sweep COMMAND --help tells more of each."])


def command() -> None:
    """The console script."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as long as nobody is there to say it in a line
    from fpp_sweep import cli

    signal.signal(signal.SIGINT, before)
    cli.run(main)


if __name__ == "__main__":
    command()
