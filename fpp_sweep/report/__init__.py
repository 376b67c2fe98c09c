"""The report of a sweep, from its folder alone: tables, configs, picture and page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.front_files import write_configs, write_front
from fpp_sweep.spec.files import write_json

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence

__all__ = ["write_report"]


def write_report(folder: SweepFolder, *, pages: bool, evidence: Evidence | None = None) -> Evidence:
    """Write `report/` again, and return the evidence that its numbers rest on.

    Tables and configs take milliseconds if the evidence of an earlier report is passed. `pages` adds the picture, the
    importances and the page; these take seconds, and load Optuna, matplotlib and plotly.
    """
    from fpp_sweep.report.evidence import evidence_of  # start-up time: loads numpy

    best = folder.inside(folder.report / "best")
    info = folder.info()
    records = folder.trials()
    front = front_of(info, records)
    if evidence is None:
        evidence = evidence_of(folder.artifacts, info, front)
    write_front(folder.report, info, front, evidence)
    write_configs(best, info, front)
    if pages:
        from fpp_sweep.report.figures import write_front_picture  # start-up time
        from fpp_sweep.report.importance import importances  # start-up time: loads optuna
        from fpp_sweep.report.page import SweepReport, write_page  # start-up time

        rows = importances(info, front.finished)
        document = {row.metric: row.shares if row.shares else {"skipped": row.skipped} for row in rows}
        write_json(folder.report / "importances.json", document)
        write_front_picture(folder.report / "front.png", info, front, evidence)
        report = SweepReport(
            folder=folder, info=info, records=records, front=front, evidence=evidence, importances=rows
        )
        write_page(report)
    return evidence
