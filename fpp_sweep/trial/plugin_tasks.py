"""Tasks of plugins' methods in a worker: they leave nothing behind that would change the next task's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.plugin_guard import PluginGuard
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.trial.write_guard import writes_refused

ContractError = plugins.ContractError


class PluginTasks:
    """The plugins of a worker, and notes on the current task's."""

    def __init__(self, files: Sequence[PluginFile]) -> None:
        plugins.load(files)
        self._notes: list[str] = []
        self._guard = PluginGuard(self._notes.append)

    def restoring_settings(self, method: str) -> AbstractContextManager[Any]:
        """Return a context that restores the settings of the process if a plugin's method changes them."""
        return self._guard.around(catalogue.method(method))

    @staticmethod
    def refusing_writes(method: str, model: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """See write_guard.writes_refused."""
        return writes_refused(catalogue.method(method), model)

    @staticmethod
    def where(error: BaseException, method: str) -> str:
        """Return the method and the line of a plugin in which an error arose, for the end of a location, or nothing."""
        line = plugins.line_of(error)
        if not line:
            return ""
        return f", method {method} ({line})"

    def take_notes(self) -> tuple[str, ...]:
        """Return the notes since the last call, after printing them."""
        notes = tuple(self._notes)
        self._notes.clear()
        for text in notes:
            note(text)
        return notes
