"""The page's plots as plotly's plain data; colours that follow the reader's theme are left to the page.

Plotly interprets some HTML in the texts that it draws, which `text` escapes; parallel coordinates draw theirs as they
are.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from statistics import quantiles
from typing import Any

from fpp_sweep.records.front import (
    Front,
    format_metric,
    format_setting,
    metric_of,
    objective_pairs,
    splits_of,
    staircase,
    values_of,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.evidence import Evidence
from fpp_sweep.report.html import Plot
from fpp_sweep.report.importance import Importance
from fpp_sweep.report.pictures import axis_titles, reaches
from fpp_sweep.report.theme import PALETTE

BLUE, RED, GREY = "#4c8bd6", "#e8697c", "#8f959e"  # readable on white and on black
SCALE = [[0, GREY], [0.5, BLUE], [1, RED]]  # of colours, from worst to best
_SHAPES = ("square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon", "pentagon")
_HOVERED = 18  # settings that a hover label holds; a click shows all
_FENCE = 2.0  # quartile ranges beyond the quartiles; what lies further out is left out at first
_LETTERS = 48  # of a value in a plot
MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0}


def front_plots(info: SweepInfo, front: Front, evidence: Evidence) -> list[Plot]:
    """One for each pair of objectives; a single objective over the order of the trials."""
    if not (front.finished or front.baselines):
        return [Plot("front", instead="No trial has finished yet.")]
    pairs = enumerate(objective_pairs(info))
    return [_front_plot(info, front, evidence, pair, f"front-{index}") for index, pair in pairs]


def _front_plot(info: SweepInfo, front: Front, evidence: Evidence, pair: tuple[int, int], name: str) -> Plot:
    def points(records: Sequence[TrialRecord], label: str, **marker: Any) -> dict[str, Any]:
        xs, ys = front.coordinates(records, pair)
        return {
            "type": "scatter",
            "mode": "markers",
            "name": text(label),
            "x": xs,
            "y": ys,
            "text": [_hover(info, record, _marks(front, evidence, record)) for record in records],
            "customdata": [record.name for record in records],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": marker,
        }

    traces = [points(front.dominated, "trials", color=GREY, size=7, opacity=0.7)]
    if front.infeasible:
        traces.append(points(front.infeasible, "break a constraint", color=GREY, size=8, symbol="x"))
    traces += _region(evidence)
    if len(info.objectives) == 2:
        xs, ys = staircase(front)
        line = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "line": {"color": BLUE, "width": 1.5}}
        traces.append({**line, "hoverinfo": "skip", "showlegend": False})
    looks = list(zip(cycle(_SHAPES), cycle(PALETTE[1:]), front.baselines, strict=False))
    for shape, color, records in [("circle", BLUE, front.members), *((*look[:2], look[2:]) for look in looks)]:
        traces += _on_other_splits(info, front, records, pair, shape, color)
    traces.append({**points(front.members, "front", color=BLUE, size=11), **_bars(info, front, evidence, pair)})
    for shape, color, baseline in looks:
        traces.append(points([baseline], baseline.label, color=color, size=11, symbol=shape))
    x, y = axis_titles(info, pair)
    layout = {
        "xaxis": {"title": {"text": text(x)}},
        "yaxis": {"title": {"text": text(y)}},
        "hovermode": "closest",
        "height": 480,
        "margin": MARGIN,
        "legend": LEGEND,
    }
    says = f"{y} over {x} of {len(front.finished)} trials and {len(front.baselines)} baselines; the table has them all"
    return robust(Plot(name, traces, layout, says=says))


def _on_other_splits(
    info: SweepInfo, front: Front, records: Sequence[TrialRecord], pair: tuple[int, int], shape: str, color: str
) -> Iterator[dict[str, Any]]:
    """Where the same trials are on test: hollow, at the end of a thin line."""
    metrics = [info.objectives[index].metric for index in pair]
    for split in splits_of(info, records)[1:]:
        seen = [record for record in records if split in record.results]
        xs, ys = front.coordinates(seen, pair)
        ends = [[metric_of(record.results[split], metric) for record in seen] for metric in metrics]
        if pair[0] == pair[1]:
            ends[0] = [*xs]
        words = (format_metric(metrics[1], value) for value in ends[1])
        gaps = [None] * len(seen)
        yield {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"front on {text(split)}",
            "showlegend": records is front.members and bool(seen),
            "x": _woven(xs, ends[0], gaps),
            "y": _woven(ys, ends[1], gaps),
            "text": _woven(gaps, [f"{text(metrics[1])}: {word}" for word in words], gaps),
            "customdata": _woven(*[[record.name for record in seen]] * 3),
            "hovertemplate": f"<b>%{{customdata}}</b> on {text(split)}<br>%{{text}}<extra></extra>",
            "line": {"color": color, "width": 1, "dash": "dot"},
            "marker": {"symbol": f"{shape}-open", "size": _woven(*([size] * len(seen) for size in (0, 10, 0)))},
            "opacity": 0.75,
        }


def _woven(*columns: Sequence[Any]) -> list[Any]:
    return [value for row in zip(*columns, strict=True) for value in row]


def robust(plot: Plot) -> Plot:
    """The plot with axes that leave outliers out until the reader asks for all."""
    dots = [trace for trace in plot.traces if "markers" in trace["mode"]]
    points = [point for trace in dots for point in zip(trace["x"], trace["y"], strict=True)]
    ends = [within(column) for column in zip(*points, strict=True)]
    near = {axis: found for axis, found in zip(("xaxis", "yaxis"), ends, strict=False) if found}
    beyond = sum(
        any(end and value is not None and not end[0] <= value <= end[1] for value, end in zip(point, ends, strict=True))
        for point in points
    )
    return replace(plot, near=near, beyond=beyond)


def within(column: Sequence[float | None]) -> list[float] | None:
    """Where the values lie but for outliers, with a margin; None where there is no outlier.

    >>> within([70, 71, 72, 73, 74, 10]), within([70, 71, 72])
    ([69.72, 74.28], None)
    """
    values = sorted(value for value in column if value is not None)
    if len(values) < 4:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    reach = _FENCE * (third - first)
    inside = [value for value in values if first - reach <= value <= third + reach]
    margin = 0.07 * (inside[-1] - inside[0])
    return None if len(inside) == len(values) or not margin else [inside[0] - margin, inside[-1] + margin]


def _marks(front: Front, evidence: Evidence, record: TrialRecord) -> list[str]:
    return list(filter(None, [evidence.standing(record.name), *front.marks.get(record.name, [])]))


def _region(evidence: Evidence) -> list[dict[str, Any]]:
    """Where the front runs in 10, 50 and 90 % of the resamples."""
    if evidence.region is None:
        return []
    places, reached = evidence.region
    lines = [[value if math.isfinite(value) else None for value in values.tolist()] for values in reached]
    known = {"type": "scatter", "mode": "lines", "x": places.tolist(), "hoverinfo": "skip", "legendgroup": "region"}
    tenth, half, most = ({**known, "y": line, "line": {"color": BLUE, "width": 0}} for line in lines)
    half |= {"name": "front in half of the resamples", "line": {"color": BLUE, "width": 1, "dash": "dash"}}
    most |= {"fill": "tonexty", "fillcolor": "rgba(76,139,214,.15)", "name": "in 10 to 90 % of them"}
    return [{**tenth, "showlegend": False}, most, half]


def _bars(info: SweepInfo, front: Front, evidence: Evidence, pair: tuple[int, int]) -> dict[str, Any]:
    """The members' intervals, where all have one."""
    bars = {}
    widths = zip(*(reaches(info, evidence, member.name, pair) for member in front.members), strict=True)
    for axis, column in zip(("error_x", "error_y"), widths, strict=False):
        if None not in column:
            bars[axis] = {"type": "data", "array": list(column), "thickness": 1, "width": 2}
    return bars


