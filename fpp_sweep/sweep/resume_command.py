"""The command of a sweep: as it is recorded, and as it resumes the sweep."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.names import REPRODUCTIONS, SWEEPS, is_reproduction
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.state import is_abandoned
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.messages import command_line, runnable

MASKED_NOTIFY = "search.notify=***"  # the recorded form of the command to notify with, which is a secret


def recorded_command(command: str, words: Sequence[str]) -> str:
    """Return a command line as the sweep's record has it: without secrets and without --resume."""
    return command_line(command, [word for word in words if word != "--resume"])


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
    if not words:  # a library call began the sweep
        return ""
    words = without_notify(words)
    if info.group and not is_reproduction(folder.path.parent):  # a table that was taken out of its reproduction
        return ""
    if info.group:
        return shlex.join(_for_folder(words, folder.path.parent, REPRODUCTIONS))  # the same command continues it
    words = _for_folder(words, folder.path, SWEEPS)
    if "--resume" not in words:
        words.append("--resume")
    return shlex.join(words)


def print_next_command(folder: SweepFolder, command: str, words: Sequence[str], event: str) -> None:
    """Print what ended the run, and the command that resumes the sweep, or begins one that had no first step."""
    next_words = list(words)
    title = f"{event} before the sweep began; to begin:"
    if folder.info_file.is_file():
        title = f"{event}; to continue:"
        if not _value_of(words, "--name"):
            next_words += ["--name", folder.path.name]
        if "--resume" not in words:
            next_words.append("--resume")
    recorded = shlex.join(without_notify(shlex.split(command_line(command, next_words))))
    print(f"{title}\n    {runnable(recorded)}", file=sys.stderr)


def without_notify(words: Sequence[str]) -> list[str]:
    """Return the words of a recorded command without its masked `search.notify`, which a resumed sweep may lack.

    >>> without_notify(["tune", "--set", "search.notify=***", "--trials", "3"])
    ['tune', '--trials', '3']
    """
    readable = [word for word in words if word not in (MASKED_NOTIFY, f"--set={MASKED_NOTIFY}")]
    kept = []
    for index, word in enumerate(readable):
        is_last = index + 1 == len(readable)
        has_lost_its_values = word == "--set" and (is_last or readable[index + 1].startswith("--"))
        if not has_lost_its_values:
            kept.append(word)
    return kept


def _for_folder(words: Sequence[str], path: Path, default_root: Path) -> list[str]:
    """Return a command for the folder, which may have been copied, moved or renamed since the command was recorded."""
    changed = _with_value(words, "--name", path.name)
    recorded_root = _value_of(words, "--out") or str(default_root)
    if user_path(recorded_root).resolve() != path.parent.resolve():
        changed = _with_value(changed, "--out", str(path.parent))
    return changed


def _value_of(words: Sequence[str], flag: str) -> str:
    """Return the last value of a flag; empty if the flag is missing."""
    value = ""
    is_value = False  # True for the word after the flag
    for word in words:
        if is_value:
            value = word
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
        is_value = word == flag
    return value


def _with_value(words: Sequence[str], flag: str, value: str) -> list[str]:
    """Return the words of a command with this value of a flag and no other one."""
    kept = []
    is_value = False  # True for the word after the flag
    for word in words:
        if not is_value and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        is_value = word == flag
    if value.startswith("-"):
        return [*kept, f"{flag}={value}"]
    return [*kept, flag, value]
