"""Wait for an event, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

LONG = 300.0  # seconds: the end of a test that hangs, and of no other


def wait_for(condition: Callable[[], Found]) -> Found:
    """Call the condition until its result is true, and return that result."""
    end = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found
