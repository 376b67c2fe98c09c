"""The figures of a sweep's page, for a notebook."""

from __future__ import annotations

from plotly.graph_objects import Figure  # type: ignore[import-untyped]

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.plots import front_plots, settings_plots


def figures(folder: SweepFolder) -> dict[str, Figure]:
    """Return the figures that have data, by name, in Plotly's own colours."""
    info = folder.info()
    statistics = statistics_of(folder, info, folder.trials())
    plots = front_plots(info, statistics)
    for strips in settings_plots(info, statistics.front).values():
        plots += strips
    return {plot.name: Figure(data=list(plot.traces), layout=plot.layout) for plot in plots}
