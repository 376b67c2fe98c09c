"""The results of a sweep, from its records alone: the front as tables, picture and page, and the configs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.tables import write_configs, write_tables
from fpp_sweep.spec.files import write_json

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence

__all__ = ["write_report"]


def write_report(folder: SweepFolder, *, pages: bool, evidence: Evidence | None = None) -> Evidence:
    """Bring `report/` up to date: tables and configs, in milliseconds where an earlier report's evidence will do.

    `pages` adds picture, importances and page, which take seconds, as do the libraries that draw them: the border to
    Optuna, matplotlib and plotly.
    """
    from fpp_sweep.report.evidence import evidence_of  # loads numpy

    best = folder.inside(folder.report / "best")
    info, records = folder.info(), folder.trials()
    front = front_of(info, records)
    evidence = evidence_of(folder.artifacts, info, front) if evidence is None else evidence
    write_tables(folder.report, info, front, evidence)
    write_configs(best, info, front)
    if pages:
        from fpp_sweep.report.importance import importances
        from fpp_sweep.report.page import write_page
        from fpp_sweep.report.pictures import write_picture

        rows = importances(info, front.finished)
        document = {row.metric: row.shares if row.shares else {"skipped": row.skipped} for row in rows}
        write_json(folder.report / "importances.json", document)
        write_picture(folder.report / "front.png", info, front, evidence)
        write_page(folder, info, records, front, evidence, rows)
    return evidence
