"""The charts of a page as plotly's plain data: the front, and the objectives over each setting.

Colours that follow the reader's theme are left to the page. Plotly interprets some HTML in the texts that it draws,
which `plot_text` escapes.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import Front, metric_of, splits_of, values_of
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.records.texts import (
    VARIANCES,
    choice_texts,
    format_metric,
    is_number,
    search_range,
    setting_text,
    values_by_setting,
    varies,
)
from fpp_sweep.report.figures import (
    FRAME_MARGIN,
    MEDIAN_LABEL,
    REGION_LABEL,
    FrontFigure,
    Points,
    clipped,
    front_figures,
    trials_below_floor,
    with_margin,
)
from fpp_sweep.report.formatting import cut
from fpp_sweep.spec.config import setting
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.palette import BLUE, CIRCLE, GREY, RED, TRIANGLE
from fpp_sweep.statistics.front_support import Region

N_HOVERED_SETTINGS = 18  # settings in a hover label; a click shows all
TEXT_LENGTH = 48  # characters of a value in a chart
MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0}

Trace = dict[str, Any]
UNLABELLED: Trace = {"hoverinfo": "skip", "showlegend": False}
SHADE = "rgba(68,119,170,0.15)"  # blue that lets the background through


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart that plotly draws."""

    name: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any]
    description: str  # for screen readers


# --- the front ----------------------------------------------------------------------------------------


def front_plots(info: SweepInfo, statistics: SweepStatistics) -> list[Plot]:
    """Return a plot for each pair of objectives; a single objective stands over the order of the trials."""
    front = statistics.front
    if not (front.finished or front.baselines):
        return []
    plots = []
    for index, figure in enumerate(front_figures(info, statistics)):
        plots.append(_front_plot(f"front-{index}", info, statistics, figure))
    return plots


def _front_plot(name: str, info: SweepInfo, statistics: SweepStatistics, figure: FrontFigure) -> Plot:
    front = statistics.front
    traces: list[Trace] = []
    if figure.region is not None:
        traces += _region_traces(figure.region)
    if figure.staircase is not None:
        xs, ys = figure.staircase
        line = {"color": BLUE, "width": 1.5}
        traces.append({"type": "scatter", "mode": "lines", "x": xs, "y": ys, "line": line, **UNLABELLED})
    for points in figure.points:
        if points.kind not in ("infeasible", "below floor"):
            traces += _other_split_traces(info, front, figure, points)
    for points in figure.points:
        traces.append(_points_trace(info, statistics, points))
    x_axis: dict[str, Any] = {"title": {"text": plot_text(figure.x_title)}}
    y_axis: dict[str, Any] = {"title": {"text": plot_text(figure.y_title)}}
    if figure.frame is not None:
        x_axis["range"], y_axis["range"] = list(figure.frame.xs), list(figure.frame.ys)
    layout = {
        "xaxis": x_axis,
        "yaxis": y_axis,
        "hovermode": "closest",
        "height": 480,
        "margin": MARGIN,
        "legend": LEGEND,
    }
    counts = f"{plural(len(front.finished), 'trial')} and {plural(len(front.baselines), 'baseline')}"
    description = f"{figure.y_title} over {figure.x_title} of {counts}; the table has the same numbers"
    return Plot(name=name, traces=traces, layout=layout, description=description)


def _points_trace(info: SweepInfo, statistics: SweepStatistics, points: Points) -> Trace:
    names = []
    hover_texts = []
    for record in points.records:
        names.append(record.name)
        hover_texts.append(_hover_text(info, statistics, record))
    marker: dict[str, Any] = {"color": points.color, "symbol": points.marker.plotly, "size": 11}
    if points.kind in ("trials", "infeasible"):
        marker |= {"size": 7, "opacity": 0.7}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(points.label),
        "x": points.xs,
        "y": points.ys,
        "text": hover_texts,
        "customdata": names,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": marker,
        **_error_bars(points),
    }


def _error_bars(points: Points) -> dict[str, Any]:
    """Return the intervals of an axis on which all points have one."""
    bars = {}
    for axis, errors in (("error_x", points.x_errors), ("error_y", points.y_errors)):
        if errors is not None and errors.size and np.isfinite(errors).all():
            below, above = errors.tolist()
            bars[axis] = {"type": "data", "array": above, "arrayminus": below, "symmetric": False}
            bars[axis] |= {"thickness": 1, "width": 2}
    return bars


