"""Text of messages: one printable line without secrets, counts with their nouns, notes and stages on stderr."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable

from fpp_sweep.spec.errors import escaped

NOTIFY = "search.notify="  # the beginning of an override that may hold a secret

# user and password before @, and a query after ?, of any address but a file's (sqlite); after # nothing is secret
_SECRETS = (
    (r"(?s)(?<!sqlite)://[^?#]*\?.*@.*", "://***"),  # an @ in the query: the password had a question mark
    (r"(?s)(?<!sqlite)://.*@", "://***@"),
    (r"(?s)(?<!sqlite)(://[^?#]*)\?.*", r"\1?***"),
)


def masked(text: str) -> str:
    """Return text without the passwords and queries of addresses in it.

    >>> masked("postgresql://me:secret@db/mlflow?sslpassword=secret"), masked("http://me:secret@host/#/runs?view=1")
    ('postgresql://***@db/mlflow?***', 'http://***@host/#/runs?view=1')
    """
    for pattern, replacement in _SECRETS:
        text = re.sub(pattern, replacement, text)
    return text


def printable(value: object) -> str:
    """Return one line of text that a terminal only shows and that holds no password."""
    return masked(escaped(str(value)))


def command_line(module: str, words: Iterable[str]) -> str:
    """Return a command as it is printed and recorded.

    >>> command_line("fpp_sweep.tune", ["--set", "search.notify=curl https://hooks/secret"])
    "python -m fpp_sweep.tune --set 'search.notify=***'"
    """
    shown = ["python", "-m", module]
    for word in words:
        if word.startswith(NOTIFY):
            shown.append(f"{NOTIFY}***")
        else:
            shown.append(masked(word))
    return shlex.join(shown)


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


def note(text: object) -> None:
    """Print a line beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)
