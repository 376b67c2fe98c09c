"""The report of a sweep, from its folder alone: tables, configs, picture and page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.front_files import write_configs, write_front
from fpp_sweep.spec.files import write_json

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics

__all__ = ["write_report"]


def write_report(folder: SweepFolder, *, pages: bool, statistics: SweepStatistics | None = None) -> SweepStatistics:
    """Write `report/` again, and return the statistics that its numbers rest on.

    Tables and configs take milliseconds if the statistics of an earlier report are passed; intervals are then missing
    for trials that have finished since. `pages` adds the picture, the importances and the page; these take seconds, and
    load Optuna, matplotlib and plotly.
    """
    from fpp_sweep.records.answer import statistics_of  # start-up time: loads numpy

    best = folder.inside(folder.report / "best")
    info = folder.info()
    records = folder.trials()
    front = front_of(info, records)
    if statistics is None:
        statistics = statistics_of(folder, info, records)
    write_front(folder.report, info, front, statistics)
    write_configs(best, info, front, statistics)
    if pages:
        from fpp_sweep.report.figures import write_front_picture  # start-up time
        from fpp_sweep.report.importance import compute_importances  # start-up time: loads optuna
        from fpp_sweep.report.page import SweepReport, write_page  # start-up time

        importances = compute_importances(info, front.finished)
        document: dict[str, object] = {}
        for row in importances:
            document[row.metric] = dict(row.shares) if row.shares else {"skipped": row.skipped}
        write_json(folder.report / "importances.json", document)
        write_front_picture(folder.report / "front.png", info, statistics)
        write_page(
            SweepReport(folder=folder, info=info, records=records, statistics=statistics, importances=importances)
        )
    return statistics
