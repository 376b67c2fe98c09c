"""Text of messages: one printable line, commands, counts with their nouns, notes and stages on stderr."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from fpp_sweep.spec.errors import escaped

_log = logging.getLogger(__name__)

SCRIPT = "fpp-sweep"  # the console script of pyproject.toml
MODULES = {SCRIPT: "fpp_sweep", "mlflow": "mlflow"}  # console scripts of an environment, and the modules that they run


def printable(value: object) -> str:
    """Return one line of text that a terminal only shows."""
    return escaped(str(value))


def command_line(command: str, words: Iterable[str]) -> str:
    """Return a command as any shell could run it.

    >>> command_line("show", ["my sweep"])
    "fpp-sweep show 'my sweep'"
    """
    return shlex.join([SCRIPT, command, *words])


def runnable(command: str) -> str:
    """Return a command in one line as this shell can run it: without its script on the PATH, by this interpreter."""
    name, _, words = escaped(command).partition(" ")
    if _is_own_script(name, os.environ.get("PATH")):
        return f"{name} {words}"
    return f"{shlex.quote(sys.executable)} -m {MODULES[name]} {words}"


@cache
def _is_own_script(name: str, path: str | None) -> bool:
    """Return True if a shell with this PATH finds the script of this interpreter's own environment."""
    script = shutil.which(name, path=path)
    own_scripts = os.path.realpath(os.path.dirname(sys.executable))
    return script is not None and os.path.realpath(os.path.dirname(script)) == own_scripts


def runnable_record(recorded: str) -> str:
    """Return the command of a sweep's record as this shell can run it, with its words quoted anew.

    The record of a received folder may hold anything.
    """
    try:
        words = shlex.split(recorded)
    except ValueError:  # a quotation without its end, which no shell runs
        return shlex.quote(recorded)
    quoted = shlex.join(words)
    if not words or words[0] not in MODULES:
        return quoted
    return runnable(quoted)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "trial"), plural(2, "trial")
    ('1 trial', '2 trials')
    """
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def stage(text: object) -> None:
    """Print what begins now and may take long."""
    print(f"{printable(text)} ...", file=sys.stderr, flush=True)


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **_more: Any) -> None:
    """Show a warning of a library as a note; set this as `warnings.showwarning`."""
    note(f"{category.__name__}: {message}")


def note(text: object) -> None:
    """Print a line beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)


@cache
def warn_once(message: str) -> None:
    """Log a warning, once in a process, whatever the number of trials and shards."""
    _log.warning(message)


def readable_size(size: float) -> str:
    """Return a number of bytes as text of about three digits.

    >>> readable_size(4_200_000)
    '4.2 MB'
    """
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
