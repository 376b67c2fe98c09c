"""The command that resumes a sweep: the sweep's folder keeps all that the command does not name."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from fpp_sweep.cli.names import SWEEPS
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.state import is_abandoned
from fpp_sweep.spec.messages import command_line, runnable, runnable_record
from fpp_sweep.tracking.stores import DEFAULT_URI, absolute

RESUMES_LEFT = "FPP_SWEEP_RESUMES_LEFT"  # variable that a driver sets for the process in which it resumes its sweep


def command_that_continues(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the command that resumes the sweep; empty if it runs or has come to its end."""
    if info.state != "interrupted" and not is_abandoned(folder, info):
        return ""
    return resume_command(folder, info)


def resume_command(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the command that resumes the sweep; a table of a reproduction is continued by the command that began it.

    The command names what a folder from elsewhere must not choose: plugins, the Ray cluster, and another MLflow.
    """
    if info.group:
        return runnable_record(info.command)
    name = str(folder.path)
    if folder.path.parent == SWEEPS.absolute():
        name = folder.path.name
    words = ["--resume", name]
    if info.plugin_files:
        words += ["--plugin", *info.plugin_files.values()]
    if info.address:
        words += ["--address", info.address]
    if info.tracking_uri and info.tracking_uri != absolute(DEFAULT_URI):
        words += ["--tracking-uri", info.tracking_uri]
    return runnable(command_line("evaluate" if info.evaluate_only else "tune", words))


def resume_in_new_process(folder: SweepFolder, resumes_left: int) -> None:
    """Replace this process by one that resumes the sweep."""
    words = shlex.split(resume_command(folder, folder.info()))
    sys.stderr.flush()
    os.environ[RESUMES_LEFT] = str(resumes_left)
    os.execvp(words[0], words)


def print_next_command(folder: SweepFolder, command: str, words: Sequence[str], event: str) -> None:
    """Print what ended the run, and the command that resumes the sweep, or begins one that had no first step."""
    title = f"{event} before the sweep began; to begin:"
    next_command = runnable(command_line(command, words))
    if folder.has_sweep:
        title = f"{event}; to continue:"
        next_command = resume_command(folder, folder.info())
    print(f"{title}\n    {next_command}", file=sys.stderr)
