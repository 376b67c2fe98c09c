"""The page's plots of the front, the hypervolume and the importances, as plotly's plain data.

Colours that follow the reader's theme are left to the page. Plotly interprets some HTML in the texts that it draws,
which `plot_text` escapes; parallel coordinates draw their texts as they are.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from statistics import quantiles
from typing import Any

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import Front, metric_of, splits_of, values_of
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.records.texts import format_metric, setting_text
from fpp_sweep.report.document import Plot
from fpp_sweep.report.effects import Effects
from fpp_sweep.report.figures import (
    MEDIAN_LABEL,
    REGION_LABEL,
    FrontFigure,
    Points,
    Region,
    Staircase,
    ends_of_intervals,
    front_figures,
    with_margin,
)
from fpp_sweep.report.text import cut
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.palette import BLUE, GREY, RED

N_HOVERED_SETTINGS = 18  # settings in a hover label; a click shows all
OUTLIER_DISTANCE = 2.0  # interquartile ranges beyond the quartiles; points further out are left out at first
RANGE_MARGIN = 0.07  # share of a range that is added at both of its ends
TEXT_LENGTH = 48  # characters of a value in a plot
MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0}

Trace = dict[str, Any]


# --- the front ----------------------------------------------------------------------------------------


def front_plots(info: SweepInfo, statistics: SweepStatistics) -> list[Plot]:
    """Return a plot for each pair of objectives; a single objective stands over the order of the trials."""
    front = statistics.front
    if not (front.finished or front.baselines):
        return [Plot(name="front", placeholder=front.why_empty)]
    plots = []
    for index, figure in enumerate(front_figures(info, statistics)):
        plots.append(_front_plot(f"front-{index}", info, statistics, figure))
    return plots


def _front_plot(name: str, info: SweepInfo, statistics: SweepStatistics, figure: FrontFigure) -> Plot:
    front = statistics.front
    traces: list[Trace] = []
    for region in figure.regions:
        traces += _region_traces(region)
    for staircase in figure.staircases:
        traces.append(_staircase_trace(staircase))
    for points in figure.points:
        if points.kind != "infeasible":
            traces += _other_split_traces(info, front, figure, points)
    for points in figure.points:
        traces.append(_points_trace(info, statistics, points))
    layout = {
        "xaxis": {"title": {"text": plot_text(figure.x_title)}},
        "yaxis": {"title": {"text": plot_text(figure.y_title)}},
        "hovermode": "closest",
        "height": 480,
        "margin": MARGIN,
        "legend": LEGEND,
    }
    counts = f"{plural(len(front.finished), 'trial')} and {plural(len(front.baselines), 'baseline')}"
    description = f"{figure.y_title} over {figure.x_title} of {counts}; the table has the same numbers"
    plot = Plot(name=name, traces=traces, layout=layout, description=description)
    if figure.frame is not None:
        return with_zoom(plot, {"xaxis": list(figure.frame.xs), "yaxis": list(figure.frame.ys)})
    essential = []
    for points in figure.points:
        if points.kind == "front":
            essential += list(ends_of_intervals(points))
    return without_outliers(plot, essential)


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
        above = []
        below = []
        for error in errors:
            if error is not None:
                above.append(error.above)
                below.append(error.below)
        if above and len(above) == len(errors):
            bars[axis] = {"type": "data", "array": above, "arrayminus": below, "symmetric": False}
            bars[axis] |= {"thickness": 1, "width": 2}
    return bars


def _hover_text(info: SweepInfo, statistics: SweepStatistics, record: TrialRecord) -> str:
    remarks = [record.origin]
    support = statistics.support.word(record.name)
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


def _staircase_trace(staircase: Staircase) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": staircase.xs,
        "y": staircase.ys,
        "line": {"color": staircase.color, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _region_traces(region: Region) -> list[Trace]:
    line: Trace = {"type": "scatter", "mode": "lines", "x": region.xs, "hoverinfo": "skip", "legendgroup": "region"}
    invisible = {"color": region.color, "width": 0}
    dashed = {"color": region.color, "width": 1, "dash": "dash"}
    best = {**line, "y": region.best, "line": invisible, "showlegend": False}
    worst = {**line, "y": region.worst, "line": invisible, "name": REGION_LABEL}
    worst |= {"fill": "tonexty", "fillcolor": transparent(region.color, 0.15)}
    median = {**line, "y": region.median, "line": dashed, "name": MEDIAN_LABEL}
    return [best, worst, median]


# --- axes that leave outliers out ---------------------------------------------------------------------


def without_outliers(plot: Plot, essential: Sequence[tuple[float, float]] = ()) -> Plot:
    """Return a plot whose axes leave outliers out until the reader asks for all points.

    The essential points are never left out.
    """
    zoom = {}
    for index, axis in enumerate(("xaxis", "yaxis")):
        ends = range_without_outliers([point[index] for point in _marker_points(plot)])
        if ends:
            zoom[axis] = _covering(ends, [point[index] for point in essential])
    return with_zoom(plot, zoom)


def with_zoom(plot: Plot, zoom: Mapping[str, list[float]]) -> Plot:
    """Return a plot whose axes have these ranges until the reader asks for all points."""
    outliers = set()
    for trace in plot.traces:
        if "markers" not in trace["mode"]:
            continue
        for name, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True):
            if _is_outside(x, zoom.get("xaxis")) or _is_outside(y, zoom.get("yaxis")):
                outliers.add(name)
    return replace(plot, zoom=zoom, n_outliers=len(outliers))


def _marker_points(plot: Plot) -> list[tuple[float | None, float | None]]:
    """Return x and y of all markers; None where a line has a gap."""
    points = []
    for trace in plot.traces:
        if "markers" in trace["mode"]:
            points += list(zip(trace["x"], trace["y"], strict=True))
    return points


def _covering(ends: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return a range that covers `ends` and the values, with a margin beyond values that are outside `ends`."""
    first, last = ends
    margin = 0.02 * (last - first)
    low, high = first, last
    for value in values:
        if value < first:
            low = min(low, value - margin)
        elif value > last:
            high = max(high, value + margin)
    return [low, high]


