"""What the settings do: the finished trials by what was searched, coloured or drawn by any metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from fpp_sweep.records.front import Front, format_setting, is_number, search_range, values_by_setting, values_of, varies
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.html import Plot
from fpp_sweep.report.importance import Importance
from fpp_sweep.report.plots import BLUE, GREY, SCALE, short, text, within
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.old_bootstrap import REACH

LETTERS = 18  # of a name beside an axis
TICKS = 8  # choices that an axis names
SLICES = 12  # settings that are drawn each for itself
PAIRED = 4  # settings of which every two are drawn together
WIDTH = 0.12  # of the Gaussian by which trials count for a local mean, as a share of the axis
FEW = 3.0  # trials, by that count; where fewer are near nothing is drawn
STEPS, GRID = 40, 24  # places along an axis, and along each of two
MARGIN = {"l": 48, "r": 12, "t": 12, "b": 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting or metric along which trials are placed."""

    label: str
    values: Sequence[float]
    tickvals: Sequence[float]
    ticktext: Sequence[str]
    range: tuple[float, float]
    given: Sequence[bool]  # whether a trial has it at all
    words: bool = False

    @property
    def dimension(self) -> dict[str, Any]:
        """Of parallel coordinates, which draw texts as they are."""
        names = ("label", "values", "tickvals", "ticktext", "range")
        return {name: getattr(self, name) for name in names}

    @property
    def layout(self) -> dict[str, Any]:
        margin = 0.04 * (self.range[1] - self.range[0])
        ends = [self.range[0] - margin, self.range[1] + margin]
        ticks = {"tickvals": self.tickvals, "ticktext": list(map(text, self.ticktext))}
        return {"title": {"text": text(self.label)}, "range": ends, **ticks}

    def places(self, count: int) -> Numbers:
        """Where a local mean is taken: at every choice, or evenly along the axis."""
        taken = [value for value, given in zip(self.values, self.given, strict=True) if given]
        return np.unique(taken) if self.words else np.linspace(min(taken), max(taken), count)

    @property
    def width(self) -> float:
        return 0.1 if self.words else WIDTH * (self.range[1] - self.range[0])


def axes_of(info: SweepInfo, trials: Sequence[TrialRecord]) -> dict[str, Axis]:
    """Of the settings that took more than one value."""
    columns = values_by_setting(trials).items()
    logs = {key: bool(search_range(info, key).get("log")) for key, _ in columns}
    return {key: axis_of(key, column, log=logs[key]) for key, column in columns if varies(column)}


def axis_of(key: str, column: Sequence[Any], *, log: bool = False) -> Axis:
    """Numbers on a scale; words, and mixtures of both, evenly spaced; a setting that a trial lacks is at the bottom."""
    given = [value for value in column if value is not None]
    has = [value is not None for value in column]
    if given and all(map(is_number, given)):
        return Axis(label=short(key, LETTERS), given=has, **_number_axis(column, given, log=log and min(given) > 0))
    texts = ["not set" if value is None else format_setting(value) for value in column]
    names = sorted(set(texts))
    step = math.ceil(len(names) / TICKS)
    return Axis(
        label=short(key, LETTERS),
        values=[names.index(text) for text in texts],
        tickvals=list(range(0, len(names), step)),
        ticktext=[short(name, LETTERS) for name in names[::step]],
        range=(-0.2, max(len(names) - 0.8, 0.2)),
        given=has,
        words=True,
    )


def _number_axis(column: Sequence[float | None], given: Sequence[float], *, log: bool) -> dict[str, Any]:
    def position(value: float) -> float:
        return rounded(math.log10(value)) if log else float(value)

    low, high = position(min(given)), position(max(given))
    span = high - low or 1.0
    missing = low - span / 6
    distinct = sorted(set(given))
    ticks = list(map(position, distinct)) if len(distinct) <= TICKS else [low + span * step / 4 for step in range(5)]
    texts = [f"{10**tick if log else tick:.3g}" for tick in ticks]
    gaps = len(given) < len(column)
    return {
        "values": [missing if value is None else position(value) for value in column],
        "tickvals": [missing, *ticks] if gaps else ticks,
        "ticktext": ["not set", *texts] if gaps else texts,
        "range": (missing if gaps else low, low + span),
    }


