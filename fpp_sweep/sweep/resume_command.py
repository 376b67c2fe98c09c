"""The command that resumes a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.names import SWEEPS
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.state import is_abandoned


def command_that_continues(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the command that resumes the sweep; empty if it runs, has come to its end, or no command is known."""
    if info.state != "interrupted" and not is_abandoned(folder, info):
        return ""
    return resume_command(folder, info)


def resume_command(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the sweep's recorded command, changed so that it resumes the sweep; empty if no command is known.

    The record of a received folder may hold anything, so words are quoted anew.
    """
    try:
        words = shlex.split(info.command)
    except ValueError:  # a quotation that does not end: no command of this package's
        return ""
    if info.group or not words:  # the command of a reproduction continues it; of a library call no command is known
        return shlex.join(words)
    # the folder may have been copied, moved or renamed since the command was recorded
    words = _with_value(words, "--name", folder.path.name)
    recorded_root = _value_of(words, "--out") or str(SWEEPS)
    if Path(recorded_root).resolve() != folder.path.parent.resolve():
        words = _with_value(words, "--out", str(folder.path.parent))
    if "--resume" not in words:
        words.append("--resume")
    return shlex.join(words)


def _value_of(words: Sequence[str], flag: str) -> str:
    """Return the value of a flag; empty if the flag is missing."""
    for index, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
        if word == flag and index + 1 < len(words):
            return words[index + 1]
    return ""


def _with_value(words: Sequence[str], flag: str, value: str) -> list[str]:
    """Return the words of a command with a flag's value replaced, or with the flag added."""
    changed = list(words)
    for index, word in enumerate(words):
        if word.startswith(f"{flag}="):
            changed[index] = f"{flag}={value}"
            return changed
        if word == flag:
            changed[index + 1 : index + 2] = [value]
            return changed
    return [*changed, flag, value]
