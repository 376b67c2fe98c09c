"""Run a user's command at events of a sweep, with the event as JSON on its standard input.

A failure of the command never affects the sweep.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError, first_line
from fpp_sweep.spec.messages import note, plural

if TYPE_CHECKING:  # imports Ray
    from fpp_sweep.search.searcher import TrialChange

TIME_LIMIT = 10.0  # seconds for a run of the command; after a run that takes longer it is not run again
CLOSE_LIMIT = 15.0  # seconds for the runs that are left at the end of a sweep, before only the last one is waited for


class Notifier:
    """Runs the command for one event after the other, in a thread."""

    def __init__(self, command: str | None, sweep: Path, objectives: Sequence[Objective]) -> None:
        self._sweep = sweep
        self._metrics = [objective.metric for objective in objectives]
        self._threads = ThreadPoolExecutor(1, "notify")
        self._runs: list[Future[None]] = []  # one for each event
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
                run = self._threads.submit(self._run, {"event": event, "sweep": str(self._sweep), **details})
                self._runs.append(run)

    def close(self) -> None:
        """Wait until the command has run for all events; after CLOSE_LIMIT, drop those that wait except the last."""
        wait(self._runs, CLOSE_LIMIT)
        n_dropped = 0
        for run in self._runs[:-1]:
            if run.cancel():  # False if the command runs or has run
                n_dropped += 1
        if n_dropped:
            note(f"search.notify: the command is too slow; it was not run for {plural(n_dropped, 'event')}")
        self._threads.shutdown()

    def _run(self, message: dict[str, Any]) -> None:
        if not self._words:  # a run has failed meanwhile
            return
        try:
            self._run_command(json.dumps(message))
        except subprocess.TimeoutExpired:
            self._stop(f"took longer than {TIME_LIMIT:g} s")
        except (OSError, ValueError) as error:
            self._stop(first_line(error))

    def _run_command(self, message: str) -> None:
        """Run the command; raise TimeoutExpired if it takes too long, after all of its processes were killed."""
        quiet = subprocess.DEVNULL
        words = self._words
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True, start_new_session=True
        ) as process:
            try:
                process.communicate(message, timeout=TIME_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def _stop(self, problem: str) -> None:
        """Note a problem without the command, which may hold a secret."""
        self._words = []
        note(f"search.notify: {problem}; it is not run again")


def command_words(command: str) -> list[str]:
    """Return the command's words, split as a shell does.

    Raise InputError if it cannot be run, without the words after the first, which may hold a secret.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"cannot parse the command ({error}); notifications are off", "search.notify") from error
    if not words or not shutil.which(words[0]):
        program = words[0] if words else ""
        raise InputError(f"cannot run {program!r} here; notifications are off", "search.notify")
    return words