def _hover(info: SweepInfo, record: TrialRecord, marks: Sequence[str]) -> str:
    values = [
        f"{text(objective.metric)}: <b>{format_metric(objective.metric, value)}</b>"
        for objective, value in zip(info.objectives, values_of(record), strict=True)
    ]
    settings = record.params or {key: record.config[key] for key in ("method", "prompt") if key in record.config}
    lines = [f"{text(key)} = {text(format_setting(value))}" for key, value in settings.items()]
    if len(lines) > _HOVERED:
        lines = [*lines[:_HOVERED], f"and {len(lines) - _HOVERED} more"]
    broken = [f"breaks {text(name)}" for name in record.broken]
    title = f"<b>{text(record.name)}</b> ({text(', '.join([record.origin, *marks]))})"
    return "<br>".join([title, *values, *lines, *broken])


def importance_plot(importances: Sequence[Importance]) -> Plot:
    """Bars for each objective; of one without importances the page has a sentence."""
    shown = [importance for importance in importances if importance.shares]
    if not shown:
        return Plot(
            "importances", instead=" ".join(f"{importance.metric}: {importance.skipped}." for importance in importances)
        )
    keys = sorted(shown[0].shares, key=lambda key: max(importance.shares[key] for importance in shown))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": text(importance.metric),
            "y": [text(key) for key in keys],
            "x": [importance.shares[key] for key in keys],
            "marker": {"color": color},
            "error_x": _ends(importance, keys),
            "hovertemplate": "%{y}: %{x:.2f}<extra>%{fullData.name}</extra>",
        }
        for importance, color in zip(shown, cycle([BLUE, RED, GREY]), strict=False)
    ]
    layout = {
        "barmode": "group",
        "height": 120 + 22 * len(keys) * len(shown),
        "margin": {**MARGIN, "l": 16},
        "legend": LEGEND,
        "xaxis": {"title": {"text": "share of the importance"}, "range": [0, None], "rangemode": "tozero"},
        "yaxis": {"automargin": True, "type": "category"},
    }
    return Plot("importances", traces, layout)


def _ends(importance: Importance, keys: Sequence[str]) -> dict[str, Any]:
    """From the lowest to the highest of resampled trials."""
    ends = [(importance.shares[key], *importance.spread.get(key, (importance.shares[key],) * 2)) for key in keys]
    highs, lows = [high - share for share, _, high in ends], [share - low for share, low, _ in ends]
    return {"type": "data", "symmetric": False, "array": highs, "arrayminus": lows, "thickness": 1, "color": GREY}


def hypervolume_plot(front: Front) -> Plot:
    if not front.hypervolume:
        reason = "No trial has finished yet." if front.reference is not None else "The sweep has no reference point."
        return Plot("hypervolume", instead=reason)
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(1, len(front.trials) + 1)),
        "y": [value for _, value in front.hypervolume],
        "text": [text(record.name) for record in front.trials],
        "customdata": [record.name for record in front.trials],
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
    return Plot("hypervolume", [trace], layout)


def text(words: str) -> str:
    return html.escape(short(words, _LETTERS), quote=False)


def short(words: str, letters: int) -> str:
    """A text without its middle: long values often differ at their ends.

    >>> short("fpp.context_var", 9)
    'fpp.…_var'
    """
    if len(words) <= letters:
        return words
    end = (letters - 1) // 2
    return f"{words[: letters - 1 - end]}…{words[-end:]}"