def parallel_plot(info: SweepInfo, front: Front) -> Plot:
    """A line for each trial through its settings and objectives."""
    trials = front.finished
    axes = list(axes_of(info, trials).values())
    if len(trials) < 2 or not axes:
        return Plot("parallel", instead="Fewer than two trials with different settings have finished.")
    shown = metrics(info, trials)
    axes += [axis_of(objective.metric, clamped(shown[objective.metric])) for objective in info.objectives]
    choices = {metric: {"traces": [{"line": coloured(info, metric, column)}]} for metric, column in shown.items()}
    line = {"colorscale": SCALE, "showscale": True, "colorbar": {"thickness": 10}}
    trace = {"type": "parcoords", "dimensions": [axis.dimension for axis in axes], "line": line, "labelangle": -20}
    layout = {"height": 440, "margin": {"l": 96, "r": 96, "t": 96, "b": 24}}
    says = f"a line for each of {len(trials)} trials through its settings and objectives"
    return Plot("parallel", [trace], layout, least_width=150 * len(axes), choices=choices, asks="colour", says=says)


def metrics(info: SweepInfo, trials: Sequence[TrialRecord]) -> dict[str, list[float]]:
    """The objectives, then every average that all the trials have."""
    averages = [trial.results[info.search_split].average if trial.results else {} for trial in trials]
    found = {
        objective.metric: [rounded(values_of(trial)[index]) for trial in trials]
        for index, objective in enumerate(info.objectives)
    }
    for metric in dict.fromkeys(metric for average in averages for metric in average):
        if metric not in found and all(metric in average for average in averages):
            found[metric] = [rounded(average[metric]) for average in averages]
    return found


def better_up(info: SweepInfo, metric: str) -> bool:
    """Whether more of it is better."""
    goals = {objective.metric: objective.goal for objective in info.objectives}
    row = catalogue.METRICS.get(metric.partition("/")[0])
    return goals.get(metric, row.goal if row else "max") == "max"


def coloured(info: SweepInfo, metric: str, column: Sequence[float]) -> dict[str, Any]:
    """A scale of colours that outliers do not stretch."""
    ends = clamped(column)
    return {"color": column, "cmin": min(ends), "cmax": max(ends), "reversescale": not better_up(info, metric)}


def clamped(column: Sequence[float]) -> list[float]:
    """Outliers put to the ends of where the others lie."""
    low, high = within(column) or (-math.inf, math.inf)
    return [min(max(value, low), high) for value in column]


def rounded(value: float) -> float:
    """As many digits as a plot shows: a page has many numbers."""
    return float(f"{value:.5g}")


def slice_plots(info: SweepInfo, front: Front, importances: Sequence[Importance]) -> list[Plot]:
    """A metric over each setting: the trials, their local mean and how well that is known."""
    trials = front.finished
    axes = ordered(axes_of(info, trials), importances)
    if len(trials) < 2:
        return []
    return [_slice(info, trials, key, axes[key], f"slice-{place}") for place, key in enumerate(list(axes)[:SLICES])]


def ordered(axes: Mapping[str, Axis], importances: Sequence[Importance]) -> dict[str, Axis]:
    """Those with more than one value, beside being set or not; the most important first."""

    def share(key: str) -> float:
        return max((row.shares.get(key, 0.0) for row in importances), default=0.0)

    several = [key for key, axis in axes.items() if np.ptp(axis.places(2)) > 0]
    return {key: axes[key] for key in sorted(several, key=share, reverse=True)}


def _slice(info: SweepInfo, trials: Sequence[TrialRecord], key: str, axis: Axis, name: str) -> Plot:
    places = axis.places(STEPS)
    choices, beyond = {}, 0
    for metric, column in metrics(info, trials).items():
        near = within(column)
        mean, error = local([axis], clamped(column), places[:, None])
        reach = REACH * error
        low, high = mean - reach, mean + reach
        edges = [drawn(high), drawn(low)] if axis.words else [outline(places, low, high)[1]]
        ys = [*edges, drawn(mean), column]
        layout = {"yaxis": {"title": {"text": text(metric)}}}
        choices[metric] = {"traces": [{"y": y} for y in ys], "layout": layout, "near": {"yaxis": near} if near else {}}
        beyond = max(beyond, sum(not near[0] <= value <= near[1] for value in column) if near else 0)
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers" if axis.words else "lines",
        "x": drawn(places),
        "hoverinfo": "skip",
    }
    line |= {"line": {"color": BLUE, "width": 0}, "marker": {"symbol": "line-ew-open", "color": BLUE, "size": 24}}
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": axis.values,
        "customdata": [trial.name for trial in trials],
        "hovertemplate": "%{customdata}: %{y}<extra></extra>",
        "marker": {"color": GREY, "size": 5, "opacity": 0.7},
    }
    band = {**line, "x": outline(places, low, high)[0], "fill": "toself", "fillcolor": "rgba(76,139,214,.25)"}
    traces = [*([line, line] if axis.words else [band]), {**line, "line": {"color": BLUE, "width": 2}}, points]
    shape: dict[str, Any] = {"height": 240, "margin": MARGIN, "showlegend": False, "xaxis": axis.layout}
    says = f"metrics of {len(trials)} trials over {key}, with local means"
    return Plot(name, traces, shape, choices=choices, group="slices", beyond=beyond, says=says)


