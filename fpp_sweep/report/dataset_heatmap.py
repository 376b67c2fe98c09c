"""Heat map of trials and datasets: where a trial gains and loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.records.front import Front, metrics_shown
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.texts import metric_format
from fpp_sweep.report.document import Plot
from fpp_sweep.report.effects import below_floor
from fpp_sweep.report.plots import plot_texts, transparent
from fpp_sweep.report.settings_plots import more_is_better, nested_lists, rounded
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.palette import BLUE, GREY, RED
from fpp_sweep.statistics.block_stats import Numbers

MAX_HEIGHT = 560  # pixels of the map: it fits on a printed page
COLOR_SCALE = [[0, RED], [0.5, transparent(GREY, 0.08)], [1, BLUE]]
OTHER_METRICS = ("nll", "brier")  # can be chosen beside the metrics that every table shows


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
    trace = {
        "type": "heatmap",
        "x": plot_texts(datasets),
        "y": plot_texts(record.label for record in records),
        "meta": [record.name for record in records],
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
        choices=_choices(info, front, records, list(datasets)),
        choice_label="metric",
    )


def _choices(
    info: SweepInfo, front: Front, records: Sequence[TrialRecord], datasets: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the heat map's changes for each metric that has values."""
    are_below_floor = below_floor(front, records)
    choices = {}
    for metric in _metrics(info):
        values = _values(info, records, datasets, metric)
        if np.isfinite(values[~are_below_floor]).any():
            choices[metric] = {"traces": [_gains(info, metric, values, are_below_floor)]}
    return choices


def _best_first(front: Front) -> list[TrialRecord]:
    return sorted(front.finished, key=lambda record: (record.values or (0.0,))[0], reverse=front.goals[0] == "max")


def _metrics(info: SweepInfo) -> list[str]:
    """Return the metrics that a reader may choose, without dataset names, each once."""
    metrics: dict[str, None] = {}
    for metric in (*metrics_shown(info), *OTHER_METRICS):
        metrics[catalogue.parts_of(metric).of_average] = None
    return list(metrics)


def _values(info: SweepInfo, records: Sequence[TrialRecord], datasets: Sequence[str], metric: str) -> Numbers:
    """Return (records, datasets): the values of a metric; nan where a record has none."""
    values = np.full((len(records), len(datasets)), np.nan)
    for row, record in enumerate(records):
        by_dataset = record.results[info.search_split].datasets
        for column, dataset in enumerate(datasets):
            values[row, column] = by_dataset.get(dataset, {}).get(metric, np.nan)
    return values


def _gains(info: SweepInfo, metric: str, values: Numbers, are_below_floor: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the heat map's changes for a metric; its colours are fitted to the records above the floor."""
    gains = np.full(values.shape, np.nan)
    for column in np.flatnonzero(np.isfinite(values).any(axis=0)):
        gains[:, column] = values[:, column] - np.nanmedian(values[:, column])
    sizes = np.abs(gains[np.isfinite(gains) & ~are_below_floor[:, None]])
    limit = float(np.quantile(sizes, 0.95))  # the largest 5 % have the strongest colour
    if limit == 0:
        limit = float(sizes.max())
    if limit == 0:
        limit = 1.0
    specification = metric_format(metric)
    return {
        "z": nested_lists(gains, rounded),
        "text": nested_lists(values, lambda value: format(value, specification)),
        "zmin": -limit,
        "zmax": limit,
        "reversescale": not more_is_better(info, metric),
    }
