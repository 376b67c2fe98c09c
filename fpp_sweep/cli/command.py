"""The parser and the exit status of every command: bad input is one line and status 2, an interrupt is status 130."""

from __future__ import annotations

import argparse
import io
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fpp_sweep.spec.errors import InputError, problem_of_system
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
