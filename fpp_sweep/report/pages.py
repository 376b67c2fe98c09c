"""The slow part of a report: effects of settings, the picture of the front, and the page."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.state import is_running
from fpp_sweep.report.effects import Effects, compute_effects
from fpp_sweep.report.figures import write_front_picture
from fpp_sweep.report.page import SweepReport, write_page
from fpp_sweep.spec.files import write_json


def load_report(folder: SweepFolder) -> SweepReport:
    """Compute what the page of a sweep's folder shows."""
    info = folder.info()
    records = folder.trials()
    return report_of(folder, info, records, statistics_of(folder, info, records))


def report_of(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics
) -> SweepReport:
    """Add the effects of settings to the statistics, which take less time."""
    return SweepReport(
        folder=folder,
        info=info,
        records=records,
        statistics=statistics,
        effects=compute_effects(info, statistics.front),
        is_running=is_running(folder, info),
    )


def write_pages(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics
) -> None:
    report = report_of(folder, info, records, statistics)
    document: dict[str, object] = {}
    for row in report.effects:
        if row.skipped:
            document[row.metric] = {"skipped": row.skipped}
        else:
            document[row.metric] = shares_document(row)
    write_json(folder.report / "importances.json", document)
    write_front_picture(folder.report / "front.png", info, statistics)
    write_page(report)


def shares_document(effects: Effects) -> dict[str, object]:
    """Return the share of each setting with its interval."""
    document: dict[str, object] = {}
    for key, share in effects.shares.items():
        low, high = effects.spread[key]
        document[key] = {"share": share, "low": low, "high": high}
    return document