def _hover_text(info: SweepInfo, statistics: SweepStatistics, record: TrialRecord) -> str:
    remarks = [record.origin]
    support = statistics.support.get(record.name, "")
    if support:
        remarks.append(support)
    remarks += statistics.front.marks.get(record.name, [])
    lines = [f"<b>{plot_text(record.name)}</b> ({plot_text(', '.join(remarks))})"]
    for objective, value in zip(info.objectives, values_of(record), strict=True):
        lines.append(f"{plot_text(objective.metric)}: <b>{format_metric(objective.metric, value)}</b>")
    settings = dict(record.params)
    if record.is_imported:
        settings = dict(record.config)
    elif not settings:
        settings = {"method": record.config.get("method"), "prompt": record.config.get("prompt")}
    for key, value in list(settings.items())[:N_HOVERED_SETTINGS]:
        lines.append(f"{plot_text(key)} = {plot_text(setting_text(key, value))}")
    if len(settings) > N_HOVERED_SETTINGS:
        lines.append(f"and {len(settings) - N_HOVERED_SETTINGS} more")
    for name in record.broken:
        lines.append(f"breaks {plot_text(name)}")
    return "<br>".join(lines)


def _other_split_traces(info: SweepInfo, front: Front, figure: FrontFigure, points: Points) -> Iterator[Trace]:
    """Yield where the same trials are on other splits: hollow markers, each at the end of a thin line.

    The line of the final stage is solid, others are dotted. Of the trials beside the front only finalists have any.
    """
    x_metric, y_metric = (info.objectives[index].metric for index in figure.pair)
    for split in splits_of(info, points.records)[1:]:
        records = [record for record in points.records if split in record.results]
        dash = "solid" if split == FINAL else "dot"
        start_xs, start_ys = front.coordinates(records, figure.pair)
        xs: list[float | None] = []
        ys: list[float | None] = []
        texts: list[str | None] = []
        names: list[str] = []
        for record, x, y in zip(records, start_xs, start_ys, strict=True):
            end_x = metric_of(record.results[split], x_metric)
            end_y = metric_of(record.results[split], y_metric)
            if figure.pair[0] == figure.pair[1]:
                end_x = x  # the order of the trials
            xs += [x, end_x, None]  # the gap keeps the lines of two trials apart
            ys += [y, end_y, None]
            title = f"<b>{plot_text(record.name)}</b> on {plot_text(split)}"
            texts += [None, f"{title}<br>{plot_text(y_metric)}: {format_metric(y_metric, end_y)}", None]
            names += [record.name] * 3
        yield {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"{plot_text(points.label)} on {plot_text(split)}",
            "showlegend": points.kind == "front" and bool(records),
            "x": xs,
            "y": ys,
            "text": texts,
            "customdata": names,
            "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": points.color, "width": 1, "dash": dash},
            # only the end of each line has a marker; a filled one marks its start already
            "marker": {"symbol": f"{points.marker.plotly}-open", "size": [0, 10, 0] * len(records)},
            "opacity": 0.75,
        }


def _region_traces(region: Region) -> list[Trace]:
    line: Trace = {"type": "scatter", "mode": "lines", "x": region.xs, "hoverinfo": "skip", "legendgroup": "region"}
    invisible = {"color": BLUE, "width": 0}
    dashed = {"color": BLUE, "width": 1, "dash": "dash"}
    best = {**line, "y": region.best, "line": invisible, **UNLABELLED}
    worst = {**line, "y": region.worst, "line": invisible, "name": REGION_LABEL}
    worst |= {"fill": "tonexty", "fillcolor": SHADE}
    median = {**line, "y": region.median, "line": dashed, "name": MEDIAN_LABEL}
    return [best, worst, median]


# --- the settings -------------------------------------------------------------------------------------

MIN_TRIALS = 16  # fewer say too little about the settings
MAX_SETTINGS = 12  # settings that have charts, the most important ones
N_GROUPS = 4  # medians over a range
STRIP_LAYOUT = {
    "height": 220,
    "margin": {"l": 40, "r": 12, "t": 8, "b": 40},
    "showlegend": False,
    "hovermode": "closest",
}


def settings_plots(info: SweepInfo, front: Front) -> dict[str, list[Plot]]:
    """Return the plots of each objective over the settings; none of fewer than MIN_TRIALS trials."""
    if len(front.finished) < MIN_TRIALS:
        return {}
    from fpp_sweep.report.importances import importances  # start-up time: loads Optuna

    plots = {}
    for index, objective in enumerate(info.objectives):
        strips = _strip_plots(info, front, index, importances(info, front, index))
        if strips:
            plots[objective.metric] = strips
    return plots


