"""MLflow's copy of a sweep, always made from the sweep's folder.

`desired.py` computes the runs that MLflow should show, and `folder_files.py` finds their artifacts. `folder_sync.py`
writes the runs that differ, in one pass, and `sync_state.py` keeps what was written. `sync.py` repeats passes until
MLflow shows all runs. `uri.py` finds and checks stores.
"""

from fpp_sweep.tracking.sync import BackgroundSync, last_uri, mlflow_links, sync_folder, trusted_uri, upload_group_files
from fpp_sweep.tracking.uri import DEFAULT_URI, absolute, check_address, check_store, one_line, uri_of_new_sweep

__all__ = [
    "DEFAULT_URI",
    "BackgroundSync",
    "absolute",
    "check_address",
    "check_store",
    "last_uri",
    "mlflow_links",
    "one_line",
    "sync_folder",
    "trusted_uri",
    "upload_group_files",
    "uri_of_new_sweep",
]
