"""Heat map of trials and datasets: where a trial gains and loses."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from fpp_sweep.records.front import Front, format_metric, metrics_shown
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.document import Plot
from fpp_sweep.report.plots import plot_text, transparent
from fpp_sweep.report.settings_plots import more_is_better, rounded
from fpp_sweep.spec.palette import BLUE, GREY, RED

MAX_HEIGHT = 560  # pixels of the map: it fits on a printed page
COLOR_SCALE = [[0, RED], [0.5, transparent(GREY, 0.08)], [1, BLUE]]
OTHER_METRICS = ("nll", "brier")  # can be chosen beside the metrics that every table shows

Column = Sequence[float | None]


def heat_map(info: SweepInfo, front: Front) -> Plot:
    """Return the metrics of all finished trials and baselines on every dataset, minus the dataset's median."""
    records = []
    for record in (*_best_first(front), *front.baselines):
        if info.search_split in record.results:
            records.append(record)
    datasets: dict[str, None] = {}
    for record in records:
        datasets.update(dict.fromkeys(record.results[info.search_split].datasets))
    if len(records) < 2 or len(datasets) < 2:
        return Plot(name="heat", placeholder="Fewer than two datasets, or than two finished trials.")
    choices = {}
    metrics = [metric.partition("/")[0] for metric in metrics_shown(info.objectives)]
    for metric in dict.fromkeys([*metrics, *OTHER_METRICS]):
        columns = [_column(info, records, dataset, metric) for dataset in datasets]
        if any(value is not None for column in columns for value in column):
            choices[metric] = {"traces": [_gains(info, metric, columns)]}
    trace = {
        "type": "heatmap",
        "x": [plot_text(dataset) for dataset in datasets],
        "y": [plot_text(record.label) for record in records],
        "colorscale": COLOR_SCALE,
        "colorbar": {"thickness": 10},
        "hovertemplate": "%{y}, %{x}: %{text} (%{z:+.3g})<extra></extra>",
    }
    layout = {
        "height": 110 + min(MAX_HEIGHT, 14 * len(records)),
        "margin": {"l": 110, "r": 8, "t": 16, "b": 60},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "xaxis": {"type": "category", "showgrid": False},
    }
    return Plot(
        name="heat",
        traces=[trace],
        layout=layout,
        description=f"{len(records)} trials and baselines on {len(datasets)} datasets, minus each dataset's median",
        min_width=110 + 44 * len(datasets),
        choices=choices,
        choice_label="metric",
    )


def _best_first(front: Front) -> list[TrialRecord]:
    return sorted(front.finished, key=lambda record: (record.values or (0.0,))[0], reverse=front.goals[0] == "max")


def _column(info: SweepInfo, records: Sequence[TrialRecord], dataset: str, metric: str) -> Column:
    return [record.results[info.search_split].datasets.get(dataset, {}).get(metric) for record in records]


def _gains(info: SweepInfo, metric: str, columns: Sequence[Column]) -> dict[str, Any]:
    """Return the heat map's changes for a metric; plotly wants a row for each record."""
    gains = [_minus_median(column) for column in columns]
    texts = [[format_metric(metric, value) for value in column] for column in columns]
    sizes = [abs(gain) for column in gains for gain in column if gain is not None]
    limit = quantiles(sizes * 2, n=20)[-1] or max(sizes) or 1.0  # the largest 5 % all get the strongest colour
    return {
        "z": list(zip(*gains, strict=True)),
        "text": list(zip(*texts, strict=True)),
        "zmin": -limit,
        "zmax": limit,
        "reversescale": not more_is_better(info, metric),
    }


def _minus_median(column: Column) -> Column:
    middle = median([value for value in column if value is not None] or [0])
    return [None if value is None else rounded(value - middle) for value in column]
