"""The slow part of a report: effects of settings, the picture of the front, and the page."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.effects import Effects, compute_effects
from fpp_sweep.report.figures import write_front_picture
from fpp_sweep.report.page import SweepReport, write_page
from fpp_sweep.spec.files import write_json


def write_pages(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics
) -> None:
    effects = compute_effects(info, statistics.front)
    document: dict[str, object] = {}
    for row in effects:
        document[row.metric] = {"skipped": row.skipped} if row.skipped else shares_document(row)
    write_json(folder.report / "importances.json", document)
    write_front_picture(folder.report / "front.png", info, statistics)
    write_page(SweepReport(folder=folder, info=info, records=records, statistics=statistics, effects=effects))


def shares_document(effects: Effects) -> dict[str, object]:
    """Return the share of each setting with its interval."""
    document: dict[str, object] = {}
    for key, share in effects.shares.items():
        low, high = effects.spread[key]
        document[key] = {"share": share, "low": low, "high": high}
    return document
