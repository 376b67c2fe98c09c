"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # see prctl(2)


def end_with_parent() -> None:
    """Have Linux kill this process when the thread that started it ends."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
