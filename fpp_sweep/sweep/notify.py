"""Tells a command of the user's what happens in a sweep, as JSON on its standard input; its failure never matters."""

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

PATIENCE = 10.0  # seconds that a command gets; after one that took longer no other is begun


class Notifier:
    """One command after the other, in a thread of its own."""

    def __init__(self, command: str | None, sweep: Path) -> None:
        self._sweep, self._threads = sweep, ThreadPoolExecutor(1, "notify")
        self._words: list[str] = []
        with suppress(InputError):  # which has been told
            self._words = words_of(command) if command else []

    def tell(self, event: str, **facts: Any) -> None:
        """A new front, a trial that failed, or the state in which the sweep ended."""
        if self._words:
            with suppress(RuntimeError):  # the sweep was ended twice
                self._threads.submit(self._run, {"event": event, "sweep": str(self._sweep), **facts})

    def close(self) -> None:
        """Once all is told."""
        self._threads.shutdown()

    def _run(self, facts: dict[str, Any]) -> None:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        try:
            if self._words:
                subprocess.run(self._words, input=json.dumps(facts), text=True, timeout=PATIENCE, **quiet)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            self._words = []
            note(f"search.notify: {error}; it is not run again")


def words_of(command: str) -> list[str]:
    """As a shell would split it; InputError where it cannot be run."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"{command!r} cannot be read ({error}); nobody is notified", "search.notify") from error
    if not words or not shutil.which(words[0]):
        raise InputError(f"{command!r} cannot be run here; nobody is notified", "search.notify")
    return words
