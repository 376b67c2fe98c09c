"""A process of Python that imports from where its parent does, and ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PR_SET_PDEATHSIG = 1  # see prctl(2)


def child_environment() -> dict[str, str]:
    """Return the environment of a child that imports this package, and from the folders that this process imports from.

    The current folder is none of them, though Python adds it: a folder from another person may have a numpy.py. If this
    package was imported from there, as in a notebook inside a checkout, then the package's folder comes first.
    """
    folders = [path for path in sys.path if os.path.isabs(path)]
    package_in_folders = PathFinder.find_spec(PACKAGE.name, folders)
    if package_in_folders is None or package_in_folders.origin != str(PACKAGE / "__init__.py"):
        folders.insert(0, str(PACKAGE.parent))
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def end_with_parent() -> None:
    """Have Linux kill this process when the thread that started it ends."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
