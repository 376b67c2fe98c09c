"""Text of messages: one printable line without secrets, counts with their nouns, notes and stages on stderr."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any

from fpp_sweep.spec.errors import escaped

_log = logging.getLogger(__name__)

SCRIPT = "fpp-sweep"  # the console script of pyproject.toml
MODULES = {SCRIPT: "fpp_sweep", "mlflow": "mlflow"}  # console scripts of an environment, and the modules that they run
NOTIFY = "search.notify="  # the beginning of an override that may hold a secret

# ends of the names of environment variables
SECRET_NAMES = ("PASSWORD", "TOKEN", "SECRET", "SECRET_ACCESS_KEY", "API_KEY")
MIN_SECRET = 6  # characters; a shorter value would occur in any text

# user and password before @, and a query after ?, of any address but a file's (sqlite); after # nothing is secret
_SECRETS = (
    (r"(?s)(?<!sqlite)://[^?#]*\?.*@.*", "://***"),  # an @ in the query: the password had a question mark
    (r"(?s)(?<!sqlite)://.*@", "://***@"),
    (r"(?s)(?<!sqlite)(://[^?#]*)\?.*", r"\1?***"),
)


def masked(text: str) -> str:
    """Return text without the passwords and queries of addresses in it, and without secrets of the environment.

    >>> masked("postgresql://me:secret@db/mlflow?sslpassword=secret"), masked("http://me:secret@host/#/runs?view=1")
    ('postgresql://***@db/mlflow?***', 'http://***@host/#/runs?view=1')
    """
    if "://" in text:  # else no pattern fits, and a search takes longer than this test
        for pattern, replacement in _SECRETS:
            text = re.sub(pattern, replacement, text)
    for secret in _secrets_of_environment():
        text = text.replace(secret, "***")
    return text


def _secrets_of_environment() -> list[str]:
    secrets = []
    for name in os.environ:  # values are decoded one by one, and a page masks ten thousand texts
        if name.endswith(SECRET_NAMES) and len(os.environ[name]) >= MIN_SECRET:
            secrets.append(os.environ[name])
    return secrets


def masked_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, without secrets."""
    return "\n".join(masked(line) for line in text.split("\n"))


def printable(value: object) -> str:
    """Return one line of text that a terminal only shows and that holds no password."""
    return masked(escaped(str(value)))


def command_line(command: str, words: Iterable[str]) -> str:
    """Return a command as it is recorded: as any shell could run it, without secrets.

    >>> command_line("tune", ["--set", "search.notify=curl https://hooks/secret"])
    "fpp-sweep tune --set 'search.notify=***'"
    """
    shown = [SCRIPT, command]
    for word in words:
        if word.startswith(NOTIFY):
            shown.append(f"{NOTIFY}***")
        else:
            shown.append(masked(word))
    return shlex.join(shown)


def runnable(recorded: str) -> str:
    """Return a recorded command as this shell can run it: without its script on the PATH, by this interpreter."""
    name, _, words = recorded.partition(" ")
    script = shutil.which(name)
    own_scripts = os.path.realpath(os.path.dirname(sys.executable))
    if script is not None and os.path.realpath(os.path.dirname(script)) == own_scripts:
        return recorded
    return f"{shlex.quote(sys.executable)} -m {MODULES[name]} {words}"


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


def keep_output_printable() -> None:
    """Let no warning, no log message of a library and no traceback control the terminal or show a secret."""
    warnings.showwarning = _show_warning
    logging.setLogRecordFactory(_printable_record)
    sys.excepthook = _show_traceback


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for line in "".join(traceback.format_exception(kind, error, trace)).splitlines():
        print(printable(line), file=sys.stderr)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **_more: Any) -> None:
    note(f"{category.__name__}: {message}")


def _printable_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = logging.LogRecord(*args, **kwargs)
    with suppress(Exception):  # arguments that do not fit the message, which logging reports itself
        record.msg = "\n".join(printable(line) for line in record.getMessage().splitlines())
        record.args = None
    return record


def note(text: object) -> None:
    """Print a line beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)


@cache
def warn_once(message: str) -> None:
    """Log a warning, once in a process, whatever the number of trials and shards."""
    _log.warning(message)
