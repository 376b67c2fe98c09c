"""The figures of a sweep's page, for a notebook."""

from __future__ import annotations

from plotly.graph_objects import Figure  # type: ignore[import-untyped]

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report import page
from fpp_sweep.report.evidence import evidence_of
from fpp_sweep.report.importance import importances


def figures(folder: SweepFolder) -> dict[str, Figure]:
    """Return the figures that have data, by name, in Plotly's own colours."""
    info, records = folder.info(), folder.trials()
    front = front_of(info, records)
    evidence = evidence_of(folder.artifacts, info, front)
    plots = page.figures(folder, info, records, front, evidence, importances(info, front.finished)).everything
    return {plot.name: Figure(data=list(plot.traces), layout=plot.layout) for plot in plots if plot.traces}
