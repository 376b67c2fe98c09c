"""The environment of a process of Python that imports from where its parent does."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


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
