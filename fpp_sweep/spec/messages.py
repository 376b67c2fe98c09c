"""Text of messages: one printable line, commands, counts with their nouns, notes and stages on stderr."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import threading
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
    """Return a command as this shell can run it, in one line: without its script on the PATH, by this interpreter."""
    if not command.isprintable():  # few are not, and a page has a command for each trial
        command = " ".join(_shell_word(word) for word in shlex.split(command))
    name, _, words = command.partition(" ")
    if _is_own_script(name, os.environ.get("PATH")):
        return command
    return f"{shlex.quote(sys.executable)} -m {MODULES[name]} {words}"


@cache
def _is_own_script(name: str, path: str | None) -> bool:
    """Return True if a shell with this PATH finds the script of this interpreter's own environment."""
    script = shutil.which(name, path=path)
    own_scripts = os.path.realpath(os.path.dirname(sys.executable))
    return script is not None and os.path.realpath(os.path.dirname(script)) == own_scripts


def _shell_word(word: str) -> str:
    r"""Return a word as bash and zsh read it, without characters that would control a terminal.

    >>> print(_shell_word("it's"), _shell_word("it's\n"))
    'it'"'"'s' $'it\'s\n'
    """
    if word.isprintable():
        return shlex.quote(word)
    shown = []
    for character in word.replace("\\", "\\\\").replace("'", "\\'"):
        if character.isprintable():
            shown.append(character)
        elif character.isascii():
            shown.append(escaped(character))
        else:
            shown += [f"\\x{byte:02x}" for byte in _bytes_of(character)]
    return f"$'{''.join(shown)}'"


def _bytes_of(character: str) -> bytes:
    """Return the bytes of a character in UTF-8; a name of a file may hold a byte that is not UTF-8."""
    try:
        return os.fsencode(character)
    except UnicodeEncodeError:  # half of a surrogate pair, in a record
        return character.encode("utf-8", "surrogatepass")


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


def keep_output_printable() -> None:
    """Let no warning, no log message of a library and no traceback control the terminal or show a secret."""
    warnings.showwarning = _show_warning
    logging.setLogRecordFactory(_printable_record)
    sys.excepthook = _show_traceback
    threading.excepthook = _show_traceback_of_thread
    sys.unraisablehook = _show_unraisable


def _show_traceback_of_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
        _show_traceback(hook.exc_type, hook.exc_value, hook.exc_traceback)


def _show_unraisable(hook: sys.UnraisableHookArgs) -> None:
    """Show an error that cannot be raised, such as one in `__del__`."""
    if hook.exc_value is not None:
        _show_traceback(hook.exc_type, hook.exc_value, hook.exc_traceback)


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for line in "".join(traceback.format_exception(kind, error, trace)).splitlines():
        print(printable(line), file=sys.stderr)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **_more: Any) -> None:
    note(f"{category.__name__}: {message}")


def _printable_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = logging.LogRecord(*args, **kwargs)
    with suppress(Exception):  # arguments that do not fit the message, which logging reports itself
        record.msg = _printable_lines(record.getMessage())
        record.args = None
    if record.exc_info:
        record.exc_text = _printable_lines("".join(traceback.format_exception(*record.exc_info)))
        record.exc_info = None
    if record.stack_info:
        record.stack_info = _printable_lines(record.stack_info)
    return record


def _printable_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())


def note(text: object) -> None:
    """Print a line beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)


@cache
def warn_once(message: str) -> None:
    """Log a warning, once in a process, whatever the number of trials and shards."""
    _log.warning(message)
