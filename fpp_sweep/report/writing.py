"""The report of a sweep, from its folder alone: tables, configs, picture and page."""

from __future__ import annotations

from pathlib import Path

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.front_files import write_configs, write_front
from fpp_sweep.spec.errors import InputError


def write_report(folder: SweepFolder, *, pages: bool, statistics: SweepStatistics | None = None) -> SweepStatistics:
    """Write `report/`, and return the statistics that its numbers rest on.

    Tables and configs take milliseconds if the statistics of an earlier report are passed; intervals are then missing
    for trials that have finished since. `pages` adds the picture and the page; these take seconds, and load Optuna,
    matplotlib and plotly.
    """
    info = folder.info()
    records = folder.trials()
    front = front_of(info, records)
    if statistics is None:
        statistics = statistics_of(folder, info, records)
    write_front(folder.report, info, front, statistics)
    write_configs(folder.report / "best", info, front, statistics)
    if pages:
        from fpp_sweep.report import figures, page  # start-up time: load matplotlib and Jinja2

        figures.write_front_picture(folder.report / "front.png", info, statistics)
        page.write_sweep_page(folder, info, records, statistics)
    return statistics


def write_latest_report(path: Path) -> Path:
    """Write the whole report of a sweep, and return the page's path.

    A driver records the end of its sweep before it writes the last report, which an older one has perhaps replaced; so
    write the report again if the sweep has ended meanwhile.
    """
    folder = SweepFolder.open(path)
    try:
        while True:
            info = folder.info()
            write_report(folder, pages=True)
            info_now = folder.info()
            if info_now.state == "running" or info_now == info:
                return folder.report / "sweep.html"
    except OSError as error:
        problem = f"{folder.report}: cannot be written ({error.strerror or error})"
        raise InputError(f"{problem}; copy the sweep to a folder that can be written, and name the copy") from error
