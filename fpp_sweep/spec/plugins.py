"""Methods, penalties, metrics and samplers from Python files that the user names (docs/plugins.md).

A plugin is read where the command runs and travels as its text; every process that computes executes it once. Only
the user's --plugin or `load_plugins` loads a plugin: a sweep's folder or a space from elsewhere runs no code by itself.
"""

from __future__ import annotations

import hashlib
import linecache
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal, MethodRow, MetricRow, Row, SamplerRow
from fpp_sweep.spec.config import settings
from fpp_sweep.spec.errors import InputError, readable_message, unknown
from fpp_sweep.spec.files import read_at_most, user_path
from fpp_sweep.spec.specs import PluginFile

Function = TypeVar("Function", bound=Callable[..., Any])
SOURCE_PREFIX = "<plugin "  # prefix of a plugin's name in tracebacks, because a plugin is executed from its text

DIGEST_LENGTH = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # a part of file names, of words with / and @, and of lists
_EVERYTHING = ("adapt.", "views.")  # the settings that a plugin's method reads unless it says otherwise

_loaded: dict[str, PluginFile] = {}  # by name
_executing: list[PluginFile] = []  # the file whose rows are being registered


# ------------------------------------------------------------ reading and loading


def load_plugins(*paths: Path | str) -> None:
    """Read and execute plugin files; the sweeps that this process then runs have them.

    >>> load_plugins("no-such-file.py")
    Traceback (most recent call last):
    fpp_sweep.spec.errors.InputError: --plugin no-such-file.py: No such file or directory; give a file that can be read
    """
    load(read(user_path(path) for path in paths))


def read(paths: Iterable[Path]) -> tuple[PluginFile, ...]:
    """Return the text of plugin files, each once."""
    files: dict[str, PluginFile] = {}
    for path in paths:
        try:
            text = read_at_most(path).decode("utf-8-sig")
        except OSError as error:
            raise InputError(f"--plugin {path}: {error.strerror or error}; give a file that can be read") from error
        except UnicodeDecodeError as error:
            raise InputError(f"--plugin {path}: not UTF-8 text") from error
        if path.suffix != ".py":
            raise InputError(f"--plugin {path}: must be a Python file, whose name ends with .py")
        name = path.stem
        if name in files and files[name].path == str(path.resolve()):
            continue
        if name in files:
            raise InputError(f"--plugin {path}: another plugin is named {name}, too; rename one of them")
        _require_single_file(path, text)
        digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
        files[name] = PluginFile(name=name, path=str(path.resolve()), text=text, digest=digest)
    return tuple(files.values())


def _require_single_file(path: Path, text: str) -> None:
    """Raise InputError if a plugin imports a file beside it or in the working folder.

    Workers elsewhere lack that file, and keys of results do not contain it: after it is edited, a resumed sweep would
    mix results of both versions.
    """
    for module in re.findall(r"^\s*(?:import|from)\s+(\w+)", text, flags=re.MULTILINE):
        for folder in (path.resolve().parent, Path.cwd()):
            if (folder / f"{module}.py").is_file():
                problem = f"imports {module}, which workers elsewhere do not have"
                raise InputError(f"--plugin {path}: {problem}; put that code into the plugin, or install it")


def load(files: Sequence[PluginFile]) -> None:
    """Execute plugins, each once; an edited plugin replaces its former rows."""
    for file in files:
        previous = _loaded.get(file.name)
        if previous == file:
            continue
        if previous is not None:
            unload(previous)
        _execute(file)
        _loaded[file.name] = file


def unload(file: PluginFile) -> None:
    """Remove a plugin's rows from the catalogue."""
    for row in catalogue.rows_of_plugins():
        if row.digest == file.digest:
            catalogue.remove(row)
    _loaded.pop(file.name, None)


def loaded() -> tuple[PluginFile, ...]:
    """Return the plugins of this process."""
    return tuple(_loaded.values())


def file_of(row: Row) -> str | None:
    """Return the name of the file that registered a row; None if the row is built in."""
    for file in _loaded.values():
        if row.digest == file.digest:
            return f"{file.name}.py"
    return None


def line_of(error: BaseException) -> str:
    """Return the innermost line of a plugin in a traceback, such as `mine.py:12`; empty if there is none."""
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(SOURCE_PREFIX):
            line = f"{frame.filename.removeprefix(SOURCE_PREFIX).rstrip('>')}:{frame.lineno}"
    return line


def at_line(subject: str, line: str | None) -> str:
    """Return a message's subject with a plugin's line: `metric mine (mine.py:12)`. The line may be empty."""
    if not line:
        return subject
    return f"{subject} ({line})"


