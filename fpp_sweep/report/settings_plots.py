"""Plots of the searched settings: parallel coordinates, and a metric over each setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.records.front import Front, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.texts import choice_texts, is_number, search_range, values_by_setting, varies
from fpp_sweep.report.document import Plot
from fpp_sweep.report.effects import Curve, EffectMap, Effects, below_floor, position_of_not_set
from fpp_sweep.report.figures import with_margin
from fpp_sweep.report.plots import (
    RANGE_MARGIN,
    largest_shares,
    plot_text,
    plot_texts,
    range_without_outliers,
    transparent,
)
from fpp_sweep.report.text import cut
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.palette import BLUE, GREY, INK, RED
from fpp_sweep.statistics.block_stats import Numbers

LABEL_LENGTH = 18  # characters beside an axis
MAX_TICKS = 8
MAX_DIGITS = 12  # significant digits in the number at a tick
MAX_LABEL_ERROR = 0.01  # largest distance of a tick from its number, as a share of the axis
MAX_SLICES = 12  # settings that have a plot of their own
GAIN_SCALE = [[0, RED], [0.5, "#ffffff"], [1, BLUE]]  # colors of maps, around the mean of all
LINE_SCALE = [[0, RED], [0.5, GREY], [1, BLUE]]  # colors of lines, from worst to best as in maps
UNKNOWN_SCALE = [[0, "#cfd3d8"], [1, "#cfd3d8"]]
MARGIN = {"l": 48, "r": 12, "t": 12, "b": 40}


# --- axes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting or metric with the position of each trial on it."""

    label: str
    positions: Sequence[float]
    tick_positions: Sequence[float]
    tick_texts: Sequence[str]
    range: tuple[float, float]

    @property
    def dimension(self) -> dict[str, Any]:
        """The axis as a dimension of parallel coordinates."""
        return {
            "label": self.label,
            "values": self.positions,
            "tickvals": self.tick_positions,
            "ticktext": self.tick_texts,
            "range": self.range,
        }

    @property
    def layout(self) -> dict[str, Any]:
        """The axis as plotly's x axis."""
        low, high = self.range
        margin = 0.04 * (high - low)
        return {
            "title": {"text": plot_text(self.label)},
            "range": [low - margin, high + margin],
            "tickvals": self.tick_positions,
            "ticktext": plot_texts(self.tick_texts),
        }


def axes_of(info: SweepInfo, trials: Sequence[TrialRecord]) -> dict[str, Axis]:
    """Return an axis for each setting that took more than one value."""
    axes = {}
    for key, column in values_by_setting(trials).items():
        if varies(column):
            axes[key] = axis_of(key, column, log=bool(search_range(info, key).get("log")))
    return axes


def axis_of(label: str, column: Sequence[Any], *, log: bool = False) -> Axis:
    """Return an axis for a column of values; trials that lack the value stand below the others, as `not set`.

    Numbers stand on a linear or logarithmic scale, and other values evenly spaced.
    """
    present = [value for value in column if value is not None]
    if present and all(is_number(value) for value in present):
        return _number_axis(label, column, log=log and min(present) > 0)
    return _choice_axis(label, column)


def _choice_axis(label: str, column: Sequence[Any]) -> Axis:
    texts = choice_texts(column)
    names = sorted(set(texts))
    step = math.ceil(len(names) / MAX_TICKS)
    return Axis(
        label=cut(label, LABEL_LENGTH),
        positions=[names.index(text) for text in texts],
        tick_positions=list(range(0, len(names), step)),
        tick_texts=[cut(name, LABEL_LENGTH) for name in names[::step]],
        range=(-0.2, max(len(names) - 0.8, 0.2)),
    )


def _number_axis(label: str, column: Sequence[float | None], *, log: bool) -> Axis:
    positions = np.array(column, np.float64)  # a trial without the setting gets NaN
    if log:
        positions = np.log10(positions)
    is_set = np.isfinite(positions)
    ticks = np.unique(positions[is_set])
    low, high = ticks[0], ticks[-1]
    span = high - low or 1.0
    if len(ticks) > MAX_TICKS:
        ticks = round_ticks(low, low + span, log=log)
    tick_texts = _tick_texts(ticks, span, log=log)
    bottom = low
    if not is_set.all():
        bottom = position_of_not_set(low, high)
        ticks = np.array([bottom, *ticks])
        tick_texts.insert(0, "not set")
    return Axis(
        label=cut(label, LABEL_LENGTH),
        positions=[rounded(value) for value in np.where(is_set, positions, bottom)],
        tick_positions=[rounded(tick) for tick in ticks],
        tick_texts=tick_texts,
        range=(float(bottom), float(low + span)),
    )


