"""Plugins: Python files that the user names, which register rows of the catalogue (docs/plugins.md).

A plugin is read where the command runs and travels as its text; every process that computes executes it once. Only
the user's --plugin or `load_plugins` loads a plugin: a sweep's folder or a space from elsewhere runs no code by itself.
"""

from __future__ import annotations

import hashlib
import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Row
from fpp_sweep.spec.config import settings
from fpp_sweep.spec.errors import InputError, readable_message
from fpp_sweep.spec.files import read_at_most, user_path
from fpp_sweep.spec.specs import PluginFile

SOURCE_PREFIX = "<plugin "  # prefix of a plugin's name in tracebacks, because a plugin is executed from its text

DIGEST_LENGTH = 16
_loaded: dict[str, PluginFile] = {}  # by name


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
    try:
        code = compile(file.text, source, "exec")
        with catalogue.registering(file.digest, settings()):
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
    if not any(row.digest == file.digest for row in catalogue.rows_of_plugins()):
        raise InputError(f"plugin {file.name}.py: registers nothing; see docs/plugins.md")
