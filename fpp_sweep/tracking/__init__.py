"""MLflow's copy of a sweep, always made from the sweep's folder.

`desired.py` says what MLflow should show, `address.py` where MLflow is, `store.py` reads and writes it, `shipper.py`
repeats the delivery until MLflow shows it.
"""

from fpp_sweep.tracking.address import DEFAULT_URI, absolute, check_store, one_line, recorded, ui_command
from fpp_sweep.tracking.shipper import WHOLE, Shipper, parent_url, ship, ship_whole

__all__ = [
    "DEFAULT_URI",
    "WHOLE",
    "Shipper",
    "absolute",
    "check_store",
    "one_line",
    "parent_url",
    "recorded",
    "ship",
    "ship_whole",
    "ui_command",
]
