"""MLflow's copy of a sweep, always made from the sweep's folder.

`desired.py` says what MLflow should show, `view.py` how its page shows it at first, `address.py` where MLflow is,
`store.py` reads and writes it, `shipper.py` repeats the delivery until MLflow shows it.
"""

from fpp_sweep.tracking.sync import Shipper, ship, ship_whole, to_look
from fpp_sweep.tracking.uri import DEFAULT_URI, absolute, check_store, one_line, recorded

__all__ = ["DEFAULT_URI", "Shipper", "absolute", "check_store", "one_line", "recorded", "ship", "ship_whole", "to_look"]
