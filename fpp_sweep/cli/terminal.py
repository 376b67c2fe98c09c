"""The terminal that a command prints to."""

from __future__ import annotations

import sys

from fpp_sweep.spec.progress import Screen


def terminal_width() -> int:
    """Return the columns of the terminal; in a pipe or a file, more than any table needs."""
    return Screen(sys.stdout).columns()
