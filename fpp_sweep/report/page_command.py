"""The page of a sweep, written again on request: `show SWEEP --page`."""

from __future__ import annotations

from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec.errors import InputError


def write_sweep_page(path: Path) -> Path:
    """Write a sweep's page, with the tables and configs beside it; return the page's path."""
    folder = SweepFolder.open(path)
    try:
        _write_latest_report(folder)
    except OSError as error:
        problem = f"{folder.report}: cannot be written ({error.strerror or error})"
        raise InputError(f"{problem}; copy the sweep to a folder that can be written, and name the copy") from error
    return folder.report / "sweep.html"


def _write_latest_report(folder: SweepFolder) -> None:
    """Write the report, and write it again if the sweep has ended meanwhile.

    A driver records the end of its sweep before it writes the last report, which an older one has perhaps replaced.
    """
    while True:
        info = folder.info()
        write_report(folder, pages=True)
        info_now = folder.info()
        if info_now.state == "running" or info_now == info:
            return
