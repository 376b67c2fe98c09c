"""Methods, penalties and metrics of one's own, from Python files that the user names with --plugin (docs/plugins.md).

A plugin is read where the command runs and travels as its text; every process that computes executes it once. Only
the user's flag loads one: a sweep's folder or a space from elsewhere runs no code by itself.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal, MethodRow, MetricRow
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import read_at_most
from fpp_sweep.spec.specs import PluginFile

Function = TypeVar("Function", bound=Callable[..., Any])
SOURCE_PREFIX = "<plugin "  # of a plugin's name in tracebacks: it is executed from its text

_loaded: dict[str, PluginFile] = {}
_executing: list[PluginFile] = []  # the file whose rows are registered now


def read(paths: Iterable[Path]) -> tuple[PluginFile, ...]:
    """The files' text; a path that cannot be read is told in one line."""
    files: list[PluginFile] = []
    for path in paths:
        try:
            text = read_at_most(path).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--plugin {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from error
        if path.stem in {file.name for file in files}:
            raise InputError(f"--plugin {path}: another plugin is named {path.stem}, too; rename one of them")
        files.append(PluginFile(name=path.stem, text=text, digest=hashlib.sha256(text.encode()).hexdigest()[:16]))
    return tuple(files)


def load(files: Sequence[PluginFile]) -> None:
    """Execute plugins, each once; an edited one takes the place of what it was."""
    for file in files:
        known = _loaded.get(file.name)
        if known == file:
            continue
        if known is not None:
            unload(known)
        _execute(file)
        _loaded[file.name] = file


def unload(file: PluginFile) -> None:
    """Take a plugin's rows out of the catalogue."""
    catalogue.remove(lambda row: row.digest == file.digest)
    _loaded.pop(file.name, None)


def loaded() -> tuple[PluginFile, ...]:
    """The plugins of this process."""
    return tuple(_loaded.values())


def line_of(error: BaseException) -> str:
    """Return the innermost line of a plugin in a traceback, such as `mine.py:12`; empty if there is none."""
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(SOURCE_PREFIX):
            line = f"{frame.filename.removeprefix(SOURCE_PREFIX).rstrip('>')}:{frame.lineno}"
    return line


def metric_error(name: str, error: Exception) -> InputError:
    """Describe an exception in a plugin's metric: `metric mine (mine.py:12): division by zero`."""
    message = " ".join(str(error).split())
    if not message or isinstance(error, KeyError):  # whose message is the key only
        message = f"{type(error).__name__}: {message}".rstrip(": ")
    line = line_of(error)
    where = f"metric {name} ({line})" if line else f"metric {name}"
    return InputError(f"{where}: {message}")


def method(
    *,
    name: str | None = None,
    views: int | None = None,
    learns: bool = True,
    stateful: bool = False,
    reads: Sequence[str] = ("adapt.", "views."),
) -> Callable[[Function], Function]:
    """Register what builds a method: a function, or a class, of (adapt, penalty, weight)."""

    def register(build: Function) -> Function:
        row = _described(build, name)
        catalogue.add(MethodRow(**row, build=build, views=views, learns=learns, stateful=stateful, reads=tuple(reads)))
        return build

    return register


def penalty(
    *, weight: float, weight_on_shifts: float | None = None, name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function of unit text features (*B, K, D) -> (*B,): a method that is TPT with it added to the loss."""

    def register(function: Function) -> Function:
        row = _described(function, name)
        tpt = catalogue.method(catalogue.DEFAULT).build
        shifts = weight if weight_on_shifts is None else weight_on_shifts
        catalogue.add(
            MethodRow(
                **row, build=tpt, penalty=function, weight=weight, weight_on_shifts=shifts, reads=("adapt.", "views.")
            )
        )
        return function

    return register


def metric(
    *, goal: Goal, heading: str | None = None, decimals: int = 2, columns: Sequence[str] = (), name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function of a dataset's `Predictions`, with the optional columns that it needs."""

    def register(function: Function) -> Function:
        row = _described(function, name)
        for column in columns:
            if column not in catalogue.COLUMNS:
                raise unknown("column", column, catalogue.COLUMNS)
        catalogue.add(
            MetricRow(
                **row,
                goal=goal,
                heading=heading or row["name"],
                decimals=decimals,
                compute=function,
                columns=tuple(columns),
            )
        )
        return function

    return register


def _described(code: Any, name: str | None) -> dict[str, Any]:
    """What a row says of its code: name, title and the plugin that it comes from."""
    if not _executing:
        raise InputError("methods and metrics are registered by files that --plugin names")
    title = (code.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return {"name": name or code.__name__, "title": title, "digest": _executing[-1].digest}


def _execute(file: PluginFile) -> None:
    where = f"plugin {file.name}.py"
    module = ModuleType(f"fpp_sweep_plugin_{file.name}")
    before = len(catalogue.METHODS) + len(catalogue.METRICS)
    source = f"{SOURCE_PREFIX}{file.name}.py>"
    linecache.cache[source] = (len(file.text), None, file.text.splitlines(keepends=True), source)
    sys.modules[module.__name__] = module  # dataclasses and pickles of the plugin look themselves up
    _executing.append(file)
    try:
        exec(compile(file.text, source, "exec"), module.__dict__)
    except BaseException as error:
        unload(file)
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        cause = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{where}{f':{line}' if line else ''}: {' '.join(cause.split())}") from error
    finally:
        _executing.pop()
    if len(catalogue.METHODS) + len(catalogue.METRICS) == before:
        raise InputError(f"{where}: registers nothing; see docs/plugins.md for method, penalty and metric")
