"""Changes to Python code in the processes of a driver; `benchmarks.chaos` puts this folder on PYTHONPATH.

CHAOS_CLOCK moves the clock by so many seconds, and CHAOS_BUG plants the bug of `benchmarks.planted_bug`.
"""

import os
import time

_offset = float(os.environ.get("CHAOS_CLOCK", 0))
_true_time = time.time

if _offset:
    time.time = lambda: _true_time() + _offset

if "CHAOS_BUG" in os.environ:
    from benchmarks.planted_bug import plant

    plant()
