"""Keeps `report/` and MLflow up to date from a thread, at intervals: reports take CPU from trials."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report import write_report
from fpp_sweep.spec.errors import escaped
from fpp_sweep.tracking import Shipper

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics

TABLES_EVERY, PAGES_EVERY = 2.0, 60.0  # seconds
SHARE = 20  # times what the last pages took must pass before the next


class Reporter:
    def __init__(self, folder: SweepFolder, shipper: Shipper) -> None:
        self._folder, self._shipper = folder, shipper
        self._changed = threading.Event()
        self._over = threading.Event()
        self._statistics: SweepStatistics | None = None  # of the last page
        self._next_pages = time.monotonic() + PAGES_EVERY
        self._thread = threading.Thread(target=self._work, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        self._changed.set()

    def close(self) -> None:
        """The last report, with everything."""
        self._over.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(pages=True)

    def _work(self) -> None:
        while self._changed.wait() and not self._over.is_set():
            self._changed.clear()
            began = time.monotonic()
            pages = began >= self._next_pages
            self._write(pages=pages)
            if pages:
                self._next_pages = began + max(PAGES_EVERY, SHARE * (time.monotonic() - began))
            self._over.wait(TABLES_EVERY)

    def _write(self, *, pages: bool) -> None:
        """Write the report; its statistics take seconds and are computed with the pages only."""
        try:
            statistics = None if pages else self._statistics
            self._statistics = write_report(self._folder, pages=pages, statistics=statistics)
        except Exception as error:  # a report can be made again; a sweep goes on
            print(f"the report could not be written: {type(error).__name__}: {escaped(str(error))}", file=sys.stderr)
        self._shipper.nudge()
