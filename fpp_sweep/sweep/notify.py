"""Run a user's command at events of a sweep, with the event as JSON on its standard input.

A failure of the command never affects the sweep.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note

if TYPE_CHECKING:  # imports Ray
    from fpp_sweep.search.searcher import TrialChange

TIME_LIMIT = 10.0  # seconds for a run of the command; after a run that takes longer it is not run again


class Notifier:
    """Runs the command for one event after the other, in a thread."""

    def __init__(self, command: str | None, sweep: Path, objectives: Sequence[Objective]) -> None:
        self._sweep = sweep
        self._metrics = [objective.metric for objective in objectives]
        self._threads = ThreadPoolExecutor(1, "notify")
        self._words: list[str] = []
        with suppress(InputError):  # noted by `preflight`
            self._words = command_words(command) if command else []

    def on_change(self, change: TrialChange) -> None:
        record = change.record
        if not change.on_search_split or not change.has_ended:
            return
        if record.state == "failed":
            self.send("trial failed", trial=record.name, reason=record.reason)
        elif change.joins_front:
            self.send("new front", trial=record.name, front=self._front_values(change.front))

    def send_end(self, state: str, front: Sequence[TrialRecord]) -> None:
        """Send the state in which the sweep ended."""
        self.send(state, front=self._front_values(front))

    def _front_values(self, front: Sequence[TrialRecord]) -> dict[str, dict[str, float]]:
        values = {}
        for member in front:
            values[member.name] = dict(zip(self._metrics, member.values or (), strict=True))
        return values

    def send(self, event: str, **details: Any) -> None:
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
