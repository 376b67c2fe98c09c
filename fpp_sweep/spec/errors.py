"""Exceptions that a command prints as one line. Any other exception is a bug of this package."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MAX_MESSAGE = 2_000  # characters; keys and names in a file may have any length
MAX_LISTED = 6  # names in a message
MAX_SIMILAR = 2  # equally similar names; more, such as trial-0001 to trial-0009, are no help
MIN_SIMILARITY = 0.8  # of `difflib`, between 0 and 1
MIN_SIMILARITY_OF_SHORT = 0.66  # tpd and tpt have 0.67
SHORT_NAME = 6  # letters
MIN_PREFIX = 2  # letters of a name that are enough to complete it


class InputError(ValueError):
    """Input that cannot be used. The message is one line, `WHERE: what is wrong (value); what to do`.

    >>> InputError("must be >= 1 (0)", "search.trials")
    InputError('search.trials: must be >= 1 (0)')
    """

    def __init__(self, problem: object, key: str = "") -> None:
        self.problem = str(problem)
        self.key = key  # dotted path of the value
        message = escaped(self.problem)
        if key:
            message = escaped(f"{key}: {self.problem}")
        if len(message) > MAX_MESSAGE:
            half = MAX_MESSAGE // 2
            message = f"{message[:half]} ... {message[-half:]}"
        super().__init__(message)


class DeviceError(InputError):
    """A device that cannot be used although torch supports its kind: it is absent, full or broken.

    Another device of the same kind may work.
    """


class ChangedDataError(InputError):
    """Data on a machine that are not those that a sweep began with; another machine may have them."""


class MachineError(OSError):
    """A failure of the machine, such as a full disk or a lost process; the input is not to blame."""

    @classmethod
    def of(cls, error: OSError, then: str = "go on with --resume") -> MachineError:
        """Return an error that names the file, the failed operation, the remedy, and what to do then."""
        if isinstance(error, cls):
            return error
        remedy = _remedy(error) or "see to it"
        return cls(f"{_file_and_reason(error)}; {remedy}, then {then}")


def problem_of_system(error: OSError) -> str:
    """Return an error of the operating system as `FILE: what is wrong; what to do`.

    >>> problem_of_system(PermissionError(13, "Permission denied", "notes.json"))
    'notes.json: Permission denied; allow this user to read and write it'
    """
    if isinstance(error, MachineError):
        return str(error)
    problem = _file_and_reason(error)
    remedy = _remedy(error)
    if remedy:
        return f"{problem}; {remedy}"
    return problem


def _file_and_reason(error: OSError) -> str:
    reason = error.strerror or message_in_one_line(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    return reason


def is_full_disk(error: OSError) -> bool:
    """Return whether the disk is full, or this user's part of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _remedy(error: OSError) -> str:
    """Return what to do about an error; empty if the error may have many causes."""
    if is_full_disk(error):
        return "make room"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "allow this user to read and write it"
    if error.errno == errno.ELOOP:
        return "remove the link"
    if error.errno == errno.ENOTDIR:
        return "move away what is there instead of a folder"
    if error.errno == errno.EROFS:
        return "make its file system writable, or name another folder"
    return ""


def escaped(text: str) -> str:
    r"""Return text in one line, with characters that would control a terminal written out.

    >>> print(escaped("caf\xe9\x1b[31m\n"))
    café\x1b[31m\n
    """
    if text.isprintable():
        return text
    shown = []
    for character in text:
        if character.isprintable():
            shown.append(character)
        else:
            shown.append(ascii(character)[1:-1])
    return "".join(shown)


# ------------------------------------------------------------ names that are not known


def unknown(kind: str, name: str, names: Iterable[str], listed: Iterable[str] | None = None) -> InputError:
    """Return an error for a name that is not in a table, with the names that were probably meant.

    If no name was probably meant, the error lists `listed`, by default all names.

    >>> unknown("method", "ctp", ["tpt", "ctpt", "otpt"])
    InputError("unknown method 'ctp', did you mean 'ctpt'?")
    >>> unknown("method", "coop", ["tpt", "ctpt", "otpt"])
    InputError("unknown method 'coop'; choose from ctpt, otpt, tpt")
    >>> unknown("plugin", "mine", [])
    InputError("unknown plugin 'mine': there is none")
    """
    names = sorted(set(names))
    suggestions = similar_names(name, names)
    if suggestions:
        quoted = [repr(suggestion) for suggestion in suggestions[:MAX_LISTED]]
        return InputError(f"unknown {kind} {name!r}, did you mean {' or '.join(quoted)}?")
    if listed is not None:
        names = sorted(set(listed))
    if not names:
        return InputError(f"unknown {kind} {name!r}: there is none")
    choices = ", ".join(names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        choices = f"{choices}, ... ({len(names)} in all)"
    return InputError(f"unknown {kind} {name!r}; choose from {choices}")


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that a misspelt name may stand for: the most similar ones, or else those that begin with it.

    The section of a setting (`fpp.`) may be missing.

    >>> similar_names("ViT-B/16", ["ViT-B-16", "ViT-B-32"]), similar_names("acc", ["accuracy", "aurc"])
    (['ViT-B-16'], ['accuracy'])
    >>> similar_names("lr", ["fpp.lr", "adapt.lr", "adapt.steps"])
    ['adapt.lr', 'fpp.lr']
    """
    names_by_word: dict[str, list[str]] = {}
    for candidate in names:
        for word in {candidate.lower(), candidate.lower().rpartition(".")[2]}:
            names_by_word.setdefault(word, []).append(candidate)
    cutoff = MIN_SIMILARITY if len(name) > SHORT_NAME else MIN_SIMILARITY_OF_SHORT
    close = get_close_matches(name.lower(), names_by_word, n=MAX_SIMILAR + 1, cutoff=cutoff)
    similar = [word for word in close if _similarity(name, word) == _similarity(name, close[0])]
    if 0 < len(similar) <= MAX_SIMILAR:
        return sorted(candidate for word in similar for candidate in names_by_word[word])
    beginnings = [word for word in names_by_word if len(name) >= MIN_PREFIX and word.startswith(name.lower())]
    return [candidate for word in sorted(beginnings, key=len) for candidate in names_by_word[word]]


def _similarity(first: str, second: str) -> float:
    return SequenceMatcher(None, second, first.lower()).ratio()


def type_and_message(error: BaseException) -> str:
    """Return an exception's type and message in one line.

    >>> type_and_message(ValueError("no\\nnumber")), type_and_message(ValueError())
    ('ValueError: no number', 'ValueError')
    """
    message = " ".join(str(error).split())
    if not message:
        return type(error).__name__
    return f"{type(error).__name__}: {message}"


def message_in_one_line(error: BaseException) -> str:
    """Return an exception's whole message in one line, or else its type.

    >>> message_in_one_line(ValueError("no\\nnumber")), message_in_one_line(ValueError())
    ('no number', 'ValueError')
    """
    return " ".join(str(error).split()) or type(error).__name__


def readable_message(error: BaseException) -> str:
    """Return an InputError's message, which is written for the user; of other exceptions type and message."""
    if isinstance(error, InputError):
        return str(error)
    return type_and_message(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text that is not empty, or else its type.

    >>> first_line(ValueError("\\n the cause\\nand a trace")), first_line(ValueError())
    ('the cause', 'ValueError')
    """
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__
