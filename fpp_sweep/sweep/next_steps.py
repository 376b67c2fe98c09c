"""The last lines of a sweep's summary: what there is to open, and the command that uses the best config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.repeat import use_command
from fpp_sweep.spec.messages import command_line, runnable

LABEL_COLUMNS = 12  # width of a line's label, such as `work`


def next_lines(
    folder: SweepFolder, info: SweepInfo, statistics: SweepStatistics, mlflow_links: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what there is to open, and the command that uses the best config.

    Without links to MLflow, the command that brings it up to date stands for them, since it prints them.
    """
    yield f"sweep       {folder.path}"
    page = folder.report / "sweep.html"
    if page.is_file():
        yield f"page        {page.as_uri()}"
    yield from _use_lines(folder, info, statistics)
    label = "MLflow"
    for line in mlflow_links or [runnable(command_line("sync", [str(folder.path)]))]:
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
