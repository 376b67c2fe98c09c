"""The state of a sweep by its record and its lock, and the time of its last change."""

from __future__ import annotations

import time
from contextlib import suppress

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.spec.files import files_in
from fpp_sweep.spec.progress import duration

WRITTEN = {"": "sweep.json", "trials": "*", "logs": "*"}  # files that drivers, trials and workers write, by subfolder


def state_text(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the state on record, `stopped without notice 1:02 ago` if the driver was killed, or `starting`."""
    if is_abandoned(folder, info):
        return f"stopped without notice {time_since_change(folder)}"
    if info.state == "interrupted" and folder.is_locked():  # its driver checks its inputs
        return "starting"
    return info.state


def is_running(folder: SweepFolder, info: SweepInfo) -> bool:
    """Return True if a driver runs the sweep now."""
    return info.state == "running" and not is_abandoned(folder, info)


def is_abandoned(folder: SweepFolder, info: SweepInfo) -> bool:
    """Return True if the record says that the sweep runs, although no driver holds its lock."""
    if info.state != "running" or folder.is_locked():
        return False
    return folder.info().state == "running"  # else a driver has ended it since the record was read


def time_since_change(folder: SweepFolder) -> str:
    """Return the time since the last change, as in `1:02 ago`; `0 s ago` if the clock that wrote it is ahead."""
    seconds = max(0.0, time.time() - last_change(folder))
    return f"{duration(seconds)} ago"


def last_change(folder: SweepFolder) -> float:
    """Return when the driver, a trial or a worker last wrote, on any machine."""
    latest = 0.0
    for subfolder, pattern in WRITTEN.items():
        with suppress(OSError):  # a folder that cannot be listed
            for path in files_in(folder.path / subfolder, pattern):
                latest = max(latest, path.lstat().st_mtime)  # lstat: the link's own time
    return latest
