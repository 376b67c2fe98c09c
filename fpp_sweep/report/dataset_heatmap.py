"""Dataset by dataset: where trials gain and lose."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from fpp_sweep.records.front import Front, format_metric, metrics_shown
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.html import Plot
from fpp_sweep.report.plots import BLUE, RED, text
from fpp_sweep.report.settings_plots import better_up, rounded

TALL = 560  # pixels of the map: it fits on a printed page
GAINS = [[0, RED], [0.5, "rgba(143,149,158,.08)"], [1, BLUE]]


def heat_map(info: SweepInfo, front: Front) -> Plot:
    """Every finished record on every dataset, less the dataset's median."""
    records = [record for record in (*_best_first(front), *front.baselines) if info.search_split in record.results]
    datasets = list(dict.fromkeys(name for one in records for name in one.results[info.search_split].datasets))
    if len(records) < 2 or len(datasets) < 2:
        return Plot("heat", instead="Fewer than two datasets, or than two finished trials.")
    wanted = dict.fromkeys(metric.partition("/")[0] for metric in (*metrics_shown(info.objectives), "nll", "brier"))
    tables = {metric: _table(info, records, datasets, metric) for metric in wanted}
    choices = {metric: {"traces": [_gains(info, metric, table)]} for metric, table in tables.items() if table}
    trace = {
        "type": "heatmap",
        "x": list(map(text, datasets)),
        "y": [text(record.label) for record in records],
        "colorscale": GAINS,
        "colorbar": {"thickness": 10},
        "hovertemplate": "%{y}, %{x}: %{text} (%{z:+.3g})<extra></extra>",
    }
    height = 110 + min(TALL, 14 * len(records))
    layout = {
        "height": height,
        "margin": {"l": 110, "r": 8, "t": 16, "b": 60},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "xaxis": {"type": "category", "showgrid": False},
    }
    says = f"{len(records)} trials and baselines on {len(datasets)} datasets, beside each dataset's median"
    return Plot(
        "heat", [trace], layout, least_width=110 + 44 * len(datasets), choices=choices, asks="metric", says=says
    )


def _best_first(front: Front) -> list[TrialRecord]:
    sign = -1 if front.goals[0] == "max" else 1
    return sorted(front.finished, key=lambda record: sign * (record.values or (0.0,))[0])


def _table(
    info: SweepInfo, records: Sequence[TrialRecord], datasets: Sequence[str], metric: str
) -> list[list[float | None]]:
    """Empty where no record has the metric of a dataset."""
    found = [
        [one.results[info.search_split].datasets.get(name, {}).get(metric) for name in datasets] for one in records
    ]
    return found if any(value is not None for row in found for value in row) else []


def _gains(info: SweepInfo, metric: str, table: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    middles = [median([value for value in column if value is not None] or [0]) for column in zip(*table, strict=True)]
    rows = [
        [None if value is None else rounded(value - middle) for value, middle in zip(row, middles, strict=True)]
        for row in table
    ]
    sizes = [abs(value) for row in rows for value in row if value is not None]
    reach = quantiles(sizes * 2, n=20)[-1] or max(sizes) or 1.0  # what one in twenty is beyond stands at the end
    texts = [[format_metric(metric, value) for value in row] for row in table]
    return {"z": rows, "text": texts, "zmin": -reach, "zmax": reach, "reversescale": not better_up(info, metric)}
