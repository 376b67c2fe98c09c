"""Text of messages: one printable line without secrets, counts with their nouns, notes and stages on stderr."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable

from fpp_sweep.spec.errors import escaped

SCRIPT = "fpp-sweep"  # the console script of pyproject.toml
NOTIFY = "search.notify="  # how a setting begins that may hold a secret


def masked(text: str) -> str:
    """Without what addresses in it hide: what stands before the last @, or behind a question mark.

    What a page is told behind a # is no secret.

    >>> masked("postgresql://me:secret@db/mlflow?sslpassword=secret"), masked("http://me:secret@host/#/runs?view=1")
    ('postgresql://***@db/mlflow?***', 'http://***@host/#/runs?view=1')
    """
    for hidden, shown in ((r"://[^?#]*\?.*@.*", "://***"), (r"://.*@", "://***@"), (r"(://[^?#]*)\?.*", r"\1?***")):
        text = re.sub(rf"(?s)(?<!sqlite){hidden}", shown, text)  # a file has no secret
    return text


def printable(text: object) -> str:
    """One line that anybody may see, whatever it is made from."""
    return masked(escaped(str(text)))


def command_line(command: str, words: Iterable[str]) -> str:
    """Return a command as it is recorded: as any shell could run it, without secrets.

    >>> command_line("tune", ["--set", "search.notify=curl https://hooks/secret"])
    "fpp-sweep tune --set 'search.notify=***'"
    """
    shown = (f"{NOTIFY}***" if word.startswith(NOTIFY) else masked(word) for word in words)
    return shlex.join([SCRIPT, command, *shown])


def runnable(recorded: str) -> str:
    """Return a recorded command as this shell can run it: without `fpp-sweep` on the PATH, by this interpreter."""
    script = shutil.which(SCRIPT)
    own_scripts = os.path.realpath(os.path.dirname(sys.executable))
    if script is not None and os.path.realpath(os.path.dirname(script)) == own_scripts:
        return recorded
    return f"{shlex.quote(sys.executable)} -m fpp_sweep{recorded.removeprefix(SCRIPT)}"


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def stage(text: object) -> None:
    """What begins now and may take long."""
    print(f"{printable(text)} ...", file=sys.stderr, flush=True)


def note(text: object) -> None:
    """A line beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)
