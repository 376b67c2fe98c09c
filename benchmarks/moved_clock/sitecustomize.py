"""Move the clock of Python code by CHAOS_CLOCK seconds; `benchmarks.faults` puts this folder on PYTHONPATH."""

import os
import time

_offset = float(os.environ.get("CHAOS_CLOCK", 0))
_true_time = time.time

if _offset:
    time.time = lambda: _true_time() + _offset
