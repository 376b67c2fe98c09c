"""The plugins of a worker: a task with a plugin's method leaves nothing behind that would change the next task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.plugin_guard import PluginGuard
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.trial.write_guard import writes_refused


class WorkerPlugins:
    """The plugins that a worker has loaded, guards around their methods, and notes on the current task."""

    def __init__(self, files: Sequence[PluginFile]) -> None:
        plugins.load(files)
        self._notes: list[str] = []
        self._guard = PluginGuard(self._notes.append)

    def restoring_settings(self, method: str) -> AbstractContextManager[Any]:
        """Return a context that restores the settings of the process if a plugin's method changes them."""
        return self._guard.around(catalogue.method(method))

    @staticmethod
    def refusing_writes(method: str, model: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """Return a context that raises ContractError at its end if a plugin's method has written to the model.

        The context yields a function that protects further values.
        """
        return writes_refused(catalogue.method(method), model)

    @staticmethod
    def location_of(error: BaseException, method: str) -> str:
        """Return `, method NAME (FILE:LINE)` for an error that a plugin's code raised; empty for other errors."""
        line = plugins.line_of(error)
        if not line:
            return ""
        return f", method {method} ({line})"

    def take_notes(self) -> tuple[str, ...]:
        """Print and return the notes since the last call."""
        notes = tuple(self._notes)
        self._notes.clear()
        for text in notes:
            note(text)
        return notes
