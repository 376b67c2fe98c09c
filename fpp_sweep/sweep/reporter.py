"""Keep `report/` and MLflow up to date from a thread, at intervals: a report takes CPU time from trials."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import escaped, type_and_message
from fpp_sweep.tracking.delivery import DeliveryThread

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics
    from fpp_sweep.search.searcher import TrialChange

TABLE_INTERVAL, PAGE_INTERVAL = 2.0, 60.0  # seconds
PAUSE_FACTOR = 20  # pause before the next page / time that the last page took
NICENESS = 10  # of the process that writes a page: trials come first


class Reporter:
    """Writes the tables after each change, and the page from time to time."""

    def __init__(self, folder: SweepFolder, mlflow: DeliveryThread) -> None:
        self._folder, self._mlflow = folder, mlflow
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._statistics: SweepStatistics | None = None  # those of the last page's time: they take seconds
        self._page_process: subprocess.Popen[bytes] | None = None
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
        if self._page_process is not None:
            self._page_process.kill()  # its files are replaced whole
        if self._thread.is_alive():
            self._thread.join()
        self._try_to(lambda: write_report(self._folder, pages=True))

    def _work(self) -> None:
        while self._changed.wait() and not self._closing.is_set():
            self._changed.clear()
            if time.monotonic() >= self._next_page:
                self._try_to(self._write_page)
            else:
                self._try_to(self._write_tables)
            self._closing.wait(TABLE_INTERVAL)

    def _write_page(self) -> SweepStatistics | None:
        """Write everything by `show NAME --page`: the libraries that draw take 60 MB and Python's lock for seconds."""
        began = time.monotonic()
        words = [sys.executable, "-m", "fpp_sweep.show", str(self._folder.path), "--page"]
        if plugins.loaded():  # by this process: a folder from elsewhere may name other files
            words += ["--plugin", *(file.path for file in plugins.loaded())]
        # without the current folder, which may be from another person
        folders = os.pathsep.join(path for path in sys.path if os.path.isabs(path))
        # in another process group, so that Ctrl-C reaches the driver only, which stops this process
        self._page_process = subprocess.Popen(
            words,
            env=os.environ | {"PYTHONPATH": folders, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        os.setpriority(os.PRIO_PROCESS, self._page_process.pid, NICENESS)
        if self._closing.is_set():
            self._page_process.kill()
        _, errors = self._page_process.communicate()
        self._next_page = began + max(PAGE_INTERVAL, PAUSE_FACTOR * (time.monotonic() - began))
        self._statistics = None
        if self._page_process.returncode > 0:
            raise ChildProcessError(errors.decode(errors="replace").strip().rpartition("\n")[2])
        return None

    def _write_tables(self) -> SweepStatistics:
        self._statistics = write_report(self._folder, pages=False, statistics=self._statistics)
        return self._statistics

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
