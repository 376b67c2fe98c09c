"""A process of Python that imports from where its parent does, and ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # see prctl(2)


def child_environment() -> dict[str, str]:
    """Return the environment of a child that imports from the folders that this process imports from.

    Python adds the current folder by itself, and a folder from another person may have a numpy.py.
    """
    paths = os.pathsep.join(path for path in sys.path if os.path.isabs(path))
    return os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}


def end_with_parent() -> None:
    """Have Linux kill this process when the thread that started it ends."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
