"""The page's plots as plotly's plain data; colours that follow the reader's theme are left to the page.

Plotly interprets some HTML in the texts that it draws, which `_text` escapes; parallel coordinates draw theirs as they
are.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from fpp_sweep.records.front import (
    Front,
    format_metric,
    format_setting,
    is_number,
    objective_pairs,
    search_range,
    staircase,
    values_by_setting,
    values_of,
    varies,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.builder import Plot
from fpp_sweep.report.evidence import Evidence
from fpp_sweep.report.importance import Importance
from fpp_sweep.report.pictures import axis_titles, reaches

_BLUE, _RED, _GREY = "#4c8bd6", "#e8697c", "#8f959e"  # readable on white and on black
_SHAPES = ("square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon", "pentagon")
_HOVERED = 18  # settings that a hover label holds; a click shows all
_LETTERS = 48  # of a value in a plot
_LETTERS_ON_AXIS = 18  # of parallel coordinates
_TICKS = 8  # choices that an axis names
_MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0}


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
            "name": _text(label),
            "x": xs,
            "y": ys,
            "text": [_hover(info, record, _marks(front, evidence, record)) for record in records],
            "customdata": [record.name for record in records],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": marker,
        }

    traces = [points(front.dominated, "trials", color=_GREY, size=7, opacity=0.7)]
    if front.infeasible:
        traces.append(points(front.infeasible, "break a constraint", color=_GREY, size=8, symbol="x"))
    if len(info.objectives) == 2:
        xs, ys = staircase(front)
        line = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "line": {"color": _BLUE, "width": 1.5}}
        traces.append({**line, "hoverinfo": "skip", "showlegend": False})
    traces += _region(evidence)
    traces.append({**points(front.members, "front", color=_BLUE, size=11), **_bars(info, front, evidence, pair)})
    for shape, baseline in zip(cycle(_SHAPES), front.baselines, strict=False):
        traces.append(points([baseline], baseline.label, color=_RED, size=10, symbol=shape))
    x, y = axis_titles(info, pair)
    layout = {
        "xaxis": {"title": {"text": _text(x)}},
        "yaxis": {"title": {"text": _text(y)}},
        "hovermode": "closest",
        "height": 480,
        "margin": _MARGIN,
        "legend": _LEGEND,
    }
    return Plot(name, traces, layout)


def _marks(front: Front, evidence: Evidence, record: TrialRecord) -> list[str]:
    return list(filter(None, [evidence.standing(record.name), *front.marks.get(record.name, [])]))


def _region(evidence: Evidence) -> list[dict[str, Any]]:
    """Where the front runs in 10, 50 and 90 % of the resamples."""
    if evidence.region is None:
        return []
    places, reached = evidence.region
    names = ("front in 10 %", "50 %", "90 % of resamples")
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": places.tolist(),
            "y": [value if math.isfinite(value) else None for value in values.tolist()],
            "line": {"color": _BLUE, "width": 1, "dash": dash},
            "hoverinfo": "skip",
        }
        for name, values, dash in zip(names, reached, ("dot", "dash", "dot"), strict=True)
    ]


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
        f"{_text(objective.metric)}: <b>{format_metric(objective.metric, value)}</b>"
        for objective, value in zip(info.objectives, values_of(record), strict=True)
    ]
    settings = record.params or {key: record.config[key] for key in ("method", "prompt") if key in record.config}
    lines = [f"{_text(key)} = {_text(format_setting(value))}" for key, value in settings.items()]
    if len(lines) > _HOVERED:
        lines = [*lines[:_HOVERED], f"and {len(lines) - _HOVERED} more"]
    broken = [f"breaks {_text(name)}" for name in record.broken]
    title = f"<b>{_text(record.name)}</b> ({_text(', '.join([record.origin, *marks]))})"
    return "<br>".join([title, *values, *lines, *broken])


def parallel_plot(info: SweepInfo, front: Front) -> Plot:
    """A line for each trial through its settings and objectives."""
    trials = front.finished
    columns = {key: column for key, column in values_by_setting(trials).items() if varies(column)}
    if len(trials) < 2 or not columns:
        return Plot("parallel", instead="Fewer than two trials with different settings have finished.")
    axes = [_axis(key, column, log=bool(search_range(info, key).get("log"))) for key, column in columns.items()]
    goals = list(zip(*map(values_of, trials), strict=True))
    for objective, column in zip(info.objectives, goals, strict=True):
        axes.append(_axis(objective.metric, column, log=False))
    colors = [[0, _GREY], [0.5, _BLUE], [1, _RED]]
    scale = {"color": goals[0], "colorscale": colors, "reversescale": front.goals[0] == "min", "showscale": False}
    trace = {"type": "parcoords", "dimensions": axes, "line": scale, "labelangle": -20}
    layout = {"height": 440, "margin": {"l": 96, "r": 96, "t": 96, "b": 24}}
    return Plot("parallel", [trace], layout, least_width=150 * len(axes))


def _axis(key: str, column: Sequence[Any], *, log: bool) -> dict[str, Any]:
    """Numbers on a scale; words, and mixtures of both, evenly spaced; a setting that a trial lacks is at the bottom."""
    label = _short(key, _LETTERS_ON_AXIS)
    given = [value for value in column if value is not None]
    if given and all(map(is_number, given)):
        return {"label": label, **_number_axis(column, given, log=log and min(given) > 0)}
    texts = ["not set" if value is None else format_setting(value) for value in column]
    names = sorted(set(texts))
    step = math.ceil(len(names) / _TICKS)
    return {
        "label": label,
        "values": [names.index(text) for text in texts],
        "tickvals": list(range(0, len(names), step)),
        "ticktext": [_short(name, _LETTERS_ON_AXIS) for name in names[::step]],
        "range": [-0.2, max(len(names) - 0.8, 0.2)],
    }


def _number_axis(column: Sequence[float | None], given: Sequence[float], *, log: bool) -> dict[str, Any]:
    def position(value: float) -> float:
        return math.log10(value) if log else float(value)

    low, high = position(min(given)), position(max(given))
    span = high - low or 1.0
    missing = low - span / 6
    distinct = sorted(set(given))
    ticks = list(map(position, distinct)) if len(distinct) <= _TICKS else [low + span * step / 4 for step in range(5)]
    texts = [f"{10**tick if log else tick:.4g}" for tick in ticks]
    gaps = len(given) < len(column)
    return {
        "values": [missing if value is None else position(value) for value in column],
        "tickvals": [missing, *ticks] if gaps else ticks,
        "ticktext": ["not set", *texts] if gaps else texts,
        "range": [missing if gaps else low, low + span],
    }


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
            "name": _text(importance.metric),
            "y": [_text(key) for key in keys],
            "x": [importance.shares[key] for key in keys],
            "marker": {"color": color},
            "hovertemplate": "%{y}: %{x:.2f}<extra>%{fullData.name}</extra>",
        }
        for importance, color in zip(shown, cycle([_BLUE, _RED, _GREY]), strict=False)
    ]
    layout = {
        "barmode": "group",
        "height": 120 + 22 * len(keys) * len(shown),
        "margin": {**_MARGIN, "l": 16},
        "legend": _LEGEND,
        "xaxis": {"title": {"text": "share of the importance"}, "range": [0, None], "rangemode": "tozero"},
        "yaxis": {"automargin": True, "type": "category"},
    }
    return Plot("importances", traces, layout)


def hypervolume_plot(front: Front) -> Plot:
    if not front.hypervolume:
        reason = "No trial has finished yet." if front.reference is not None else "The sweep has no reference point."
        return Plot("hypervolume", instead=reason)
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(1, len(front.trials) + 1)),
        "y": [value for _, value in front.hypervolume],
        "text": [_text(record.name) for record in front.trials],
        "customdata": [record.name for record in front.trials],
        "hovertemplate": "%{text}: %{y:.4g}<extra></extra>",
        "line": {"shape": "hv", "color": _BLUE},
        "marker": {"size": 5},
    }
    layout = {
        "height": 340,
        "margin": _MARGIN,
        "xaxis": {"title": {"text": "trials, in the order they finished"}},
        "yaxis": {"title": {"text": "hypervolume"}, "rangemode": "tozero"},
    }
    return Plot("hypervolume", [trace], layout)


def _text(words: str) -> str:
    return html.escape(_short(words, _LETTERS), quote=False)


def _short(words: str, letters: int) -> str:
    """A text without its middle: long values often differ at their ends.

    >>> _short("fpp.context_var", 9)
    'fpp.…_var'
    """
    if len(words) <= letters:
        return words
    end = (letters - 1) // 2
    return f"{words[: letters - 1 - end]}…{words[-end:]}"
