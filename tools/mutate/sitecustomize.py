"""Record which functions of fpp_sweep each test calls, in every process: Python imports this module at its start.

`tools.mutate` puts this folder on PYTHONPATH and names a folder in MUTATE_HITS. Each process appends lines of a test
and a function to a file of that folder. The test is the one that ran when the process was started.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType

FOLDER = os.environ.get("MUTATE_HITS", "")
TEST = "MUTATE_TEST"  # the variable that names the running test
IMPORT = "import"  # stands for a test where a function is called by an import
PACKAGE = "fpp_sweep"

_seen: set[str] = set()
_file = -1  # the descriptor of this process's file of lines


def hit(function: str) -> None:
    """Record that a function was called, once for each test."""
    if function in _seen:
        return
    _seen.add(function)
    test = running_test()
    if is_called_by_import():
        test = IMPORT
    with suppress(OSError):  # a test may forbid this process to write
        os.write(_file, f"{test}\t{function}\n".encode())


def is_called_by_import() -> bool:
    """Return True if a module of fpp_sweep calls the function while it is imported, as for a table of constants.

    An example in a docstring runs as code of its module, too, and is a test.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith("<doctest "):
        return False
    return bool(frame.f_globals["__name__"].partition(".")[0] == PACKAGE)


def running_test() -> str:
    """Return the test or fixture that calls are attributed to."""
    return os.environ.get(TEST, "")


def begin_test(name: str) -> None:
    """Attribute all following calls to a test, or to a fixture that several tests share."""
    os.environ[TEST] = name
    _seen.clear()


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_text())
        instrument(tree, fullname)
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def instrument(tree: ast.AST, scope: str) -> None:
    """Insert a call of `hit` at the beginning of every function."""
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}"
        instrument(node, inner)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            call = ast.parse(f"__mutate_hit__({inner!r})").body[0]
            node.body.insert(1 if ast.get_docstring(node) is not None else 0, call)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname, path, target=None) -> ModuleSpec | None:  # type: ignore[no-untyped-def]
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


if FOLDER and __name__ == "sitecustomize":  # tests import this module by another name, and must not install it twice
    # opened now: a test may watch which files the process opens
    _file = os.open(Path(FOLDER, f"{os.getpid()}.hits"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    builtins.__mutate_hit__ = hit  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _Finder())
