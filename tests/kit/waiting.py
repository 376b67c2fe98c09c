"""A wait for an event that does not depend on the speed of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

LONG = 300.0  # seconds; only a test that hangs waits as long for one event


def wait_for(condition: Callable[[], Result]) -> Result:
    """Call the condition until its result is true, and return that result."""
    end = time.monotonic() + LONG
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"the event did not happen within {LONG:.0f} seconds"
        time.sleep(0.02)