def _execute(file: PluginFile) -> None:
    """Run a plugin's code, which registers rows; raise InputError with the line at fault if it fails."""
    module = ModuleType(f"fpp_sweep_plugin_{file.name}")
    source = f"{SOURCE_PREFIX}{file.name}.py>"
    # tracebacks quote the plugin's lines
    linecache.cache[source] = (len(file.text), None, file.text.splitlines(keepends=True), source)
    sys.modules[module.__name__] = module  # dataclasses and pickles of the plugin look their module up
    _executing.append(file)
    try:
        code = compile(file.text, source, "exec")
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        unload(file)
        raise
    except BaseException as error:  # also SystemExit
        unload(file)
        where = line_of(error) or f"{file.name}.py"
        if isinstance(error, SyntaxError) and error.filename == source:
            where = f"{file.name}.py:{error.lineno}"
        raise InputError(f"plugin {where}: {readable_message(error)}") from error
    finally:
        _executing.pop()
    if not any(row.digest == file.digest for row in catalogue.rows_of_plugins()):
        raise InputError(f"plugin {file.name}.py: registers nothing; see docs/plugins.md")


# ------------------------------------------------------------ decorators for plugins


def method(
    *,
    name: str | None = None,
    views: int | None = None,
    learns: bool = True,
    stateful: bool = False,
    reads: Sequence[str] = _EVERYTHING,
) -> Callable[[Function], Function]:
    """Register a function or class that builds a method from (adapt, penalty, weight).

    >>> @method(learns=False, reads=["adapt.view_fraction"])  # doctest: +SKIP
    ... class Vote: ...  # with `start` and `predict` of core.methods.base.Method
    """
    for word in reads:
        if not any(setting.startswith(word) for setting in settings()):
            raise unknown("setting", word, settings())
    read_settings = tuple(reads)
    if views != 1:  # results depend on the views that the method sees
        read_settings = (*read_settings, "views.")
    return _registers(MethodRow, "build", name, views=views, learns=learns, stateful=stateful, reads=read_settings)


def penalty(
    *, weight: float, weight_on_shifts: float | None = None, name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function of unit text features (*B, K, D) -> (*B,): a method that adds it to TPT's loss.

    >>> @penalty(weight=2.0)  # doctest: +SKIP
    ... def spread(text):
    ...     return -text.var(-2).sum(-1)
    """
    if weight_on_shifts is None:
        weight_on_shifts = weight
    for number in (weight, weight_on_shifts):
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise InputError(f"weights must be finite numbers ({number!r})")
    return _registers(
        MethodRow,
        "penalty",
        name,
        build=catalogue.method(catalogue.TPT).build,
        weight=weight,
        weight_on_shifts=weight_on_shifts,
        reads=_EVERYTHING,
    )


def metric(
    *, goal: Goal, heading: str = "", decimals: int = 2, columns: Sequence[str] = (), name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function of a dataset's `Predictions`, with the optional columns that it needs.

    >>> @metric(goal="min")  # doctest: +SKIP
    ... def mistakes(predictions):
    ...     return float((~predictions.correct).sum())
    """
    if goal not in get_args(Goal):
        raise InputError(f"goal must be one of {', '.join(get_args(Goal))} ({goal!r})")
    for column in columns:
        if column not in catalogue.COLUMNS:
            raise unknown("column", column, catalogue.COLUMNS)
    return _registers(MetricRow, "compute", name, goal=goal, heading=heading, decimals=decimals, columns=tuple(columns))


def sampler(*, name: str | None = None) -> Callable[[Function], Function]:
    """Register a class of Optuna's kind, or a function, that builds a sampler from a seed.

    >>> @sampler()  # doctest: +SKIP
    ... def narrow_tpe(seed):
    ...     return optuna.samplers.TPESampler(seed=seed, gamma=lambda n: 3)
    """
    return _registers(SamplerRow, "build", name)


def _registers(row_type: type[Row], code_field: str, name: str | None, **fields: Any) -> Callable[[Function], Function]:
    """Return a decorator that adds a row of a type: the code in one field, its name and title, and other fields."""

    def register(code: Function) -> Function:
        row = {**_described(code, name), **fields, code_field: code}
        if row_type is MetricRow and not row["heading"]:
            row["heading"] = row["name"]
        catalogue.add(row_type(**row))
        return code

    return register


def _described(code: Any, name: str | None) -> dict[str, Any]:
    """Return the fields of a row that its code gives: name, title and the digest of the plugin."""
    if not _executing:
        raise InputError("methods, metrics and samplers are registered by files that --plugin names")
    if name is None:
        name = code.__name__
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "must begin with a letter or _, and have letters, digits, _ and - only, at most 64"
        raise InputError(f"name {wanted} ({name!r})")
    if name in (*catalogue.COLUMNS_OF_TRIALS, *settings()):
        raise InputError(f"name {name!r} is that of a column of each sweep's table; choose another")
    title = (code.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return {"name": name, "title": title, "digest": _executing[-1].digest}
