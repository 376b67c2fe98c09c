"""Write the page of a running sweep in another process, which leaves the driver's memory and its lock alone.

The libraries that draw take 60 MB, and a page of a large sweep holds Python's lock for seconds.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec import plugins
from fpp_sweep.sweep.child_process import child_environment, end_with_parent

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics

NICENESS = 10  # trials come first


class PageProcess:
    """Writes pages, one at a time, until it is stopped."""

    def __init__(self, folder: SweepFolder) -> None:
        self._path = folder.path
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def write(self) -> SweepStatistics | None:
        """Write the report with its page; return the statistics that tables need, or None if it was stopped."""
        words = [sys.executable, "-m", "fpp_sweep.sweep.page_process", str(self._path)]
        # in another process group, so that Ctrl-C reaches the driver only, which stops this process
        self._process = subprocess.Popen(
            words,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        if self._is_stopped:
            self._process.kill()
        output, errors = self._process.communicate(pickle.dumps(plugins.loaded()))
        if self._is_stopped:
            return None
        if self._process.returncode:
            last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ChildProcessError(f"status {self._process.returncode}: {last_line}")
        statistics: SweepStatistics = pickle.loads(output)
        return statistics

    def stop(self) -> None:
        """Kill the process of a page that is not yet written; its files are replaced whole."""
        self._is_stopped = True
        if self._process is not None:
            self._process.kill()


def main(path: Path) -> None:
    """Write the report of a sweep's folder with the plugins that the standard input has.

    The statistics that tables need go to the standard output.
    """
    end_with_parent()
    os.nice(NICENESS)
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries and plugins may print
    plugins.load(pickle.load(sys.stdin.buffer))
    statistics = write_report(SweepFolder(path), pages=True)
    with os.fdopen(output, "wb") as file:
        pickle.dump(statistics.for_tables(), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
