"""The last lines of a sweep's summary: what there is to open, and the command that uses the best config."""

from __future__ import annotations

from collections.abc import Iterator

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.repeat import use_command
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.tracking import last_uri, mlflow_links

LABEL_COLUMNS = 12  # width of a line's label, such as `work`


def next_lines(folder: SweepFolder, info: SweepInfo, statistics: SweepStatistics) -> Iterator[str]:
    """Yield what there is to open, and the command that uses the best config."""
    yield f"sweep       {folder.path}"
    page = folder.report / "sweep.html"
    if page.is_file():
        yield f"page        {page.as_uri()}"
    yield from _use_lines(folder, info, statistics)
    uri = last_uri(folder, info.tracking_uri)
    if not uri:
        yield f"MLflow      {runnable(command_line('sync', [str(folder.path)]))}"
        return
    label = "MLflow"
    for line in mlflow_links(folder, uri):
        yield f"{label:{LABEL_COLUMNS}}{line}"
        label = ""  # on the first line only


def _use_lines(folder: SweepFolder, info: SweepInfo, statistics: SweepStatistics) -> Iterator[str]:
    """Yield the command that evaluates the recommended trial on the test split, or else the best baseline or the knee.

    The best baseline replaces the knee only after the sweep.
    """
    if info.evaluate_only:
        return
    answer = statistics.answer
    label, name = "the knee", statistics.front.trial_with("knee")
    if answer.recommended:
        label, name = "use it", answer.recommended
    elif answer.best_baseline and info.state == "finished":
        label, name = "baseline", answer.best_baseline
    if name is not None and not folder.trial(name).is_imported:
        yield f"{label:{LABEL_COLUMNS}}{use_command(folder, info, name)}"
