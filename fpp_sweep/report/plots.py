"""The page's plots as plotly's plain data; colours that follow the reader's theme are left to the page.

Plotly reads a little HTML in the texts it draws, and parallel coordinates draw theirs letter by letter: `_text` is for
the first, `plain` alone for the second.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.importance import Importance
from fpp_sweep.report.pictures import axis_title

_BLUE, _RED, _GREY = "#4c8bd6", "#e8697c", "#8f959e"  # readable on white and on black
_SHAPES = ("square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon", "pentagon")
_HOVERED = 18  # settings that a hover label holds; a click shows all
_LETTERS = 48  # of a value in a plot
_LETTERS_ON_AXIS = 18  # of parallel coordinates
_TICKS = 8  # choices that an axis names
_MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0}


@dataclass(frozen=True)
class Plot:
    """One plot, or the sentence that stands in its place."""

    name: str
    traces: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] | None = None
    least_width: int = 0  # pixels; where the window is narrower the plot scrolls
    instead: str = ""


def front_plots(info: SweepInfo, front: Front) -> list[Plot]:
    """One for each pair of objectives; a single objective over the order of the trials."""
    if not (front.trials or front.infeasible or front.baselines):
        return [Plot("front", instead="No trial has finished yet.")]
    return [_front_plot(info, front, pair, f"front-{index}") for index, pair in enumerate(objective_pairs(info))]


def _front_plot(info: SweepInfo, front: Front, pair: tuple[int, int], name: str) -> Plot:
    alone = pair[0] == pair[1]
    members = {member.name for member in front.members}
    order = {record.name: index for index, record in enumerate([*front.trials, *front.infeasible], 1)}

    def points(records: Sequence[TrialRecord], label: str, marker: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "markers",
            "name": _text(label),
            "x": [order.get(record.name, 0) if alone else values_of(record)[pair[0]] for record in records],
            "y": [values_of(record)[pair[1]] for record in records],
            "text": [_hover(info, record, front.marks.get(record.name, [])) for record in records],
            "customdata": [record.name for record in records],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": dict(marker),
        }

    others = [record for record in front.trials if record.name not in members]
    traces = [points(others, "trials", {"color": _GREY, "size": 7, "opacity": 0.7})]
    if front.infeasible:
        traces.append(points(front.infeasible, "break a constraint", {"color": _GREY, "size": 8, "symbol": "x"}))
    if len(info.objectives) == 2:
        xs, ys = staircase(front)
        line = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "line": {"color": _BLUE, "width": 1.5}}
        traces.append({**line, "hoverinfo": "skip", "showlegend": False})
    traces.append(points(front.members, "front", {"color": _BLUE, "size": 11}))
    for shape, record in zip(cycle(_SHAPES), front.baselines, strict=False):
        label = record.name.removeprefix("baseline-")
        traces.append(points([record], label, {"color": _RED, "size": 10, "symbol": shape}))
    x, y = (info.objectives[index] for index in pair)
    heading = "trials, in the order they finished; baselines at 0" if alone else _text(axis_title(x, "→", "←"))
    layout = {
        "xaxis": {"title": {"text": heading}},
        "yaxis": {"title": {"text": _text(axis_title(y, "↑", "↓"))}},
        "hovermode": "closest",
        "height": 480,
        "margin": _MARGIN,
        "legend": _LEGEND,
    }
    return Plot(name, traces, layout)


def _hover(info: SweepInfo, record: TrialRecord, marks: Sequence[str]) -> str:
    values = [
        f"{_text(objective.metric)}: <b>{format_metric(objective.metric, value)}</b>"
        for objective, value in zip(info.objectives, values_of(record), strict=True)
    ]
    settings = record.params or {key: record.config[key] for key in ("method", "prompt") if key in record.config}
    lines = [f"{_text(key)} = {_text(format_setting(value))}" for key, value in settings.items()]
    if len(lines) > _HOVERED:
        lines = [*lines[:_HOVERED], f"and {len(lines) - _HOVERED} more"]
    broken = [f"breaks {_text(name)}" for name, value in record.constraints.items() if value > 0]
    title = f"<b>{_text(record.name)}</b> ({_text(', '.join([record.origin, *marks]))})"
    return "<br>".join([title, *values, *lines, *broken])


def parallel_plot(info: SweepInfo, front: Front) -> Plot:
    """A line for each trial through its settings and objectives."""
    trials = [*front.trials, *front.infeasible]
    columns = {
        key: column for key, column in values_by_setting(trials).items() if len(set(map(format_setting, column))) > 1
    }
    if len(trials) < 2 or not columns:
        return Plot("parallel", instead="Fewer than two trials with different settings have finished.")
    axes = [_axis(key, column, log=bool(search_range(info, key).get("log"))) for key, column in columns.items()]
    goals = [[values_of(record)[index] for record in trials] for index in range(len(info.objectives))]
    axes += [
        _axis(objective.metric, column, log=False) for objective, column in zip(info.objectives, goals, strict=True)
    ]
    colors = [[0, _GREY], [0.5, _BLUE], [1, _RED]]
    scale = {"color": goals[0], "colorscale": colors, "reversescale": front.goals[0] == "min", "showscale": False}
    trace = {"type": "parcoords", "dimensions": axes, "line": scale, "labelangle": -20}
    layout = {"height": 440, "margin": {"l": 96, "r": 96, "t": 96, "b": 24}}
    return Plot("parallel", [trace], layout, least_width=150 * len(axes))


def _axis(key: str, column: Sequence[Any], *, log: bool) -> dict[str, Any]:
    """Numbers lie where they are; all else, and what is missing, has a place by its name."""
    there = [value for value in column if value is not None]
    if there and all(map(is_number, there)):
        return {"label": _short(key, _LETTERS_ON_AXIS), **_number_axis(column, there, log=log and min(there) > 0)}
    names = sorted({_named(value) for value in column})
    step = math.ceil(len(names) / _TICKS)
    return {
        "label": _short(key, _LETTERS_ON_AXIS),
        "values": [names.index(_named(value)) for value in column],
        "tickvals": list(range(0, len(names), step)),
        "ticktext": [_short(name, _LETTERS_ON_AXIS) for name in names[::step]],
        "range": [-0.2, max(len(names) - 0.8, 0.2)],
    }


def _number_axis(column: Sequence[float | None], there: Sequence[float], *, log: bool) -> dict[str, Any]:
    def position(value: float) -> float:
        return math.log10(value) if log else float(value)

    low, high = position(min(there)), position(max(there))
    span = high - low or 1.0
    missing = low - span / 6
    few = sorted(set(there))
    ticks = list(map(position, few)) if len(few) <= _TICKS else [low + span * part / 4 for part in range(5)]
    texts = [f"{10**tick if log else tick:.4g}" for tick in ticks]
    gaps = len(there) < len(column)
    return {
        "values": [missing if value is None else position(value) for value in column],
        "tickvals": [missing, *ticks] if gaps else ticks,
        "ticktext": ["not set", *texts] if gaps else texts,
        "range": [missing if gaps else low, low + span],
    }


def importance_plot(importances: Sequence[Importance]) -> Plot:
    """Bars for each objective; the sentence of those that have none stands on the page."""
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


def _named(value: Any) -> str:
    return "not set" if value is None else format_setting(value)


def _short(words: str, letters: int) -> str:
    """Without the middle: what tells two long values apart is often at their ends.

    >>> _short("fpp.context_var", 9)
    'fpp.…_var'
    """
    if len(words) <= letters:
        return words
    end = (letters - 1) // 2
    return f"{words[: letters - 1 - end]}…{words[-end:]}"