def _strip_plots(info: SweepInfo, front: Front, index: int, importances: Mapping[str, float]) -> list[Plot]:
    """Return an objective of all finished trials over each setting that varies, the most important one first."""
    columns = {}
    for key, values in values_by_setting(front.finished).items():
        if varies(values):
            columns[key] = values
    keys = sorted(columns, key=lambda key: -importances.get(key, 0.0))
    plots: list[Plot] = []
    for key in keys[:MAX_SETTINGS]:
        title = plot_text(key)
        if key in importances:
            title += f", importance {importances[key]:.2f}"
        plots.append(_strip_plot(f"setting-{index}-{len(plots)}", title, key, columns[key], info, front, index))
    return plots


def _strip_plot(
    name: str, title: str, key: str, column: Sequence[Any], info: SweepInfo, front: Front, index: int
) -> Plot:
    metric = info.objectives[index].metric
    xs, x_axis = _setting_axis(info, key, column)
    texts, colors, symbols = [], [], []
    edge = {record.name for record in trials_below_floor(front)}
    members = {record.name for record in front.members}
    names, values = [], []
    usual = []  # values of trials above the floor
    for record in front.finished:
        value = values_of(record)[index]
        names.append(record.name)
        values.append(value)
        texts.append(f"{plot_text(record.name)}: {format_metric(metric, value)}")
        if record.name in edge:
            symbols.append(TRIANGLE.plotly)
        else:
            symbols.append(CIRCLE.plotly)
            usual.append(value)
        colors.append(BLUE if record.name in members - edge else GREY)
    ys, y_axis = _usual_range(values, usual)
    points: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": ys,
        "text": texts,
        "customdata": names,
        "hovertemplate": "%{text}<br>%{x}<extra></extra>",
        "marker": {"color": colors, "symbol": symbols, "size": 7},
    }
    layout = {**STRIP_LAYOUT, "xaxis": {"title": {"text": title}, **x_axis}, "yaxis": y_axis}
    description = f"{metric} of {plural(len(front.finished), 'trial')} over {title}"
    return Plot(name=name, traces=[_medians(xs, ys), points], layout=layout, description=description)


def _usual_range(values: Sequence[float], usual: Sequence[float]) -> tuple[Sequence[float], dict[str, Any]]:
    """Return values on an axis that is as long as the usual ones need; the others are moved to its ends."""
    limits = with_margin(usual, FRAME_MARGIN)
    if len(usual) == len(values) or limits[0] == limits[1]:
        return values, {}
    return clipped(values, limits), {"range": limits}


def _setting_axis(info: SweepInfo, key: str, column: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the position of each trial on the axis of a setting, None for a number that is not set, and the axis."""
    present = [value for value in column if value is not None]
    if not all(is_number(value) for value in present):
        return [plot_text(text) for text in choice_texts(column)], {"type": "category"}
    axis: dict[str, Any] = {"tickformat": "~g", "nticks": 6}
    scale = 1.0
    if key in VARIANCES:
        scale = setting(key).default
        axis["tickprefix"] = "x"
    if search_range(info, key).get("log") and min(present) > 0:
        axis["type"] = "log"
        if max(present) > 30 * min(present):
            axis["dtick"] = 1
    positions: list[float | None] = []
    for value in column:
        positions.append(None if value is None else value / scale)
    return positions, axis


def _medians(xs: Sequence[Any], values: Sequence[float]) -> Trace:
    """Return the medians of each choice, or of each quarter of the trials along a range."""
    placed = [(x, value) for x, value in zip(xs, values, strict=True) if x is not None]
    groups: dict[Any, list[tuple[Any, float]]] = {}
    if all(is_number(x) for x, _ in placed) and len({x for x, _ in placed}) > N_GROUPS:
        for rank, point in enumerate(sorted(placed)):
            groups.setdefault(rank * N_GROUPS // len(placed), []).append(point)
    else:
        for point in placed:
            groups.setdefault(point[0], []).append(point)
    middles: list[Any] = []
    medians = []
    for points in groups.values():
        x = points[len(points) // 2][0]
        middles.append(x)
        medians.append(median(value for _, value in points))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": middles,
        "y": medians,
        "hovertemplate": "median %{y:.4g}<extra></extra>",
        "marker": {"symbol": "line-ew-open", "size": 26, "color": RED, "line": {"width": 3}},
    }


# --- texts and colours --------------------------------------------------------------------------------


def plot_text(text: str) -> str:
    return html.escape(cut(text, TEXT_LENGTH), quote=False)
