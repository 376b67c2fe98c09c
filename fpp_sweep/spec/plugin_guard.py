"""Calls of a plugin's code: they leave no trace in the process, and they end in time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.catalogue import Row
from fpp_sweep.spec.global_state import CHANGED_BY_IMPORTS, ProcessState
from fpp_sweep.spec.messages import note

Result = TypeVar("Result")

_given_up: set[threading.Thread] = set()  # threads whose calls have not ended in time


class PluginGuard:
    """Restores the settings of the process after each call of a plugin, and notes each setting that had changed."""

    def __init__(self, on_note: Callable[[str], None] = note) -> None:
        self._on_note = on_note
        self._noted: set[str] = set()

    @contextmanager
    def around(self, row: Row) -> Iterator[list[str]]:
        """Restore what a plugin's row changes in the block; yield a list that has the changed settings at the end.

        Rows of this package change nothing and cost nothing.
        """
        changed: list[str] = []
        plugin = plugins.file_of(row)
        if plugin is None:
            yield changed
            return
        modules_before = len(sys.modules)
        state = ProcessState()
        try:
            yield changed
        finally:
            # a call that was given up restores nothing: other code has gone on since, and has its own settings
            if threading.current_thread() not in _given_up:
                state.restore(changed.append)
            for setting in changed:
                if setting in CHANGED_BY_IMPORTS and len(sys.modules) > modules_before:
                    continue  # a library that the block has loaded may have changed it
                self._note_once(
                    f"plugin {plugin}: {catalogue.kind_of(row)} {row.name} changes {setting}, which is restored"
                )

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._on_note(text)


def call_in_time(function: Callable[[], Result], seconds: float, subject: str) -> Result:
    """Return what a function returns; raise ContractError if it has not ended in time.

    The error names the subject, such as `metric mine`, and the line that the plugin executes. The function runs in a
    thread. A thread that never ends goes on until the process ends, which the error leads to.
    """
    outcome: Future[Result] = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # SystemExit, too, is a plugin's mistake
            outcome.set_exception(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        return outcome.result(timeout=seconds)
    except TimeoutError:
        if outcome.done():  # the function itself has raised this error
            raise
        _given_up.add(thread)
        where = plugins.at_line(subject, plugins.line_in_thread(thread))
        raise plugins.ContractError(f"{where}: {plugins.too_slow(seconds)}") from None
