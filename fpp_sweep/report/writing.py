"""The report of a sweep, from its folder alone: tables, configs, picture and page."""

from __future__ import annotations

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.front_files import write_configs, write_front


def write_report(folder: SweepFolder, *, pages: bool, statistics: SweepStatistics | None = None) -> SweepStatistics:
    """Write `report/`, and return the statistics that its numbers rest on.

    Tables and configs take milliseconds if the statistics of an earlier report are passed; intervals are then missing
    for trials that have finished since. `pages` adds the picture, the importances and the page; these take seconds, and
    load Optuna, matplotlib and plotly.
    """
    best = folder.report / "best"
    info = folder.info()
    records = folder.trials()
    front = front_of(info, records)
    if statistics is None:
        statistics = statistics_of(folder, info, records)
    write_front(folder.report, info, front, statistics)
    write_configs(best, info, front, statistics)
    if pages:
        from fpp_sweep.report.pages import write_pages  # start-up time: loads Optuna, matplotlib and plotly

        write_pages(folder, info, records, statistics)
    return statistics