def _tick_texts(ticks: Numbers, span: float, *, log: bool) -> list[str]:
    """Return the numbers of ticks with three digits, or with as many more as put each number where its tick stands.

    >>> _tick_texts(np.array([0.25, 12.3456]), 15.0, log=False), _tick_texts(np.array([71.0, 71.05]), 0.1, log=False)
    (['0.25', '12.3'], ['71', '71.05'])
    """
    numbers = 10**ticks if log else ticks
    for digits in range(3, MAX_DIGITS + 1):
        texts = [f"{number:.{digits}g}" for number in numbers]
        positions = np.array(texts, np.float64)
        if log:
            positions = np.log10(positions)
        if np.abs(positions - ticks).max() <= MAX_LABEL_ERROR * span:
            break
    return texts


def round_ticks(low: float, high: float, *, log: bool) -> Numbers:
    """Return positions of round numbers in a range; positions on a logarithmic axis are powers of ten.

    >>> round_ticks(56.3, 66.8, log=False).tolist()
    [58.0, 60.0, 62.0, 64.0, 66.0]
    >>> [float(f"{10**tick:.3g}") for tick in round_ticks(-4.96, -2.14, log=True)]
    [3e-05, 0.0001, 0.0003, 0.001, 0.003]
    """
    if not log:
        return _multiples(low, high)
    powers = np.arange(math.floor(low), math.ceil(high) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        ticks = np.add.outer(powers, np.log10(mantissas)).ravel()
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if len(ticks) < MAX_TICKS:
            break
    if len(ticks) < 2:
        return np.asarray(np.log10(_multiples(10**low, 10**high)))
    return ticks


def _multiples(low: float, high: float) -> Numbers:
    """Return the multiples in a range of 1, 2 or 5 times a power of ten: about as many as an axis has room for."""
    magnitude = 10.0 ** math.floor(math.log10((high - low) / MAX_TICKS))
    for factor in (1, 2, 5, 10):
        step = factor * magnitude
        if (high - low) / step < MAX_TICKS - 1:
            break
    return np.asarray(np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step)


# --- plots --------------------------------------------------------------------------------------------


def parallel_plot(info: SweepInfo, front: Front) -> Plot:
    """Return a line for each trial through its settings and objectives, coloured by a metric."""
    trials = front.finished
    axes = list(axes_of(info, trials).values())
    if len(trials) < 2 or not axes:
        return Plot(name="parallel", placeholder="Fewer than two trials with different settings have finished.")
    columns = metric_columns(info, trials)
    are_below_floor = below_floor(front, trials)
    for objective in info.objectives:
        axes.append(_objective_axis(objective.metric, columns[objective.metric], are_below_floor))
    choices = {}
    for metric, column in columns.items():
        choices[metric] = {"traces": [{"line": color_axis(info, metric, column, are_below_floor)}]}
    trace = {
        "type": "parcoords",
        "dimensions": [axis.dimension for axis in axes],
        "line": {"colorscale": LINE_SCALE, "showscale": True, "colorbar": {"thickness": 10}},
        "labelangle": -20,
        "meta": [trial.name for trial in trials],
    }
    return Plot(
        name="parallel",
        traces=[trace],
        layout={"height": 440, "margin": {"l": 96, "r": 96, "t": 96, "b": 24}},
        description=f"a line for each of {len(trials)} trials through its settings and objectives",
        min_width=150 * len(axes),
        choices=choices,
        choice_label="colour",
    )


def _objective_axis(metric: str, column: Sequence[float], are_below_floor: NDArray[np.bool_]) -> Axis:
    """Return an axis that outliers do not stretch; they stand at its ends, as `lower` or `higher`."""
    limits = usual_range(column, are_below_floor)
    if limits is None:
        return axis_of(metric, column)
    low, high = limits
    axis = axis_of(metric, [value for value in column if low <= value <= high])
    tick_positions = list(axis.tick_positions)
    tick_texts = list(axis.tick_texts)
    if min(column) < low:
        tick_positions.insert(0, low)
        tick_texts.insert(0, "lower")
    if max(column) > high:
        tick_positions.append(high)
        tick_texts.append("higher")
    return Axis(
        label=axis.label,
        positions=clipped(column, are_below_floor),
        tick_positions=tick_positions,
        tick_texts=tick_texts,
        range=(low, high),
    )


def slice_plots(info: SweepInfo, front: Front, effects: Sequence[Effects]) -> list[Plot]:
    """Return a metric of all trials over each of the most important settings, with the effect where it is known."""
    trials = front.finished
    if len(trials) < 2:
        return []
    shares = largest_shares(effects)
    axes = axes_of(info, trials)
    keys = sorted(axes, key=lambda key: shares.get(key, 0.0), reverse=True)
    columns = metric_columns(info, trials)
    plots = []
    for index, key in enumerate(keys[:MAX_SLICES]):
        curves = {row.metric: row.curves[key] for row in effects if key in row.curves}
        plots.append(_slice_plot(f"slice-{index}", key, axes[key], columns, front, curves))
    return plots


def _slice_plot(
    name: str, key: str, axis: Axis, columns: Mapping[str, Sequence[float]], front: Front, curves: Mapping[str, Curve]
) -> Plot:
    trials = front.finished
    choices = _slice_choices(columns, below_floor(front, trials), curves)
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": axis.positions,
        "text": plot_texts(trial.name for trial in trials),
        "customdata": [trial.name for trial in trials],
        "hovertemplate": "%{text}: %{y}<extra></extra>",
        "marker": {"color": BLUE, "size": 6, "opacity": 0.8},
    }
    line = {"type": "scatter", "mode": "lines", "line": {"color": RED, "width": 2}, "hoverinfo": "skip"}
    band = {**line, "line": {"width": 0}, "fill": "toself", "fillcolor": transparent(RED, 0.2)}
    return Plot(
        name=name,
        traces=[trace, band, line] if curves else [trace],
        layout={"height": 240, "margin": MARGIN, "showlegend": False, "xaxis": axis.layout},
        description=f"metrics of {len(trials)} trials over {key}",
        choices=choices,
        group="slices",
    )


