"""The plugins of a worker: a task with a plugin's method leaves nothing behind that would change the next task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.plugin_guard import PluginGuard
from fpp_sweep.spec.plugins import ContractError
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.trial.write_guard import WriteGuard


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
    @contextmanager
    def refusing_writes(method: str, model: Any) -> Iterator[Callable[[Any], None]]:
        """Raise ContractError at the end of the block if a plugin's method has written to the model.

        Yield a function that adds values to watch. Methods of this package are not watched, which costs nothing.
        """
        row = catalogue.method(method)
        if not row.digest:
            yield _watch_nothing
            return
        guard = WriteGuard(model)
        try:
            yield guard.watch
        finally:
            if guard.has_change():
                problem = "writes to the model, the class texts or the state that it is given; it must work on copies"
                raise ContractError(f"method {row.name} ({plugins.origin_of(row)}): {problem}")

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


def _watch_nothing(*_: Any) -> None:
    """Do nothing with values that a method of this package gets."""
