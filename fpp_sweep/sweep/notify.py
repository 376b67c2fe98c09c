"""Run a user's command at events of a sweep, with the event as JSON on its standard input.

A failure of the command never affects the sweep.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note

TIME_LIMIT = 10.0  # seconds for a run of the command; after a run that takes longer it is not run again


class Notifier:
    """Runs the command for one event after the other, in a thread."""

    def __init__(self, command: str | None, sweep: Path) -> None:
        self._sweep = sweep
        self._threads = ThreadPoolExecutor(1, "notify")
        self._words: list[str] = []
        with suppress(InputError):  # noted by `preflight`
            self._words = command_words(command) if command else []

    def send(self, event: str, **details: Any) -> None:
        """Send a new front, a trial that failed, or the state in which the sweep ended."""
        if self._words:
            with suppress(RuntimeError):  # the sweep was ended twice
                self._threads.submit(self._run, {"event": event, "sweep": str(self._sweep), **details})

    def close(self) -> None:
        """Return when the command has run for all events."""
        self._threads.shutdown()

    def _run(self, message: dict[str, Any]) -> None:
        if not self._words:  # a run has failed meanwhile
            return
        try:
            subprocess.run(
                self._words,
                input=json.dumps(message),
                text=True,
                timeout=TIME_LIMIT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            self._words = []
            note(f"search.notify: {error}; it is not run again")


def command_words(command: str) -> list[str]:
    """Return the command's words, split as a shell does; raise InputError if it cannot be run."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        problem = f"cannot parse command {command!r} ({error}); notifications are off"
        raise InputError(problem, "search.notify") from error
    if not words or not shutil.which(words[0]):
        raise InputError(f"cannot run command {command!r} here; notifications are off", "search.notify")
    return words
