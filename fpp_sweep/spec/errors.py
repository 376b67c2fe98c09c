"""Exceptions that are told in one line: bad input, and a machine that fails; what else is raised is our bug."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable

LONGEST = 2_000  # characters of a message: a file may have keys and names of any length


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one line: where, what, and what would do.

    >>> InputError("must be >= 1, got 0", "search.trials")
    InputError('search.trials: must be >= 1, got 0')
    """

    def __init__(self, problem: object, key: str = "") -> None:
        message = escaped(f"{key}: {problem}" if key else str(problem))
        half = LONGEST // 2
        super().__init__(message if len(message) <= LONGEST else f"{message[:half]} ... {message[-half:]}")
        self.problem = str(problem)
        self.key = key  # dotted: of the value that cannot be used


def escaped(text: str) -> str:
    r"""One line that a terminal only shows: characters that would control it are written out.

    >>> print(escaped("caf\xe9\x1b[31m\n"))
    café\x1b[31m\n
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class MachineError(OSError):
    """The machine failed, such as a full disk or a process that is gone: no verdict on what was asked for."""

    @classmethod
    def of(cls, error: OSError) -> MachineError:
        """What a system call was refused, where, and what would do."""
        if isinstance(error, cls):
            return error
        what = os.strerror(error.errno) if error.errno else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in what
        where = f"{error.filename}: " if error.filename else ""
        return cls(f"{where}{what}; {'make room' if full else 'see to it'}, then go on with --resume")


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for a name that is not in a table, with the nearest name that is.

    >>> unknown("method", "ctp", ["tpt", "ctpt", "otpt"])
    InputError("unknown method 'ctp', did you mean 'ctpt'? known: ctpt, otpt, tpt")
    """
    names = sorted(set(known))
    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f", did you mean {lower[close[0]]!r}?" if close else ";"
    listed = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")
    return InputError(f"unknown {kind} {name!r}{hint} known: {listed}")
