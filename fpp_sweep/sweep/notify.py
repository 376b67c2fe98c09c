"""Run a user's command when a sweep has ended, with the state and the front as JSON on its standard input."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.spec.errors import InputError, first_line
from fpp_sweep.spec.messages import note

TIME_LIMIT = 10.0  # seconds


def command_words(command: str) -> list[str]:
    """Return the command's words, split as a shell does; raise InputError if it cannot be run."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"cannot parse the command ({error}); correct its quotes", "search.notify") from error
    if not words or not shutil.which(words[0]):
        raise InputError(f"there is no program {command!r}; give a command that runs here", "search.notify")
    return words


def notify(command: str, folder: SweepFolder) -> None:
    """Run the command for a sweep that has ended; note a failure, which never affects the sweep."""
    info = folder.info()
    metrics = metrics_of(info.objectives)
    values = {}
    for member in front_of(info, folder.trials()).members:
        values[member.name] = dict(zip(metrics, member.values or (), strict=True))
    message = json.dumps({"state": info.state, "sweep": str(folder.path), "front": values})
    try:
        subprocess.run(
            shlex.split(command),
            input=message,
            text=True,
            timeout=TIME_LIMIT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        note(f"search.notify: {first_line(error)}")