def _is_outside(value: float | None, ends: Sequence[float] | None) -> bool:
    if value is None or ends is None:
        return False
    return not ends[0] <= value <= ends[1]


def range_without_outliers(column: Sequence[float | None]) -> list[float] | None:
    """Return the range of the values that are no outliers, with a margin; None if there is no outlier.

    >>> range_without_outliers([70, 71, 72, 73, 74, 10]), range_without_outliers([70, 71, 72])
    ([69.72, 74.28], None)
    """
    values = sorted(value for value in column if value is not None)
    if len(values) < 4:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    distance = OUTLIER_DISTANCE * (third - first)
    inside = [value for value in values if first - distance <= value <= third + distance]
    if len(inside) == len(values) or inside[0] == inside[-1]:
        return None
    return list(with_margin(inside, RANGE_MARGIN))


# --- importances and hypervolume ----------------------------------------------------------------------


def importance_plot(effects: Sequence[Effects]) -> Plot:
    """Return bars for each objective whose effects are known."""
    shown = []
    reasons = []
    for row in effects:
        if row.shares:
            shown.append(row)
        else:
            reasons.append(f"{row.metric}: {row.skipped}.")
    if not shown:
        return Plot(name="importances", placeholder=" ".join(reasons))
    shares = largest_shares(effects)
    keys = sorted(shares, key=lambda key: shares[key])
    traces = []
    for row, color in zip(shown, cycle([BLUE, RED, GREY]), strict=False):
        trace = {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(row.metric),
            "y": plot_texts(keys),
            "x": [row.shares[key] for key in keys],
            "marker": {"color": color},
            "error_x": _whiskers(row, keys),
            "hovertemplate": "%{y}: %{x:.2f}<extra>%{fullData.name}</extra>",
        }
        traces.append(trace)
    layout = {
        "barmode": "group",
        "height": 120 + 22 * len(keys) * len(shown),
        "margin": {**MARGIN, "l": 16},
        "legend": LEGEND,
        "xaxis": {"title": {"text": "share of the variance"}, "range": [0, None], "rangemode": "tozero"},
        "yaxis": {"automargin": True, "type": "category"},
    }
    return Plot(name="importances", traces=traces, layout=layout)


def largest_shares(effects: Sequence[Effects]) -> dict[str, float]:
    """Return the largest share of each setting over all objectives."""
    largest: dict[str, float] = {}
    for row in effects:
        for key, share in row.shares.items():
            largest[key] = max(share, largest.get(key, 0.0))
    return largest


def _whiskers(effects: Effects, keys: Sequence[str]) -> dict[str, Any]:
    """Return error bars over the intervals of the shares."""
    above = []
    below = []
    for key in keys:
        share = effects.shares[key]
        low, high = effects.spread[key]
        above.append(high - share)
        below.append(share - low)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "color": GREY}


def hypervolume_plot(front: Front) -> Plot:
    if not front.hypervolume:
        reason = front.why_empty
        if front.reference is None:
            reason = "The sweep has no reference point."
        return Plot(name="hypervolume", placeholder=reason)
    _, volumes = zip(*front.hypervolume, strict=True)
    names = [record.name for record in front.trials]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [front.positions[name] for name in names],
        "y": volumes,
        "text": plot_texts(names),
        "customdata": names,
        "hovertemplate": "%{text}: %{y:.4g}<extra></extra>",
        "line": {"shape": "hv", "color": BLUE},
        "marker": {"size": 5},
    }
    layout = {
        "height": 340,
        "margin": MARGIN,
        "xaxis": {"title": {"text": "trials, in the order they finished"}},
        "yaxis": {"title": {"text": "hypervolume"}, "rangemode": "tozero"},
    }
    return Plot(name="hypervolume", traces=[trace], layout=layout)


# --- texts and colours --------------------------------------------------------------------------------


def plot_text(text: str) -> str:
    return html.escape(cut(text, TEXT_LENGTH), quote=False)


def plot_texts(texts: Iterable[str]) -> list[str]:
    return [plot_text(text) for text in texts]


def transparent(color: str, opacity: float) -> str:
    """Return a colour that lets the background through.

    >>> transparent("#4477AA", 0.15)
    'rgba(68,119,170,0.15)'
    """
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return f"rgba({red},{green},{blue},{opacity})"