def _slice_choices(
    columns: Mapping[str, Sequence[float]], are_below_floor: NDArray[np.bool_], curves: Mapping[str, Curve]
) -> dict[str, dict[str, Any]]:
    """Return the changes of a slice for each metric."""
    choices = {}
    for metric, column in columns.items():
        traces: list[dict[str, Any]] = [{"y": column}]
        if curves:
            traces += _curve_traces(curves.get(metric))
        choice: dict[str, Any] = {"traces": traces, "layout": {"yaxis": {"title": {"text": plot_text(metric)}}}}
        y_range = usual_range(column, are_below_floor)
        if y_range:
            choice["zoom"] = {"yaxis": y_range}
            values = np.array(column)
            choice["n_outliers"] = int(np.sum((values < y_range[0]) | (values > y_range[1])))
        choices[metric] = choice
    return choices


def _curve_traces(curve: Curve | None) -> list[dict[str, Any]]:
    """Return the changes to the band and the line of a slice; both are empty for a metric without a model."""
    if curve is None:
        return [{"x": [], "y": []}, {"x": [], "y": []}]
    around = np.concatenate([curve.positions, curve.positions[::-1]])
    edge = np.concatenate([curve.high, curve.low[::-1]])
    return [_line(around, edge), _line(curve.positions, curve.mean)]


def _line(xs: np.ndarray, ys: np.ndarray) -> dict[str, Any]:
    return {"x": [rounded(x) for x in xs], "y": [rounded(y) for y in ys]}


def map_plots(info: SweepInfo, front: Front, effects: Sequence[Effects]) -> list[Plot]:
    """Return maps of each objective over pairs of its most important settings, grey where little is known."""
    axes = axes_of(info, front.finished)
    plots: list[Plot] = []
    for row in effects:
        for effect_map in row.maps:
            plots.append(_map_plot(f"map-{len(plots)}", info, row.metric, effect_map, axes))
    return plots