def local(axes: Sequence[Axis], column: Sequence[float], places: Numbers) -> tuple[Numbers, Numbers]:
    """The mean of the trials near each place and its standard error; nan where too few are near."""
    has = np.all([axis.given for axis in axes], axis=0)
    points = np.array([axis.values for axis in axes], np.float64).T[has]
    values = np.array(column)[has]
    steps = (places[:, None] - points) / [axis.width for axis in axes]
    weights = np.exp(-0.5 * (steps**2).sum(axis=2))
    total = np.maximum(weights.sum(axis=1), 1e-12)
    count = total**2 / np.maximum((weights**2).sum(axis=1), 1e-12)
    known = (count >= FEW) & (total >= 1)
    mean = weights @ values / total
    spread = np.maximum(weights @ values**2 / total - mean**2, 0)
    error = np.sqrt(spread / np.maximum(count - 1, 1))
    return np.where(known, mean, np.nan), np.where(known, error, np.nan)


def outline(places: Numbers, low: Numbers, high: Numbers) -> tuple[list[float | None], list[float | None]]:
    """Around a band, piece by piece: there is none where it is not known.

    >>> outline(np.array([1, 2, 3]), np.array([0, np.nan, 0]), np.array([1, np.nan, 1]))
    ([1.0, 1.0, None, 3.0, 3.0, None], [1.0, 0.0, None, 1.0, 0.0, None])
    """
    known = np.isfinite(low)
    xs: list[float | None] = []
    ys: list[float | None] = []
    for piece in np.split(np.arange(len(places)), np.flatnonzero(np.diff(known)) + 1):
        if known[piece[0]]:
            xs += [*drawn(places[piece]), *drawn(places[piece[::-1]]), None]
            ys += [*drawn(high[piece]), *drawn(low[piece[::-1]]), None]
    return xs, ys


def drawn(values: Numbers) -> list[float | None]:
    return [rounded(value) if math.isfinite(value) else None for value in values.tolist()]


def contour_plot(info: SweepInfo, front: Front, importances: Sequence[Importance]) -> Plot:
    """An objective over two numbers that were searched: local means, and nothing where too few trials are near."""
    trials = front.finished
    axes = {key: axis for key, axis in ordered(axes_of(info, trials), importances).items() if not axis.words}
    choices = dict(_contours(info, trials, dict(list(axes.items())[:PAIRED]))) if len(trials) >= FEW else {}
    if not choices:
        return Plot("contour", instead="Fewer than two numbers were searched, or too few trials.")
    field: dict[str, Any] = {
        "type": "contour",
        "colorscale": SCALE,
        "contours": {"coloring": "heatmap"},
        "hoverinfo": "skip",
    }
    field |= {"line": {"width": 0.5, "color": GREY}, "colorbar": {"thickness": 10}, "opacity": 0.8}
    points = {
        "type": "scatter",
        "mode": "markers",
        "customdata": [trial.name for trial in trials],
        "hovertemplate": "%{customdata}: %{marker.color}<extra></extra>",
        "marker": {"colorscale": SCALE, "size": 7, "line": {"width": 1, "color": GREY}},
    }
    layout = {"height": 420, "margin": {**MARGIN, "l": 64}, "showlegend": False}
    says = f"an objective of {len(trials)} trials over two settings"
    return Plot("contour", [field, points], layout, choices=choices, says=says)


def _contours(
    info: SweepInfo, trials: Sequence[TrialRecord], axes: Mapping[str, Axis]
) -> Iterator[tuple[str, dict[str, Any]]]:
    shown = metrics(info, trials)
    for objective in info.objectives:
        column = shown[objective.metric]
        colours = coloured(info, objective.metric, column)
        ends = {"zmin": colours["cmin"], "zmax": colours["cmax"], "reversescale": colours["reversescale"]}
        for (one, x), (other, y) in combinations(axes.items(), 2):
            across, up = x.places(GRID), y.places(GRID)
            if not np.any(np.logical_and(x.given, y.given)):
                continue
            places = np.array([(place, height) for height in up for place in across])
            means = local([x, y], clamped(column), places)[0].reshape(len(up), len(across))
            field = {"x": drawn(across), "y": drawn(up), "z": list(map(drawn, means)), **ends}
            traces = [field, {"x": x.values, "y": y.values, "marker": colours}]
            yield (
                f"{objective.metric} by {one} and {other}",
                {"traces": traces, "layout": {"xaxis": x.layout, "yaxis": y.layout}},
            )
