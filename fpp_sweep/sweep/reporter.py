"""Keep `report/` and MLflow up to date from a thread, at intervals: a report takes CPU time from trials."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.process import release_memory
from fpp_sweep.tracking import BackgroundSync

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics
    from fpp_sweep.search.searcher import TrialChange

TABLE_INTERVAL, PAGE_INTERVAL = 2.0, 60.0  # seconds
PAUSE_FACTOR = 20  # pause before the next page / time that the last page took


class Reporter:
    """Writes the tables after each change, and the page from time to time."""

    def __init__(self, folder: SweepFolder, mlflow_sync: BackgroundSync) -> None:
        self._folder, self._mlflow_sync = folder, mlflow_sync
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._statistics: SweepStatistics | None = None  # statistics of the last page
        self._next_page = time.monotonic() + PAGE_INTERVAL
        self._thread = threading.Thread(target=self._work, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def on_change(self, _change: TrialChange) -> None:
        self._changed.set()

    def close(self) -> None:
        """Write the last report, with everything."""
        self._closing.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(pages=True)

    def _work(self) -> None:
        while self._changed.wait() and not self._closing.is_set():
            self._changed.clear()
            began = time.monotonic()
            pages = began >= self._next_page
            self._write(pages=pages)
            if pages:
                seconds = time.monotonic() - began
                self._next_page = began + max(PAGE_INTERVAL, PAUSE_FACTOR * seconds)
            self._closing.wait(TABLE_INTERVAL)

    def _write(self, *, pages: bool) -> None:
        """Write the tables, and the page if asked; statistics take seconds and are computed for the page only."""
        known = None if pages else self._statistics
        try:
            statistics = write_report(self._folder, pages=pages, statistics=known)
            if known is None:
                self._statistics = statistics.for_tables()
        except Exception as error:  # a report can be written again; the sweep continues
            print(f"the report could not be written: {type(error).__name__}: {escaped(str(error))}", file=sys.stderr)
        if pages:
            release_memory()
        self._mlflow_sync.nudge()