def _map_plot(name: str, info: SweepInfo, metric: str, effect_map: EffectMap, axes: Mapping[str, Axis]) -> Plot:
    x_key, y_key = effect_map.keys
    x_axis, y_axis = axes[x_key], axes[y_key]
    grid = {"type": "heatmap", **_line(effect_map.xs, effect_map.ys), "hoverinfo": "skip"}
    zeros = np.zeros(effect_map.mean.shape, int).tolist()
    blank = {**grid, "z": zeros, "colorscale": UNKNOWN_SCALE, "showscale": False}
    distances = np.abs(effect_map.mean - effect_map.center)
    limit = 1.0
    if np.isfinite(distances).any():
        limit = rounded(float(np.nanmax(distances)))
    heat = {
        **grid,
        "z": nested_lists(effect_map.mean, rounded),  # empty where a mean is not known to differ from the center
        "zmin": effect_map.center - limit,
        "zmax": effect_map.center + limit,
        "colorscale": GAIN_SCALE,
        "reversescale": not more_is_better(info, metric),
        "hoverinfo": "z",
        "colorbar": {"thickness": 8},
    }
    trials = {
        "type": "scatter",
        "mode": "markers",
        "x": x_axis.positions,
        "y": y_axis.positions,
        "hoverinfo": "skip",
        "marker": {"symbol": "circle-open", "size": 5, "color": INK},
    }
    layout = {
        "height": 280,
        "margin": {**MARGIN, "t": 32},
        "showlegend": False,
        "title": {"text": plot_text(metric), "font": {"size": 12}},
        "xaxis": {**x_axis.layout, "showgrid": False},
        "yaxis": {**y_axis.layout, "showgrid": False},
    }
    description = f"{metric} over {' and '.join(effect_map.keys)}"
    return Plot(name=name, traces=[blank, heat, trials], layout=layout, description=description)


# --- metrics ------------------------------------------------------------------------------------------


def metric_columns(info: SweepInfo, trials: Sequence[TrialRecord]) -> dict[str, list[float]]:
    """Return the trials' values of the objectives, then of every average that all of them have."""
    columns = {}
    for index, objective in enumerate(info.objectives):
        columns[objective.metric] = [rounded(values_of(trial)[index]) for trial in trials]
    averages = []
    shared: dict[str, None] = {}
    for trial in trials:
        average: Mapping[str, float] = {}
        if info.search_split in trial.results:
            average = trial.results[info.search_split].average
        averages.append(average)
        shared.update(dict.fromkeys(average))
    for metric in shared:
        values = [average[metric] for average in averages if metric in average]
        if metric not in columns and len(values) == len(trials):
            columns[metric] = [rounded(value) for value in values]
    return columns


def more_is_better(info: SweepInfo, metric: str) -> bool:
    for objective in info.objectives:
        if objective.metric == metric:
            return objective.goal == "max"
    row = catalogue.METRICS.get(catalogue.parts_of(metric).stem)
    return row is None or row.goal == "max"


def color_axis(
    info: SweepInfo, metric: str, column: Sequence[float], are_below_floor: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return a scale of colours that outliers do not stretch."""
    values = clipped(column, are_below_floor)
    return {"color": column, "cmin": min(values), "cmax": max(values), "reversescale": not more_is_better(info, metric)}


def usual_range(column: Sequence[float], are_below_floor: NDArray[np.bool_]) -> list[float] | None:
    """Return the range of the trials above the floor of accuracy, without outliers; None if it has all values.

    >>> usual_range([70, 71, 72, 30], np.array([False, False, False, True]))
    [69.86, 72.14]
    """
    above = np.asarray(column)[~are_below_floor].tolist()
    limits = range_without_outliers(above)
    if limits is None and len(set(above)) > 1 and len(above) < len(column):
        limits = list(with_margin(above, RANGE_MARGIN))
    return limits


def clipped(column: Sequence[float], are_below_floor: NDArray[np.bool_]) -> list[float]:
    """Return a column with its outliers at the ends of the range of the other values."""
    limits = usual_range(column, are_below_floor)
    if limits is None:
        return list(column)
    low, high = limits
    return [float(value) for value in np.clip(column, low, high)]


def nested_lists(values: Numbers, convert: Callable[[float], Any]) -> list[list[Any]]:
    """Return a matrix as lists of converted values; None where a value is missing."""
    rows = []
    for row in values.tolist():
        rows.append([convert(value) if math.isfinite(value) else None for value in row])
    return rows


def rounded(value: float) -> float:
    """Return as many digits as a plot shows: a page has many numbers."""
    return float(f"{value:.5g}")
