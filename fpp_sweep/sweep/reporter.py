"""Keep `report/` and MLflow up to date from a thread, at intervals: a report takes CPU time from trials."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec.errors import escaped, type_and_message
from fpp_sweep.spec.process import release_memory
from fpp_sweep.sweep.page_process import PageProcess
from fpp_sweep.tracking.delivery import DeliveryThread

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics
    from fpp_sweep.search.searcher import TrialChange

TABLE_INTERVAL, PAGE_INTERVAL = 2.0, 60.0  # seconds
PAUSE_FACTOR = 20  # pause before the next page / time that the last page took


class Reporter:
    """Writes the tables after each change, and the page from time to time."""

    def __init__(self, folder: SweepFolder, mlflow: DeliveryThread) -> None:
        self._folder, self._mlflow = folder, mlflow
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._page_process = PageProcess(folder)
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
        self._page_process.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._try_to(partial(write_report, self._folder, pages=True))

    def _work(self) -> None:
        while self._changed.wait() and not self._closing.is_set():
            self._changed.clear()
            if time.monotonic() >= self._next_page:
                self._write_page()
            else:
                self._try_to(self._write_tables)
            self._closing.wait(TABLE_INTERVAL)

    def _write_page(self) -> None:
        began = time.monotonic()
        statistics = self._try_to(self._page_process.write)
        if statistics is not None:
            self._statistics = statistics
        release_memory()
        seconds = time.monotonic() - began
        self._next_page = began + max(PAGE_INTERVAL, PAUSE_FACTOR * seconds)

    def _write_tables(self) -> SweepStatistics:
        """Write the tables with the statistics of the last page; statistics take seconds."""
        statistics = write_report(self._folder, pages=False, statistics=self._statistics)
        if self._statistics is None:
            self._statistics = statistics.for_tables()
        return statistics

    def _try_to(self, write: Callable[[], SweepStatistics | None]) -> SweepStatistics | None:
        """Write a report; print why it could not be written. It can be written again, and the sweep continues."""
        statistics = None
        try:
            statistics = write()
        except Exception as error:
            problem = escaped(type_and_message(error))
            print(f"the report could not be written: {problem}", file=sys.stderr)
        self._mlflow.nudge(statistics)
        return statistics
