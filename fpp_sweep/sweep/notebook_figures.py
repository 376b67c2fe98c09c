"""The figures of a sweep's page, for a notebook."""

from __future__ import annotations

from plotly.graph_objects import Figure  # type: ignore[import-untyped]

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.page import sweep_document
from fpp_sweep.report.pages import load_report


def figures(folder: SweepFolder) -> dict[str, Figure]:
    """Return the figures that have data, by name, in Plotly's own colours."""
    drawn = {}
    for plot in sweep_document(load_report(folder)).plots:
        if plot.traces:
            drawn[plot.name] = Figure(data=list(plot.traces), layout=plot.layout)
    return drawn
