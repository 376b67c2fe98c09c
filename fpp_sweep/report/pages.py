"""The slow part of a report: importances, the picture of the front, and the page."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.figures import write_front_picture
from fpp_sweep.report.importance import compute_importances
from fpp_sweep.report.page import SweepReport, write_page
from fpp_sweep.spec.files import write_json


def write_pages(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics
) -> None:
    importances = compute_importances(info, statistics.front.finished)
    document: dict[str, object] = {}
    for row in importances:
        document[row.metric] = dict(row.shares) if row.shares else {"skipped": row.skipped}
    write_json(folder.report / "importances.json", document)
    write_front_picture(folder.report / "front.png", info, statistics)
    write_page(SweepReport(folder=folder, info=info, records=records, statistics=statistics, importances=importances))
