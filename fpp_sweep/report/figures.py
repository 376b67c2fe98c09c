"""Figures: what the picture of a front shows, its drawing by matplotlib, and figures as PNG, PDF and SVG.

`plots.py` draws the same data with plotly.
"""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fpp_sweep.records.answer import SweepStatistics, attainment_of
from fpp_sweep.records.front import Front, objective_pairs, staircase
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.spec.catalogue import ZERO_SHOT
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.palette import (
    BLUE,
    CIRCLE,
    CROSS,
    DASHES,
    GREY,
    INK,
    LINE,
    MARKERS,
    PALETTE,
    PAPER,
    RED,
    TRIANGLE,
    Marker,
)
from fpp_sweep.statistics.attainment import Attainment
from fpp_sweep.statistics.block_stats import Numbers

PANEL_SIZE = (6.4, 4.8)  # inches
FRAME_MARGIN = 0.08  # share of the range that the axes have to show
EDGE = 0.02  # share of an axis between its end and the markers of trials that are further out
REGION_LABEL = "front in 10 to 90 % of the resamples"
MEDIAN_LABEL = "front in half of the resamples"
SETTINGS: Any = {
    "pdf.fonttype": 42,  # whole fonts are embedded, so that text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "fpp_sweep",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "grid.color": LINE,
    "legend.frameon": False,
}
# no dates and versions, so that equal figures have equal bytes
METADATA: Mapping[str, Mapping[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


# --- the picture of a front ---------------------------------------------------------------------------


class ErrorBar(NamedTuple):
    """A 95 % interval as distances from the value."""

    below: float
    above: float


PointKind = Literal["trials", "infeasible", "front", "baseline", "below floor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Trials or baselines that look the same."""

    kind: PointKind
    label: str  # in the legend; empty: none
    records: Sequence[TrialRecord]
    xs: Sequence[float]
    ys: Sequence[float]
    color: str
    marker: Marker = CIRCLE
    x_errors: Sequence[ErrorBar | None] = ()  # one for each point, or none at all
    y_errors: Sequence[ErrorBar | None] = ()

    def error_bars(self, index: int) -> tuple[ErrorBar | None, ErrorBar | None]:
        """Return the intervals of a point along x and along y; None where it has none."""
        x_error = y_error = None
        if self.x_errors:
            x_error = self.x_errors[index]
        if self.y_errors:
            y_error = self.y_errors[index]
        return x_error, y_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The part of a plane of two objectives through which the front runs in 10 to 90 % of the resamples."""

    color: str
    xs: Sequence[float]
    best: Sequence[float | None]  # reached in 10 % of the resamples; None where fewer reach so far along x
    median: Sequence[float | None]
    worst: Sequence[float | None]  # reached in 90 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """The edge of what a front dominates."""

    color: str
    xs: Sequence[float]
    ys: Sequence[float]


class Frame(NamedTuple):
    """Ranges of both axes without trials below the floor, which would squeeze the others and stand at the edge."""

    xs: tuple[float, float]
    ys: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontFigure:
    """Everything that the picture of one pair of objectives shows; a single objective stands over the trials' order."""

    pair: tuple[int, int]
    x_title: str
    y_title: str
    points: Sequence[Points]
    staircases: Sequence[Staircase] = ()
    regions: Sequence[Region] = ()
    frame: Frame | None = None  # None: the axes cover everything


def front_figures(info: SweepInfo, statistics: SweepStatistics) -> list[FrontFigure]:
    """Return the picture of a sweep's front for each pair of objectives."""
    return [front_figure(info, statistics, pair) for pair in objective_pairs(info)]


def front_figure(info: SweepInfo, statistics: SweepStatistics, pair: tuple[int, int]) -> FrontFigure:
    front = statistics.front
    below = trials_below_floor(front)
    points = [_points(front, _without(front.dominated, below), pair, kind="trials", label="trials", color=GREY)]
    infeasible = _without(front.infeasible, below)
    if infeasible:
        crosses = _points(front, infeasible, pair, kind="infeasible", label="break a constraint", color=GREY)
        points.append(replace(crosses, marker=CROSS))
    members = _points(front, _without(front.members, below), pair, kind="front", label="front", color=BLUE)
    points.append(_with_intervals(members, info, statistics, pair))
    for baseline, marker, color in zip(front.baselines, cycle(MARKERS[1:]), cycle(PALETTE[1:]), strict=False):
        point = _points(front, [baseline], pair, kind="baseline", label=baseline.label, color=color)
        points.append(replace(point, marker=marker))
    frame = None
    if below:
        frame = frame_of(points)
        label = f"more than {front.floor:g} points below {ZERO_SHOT}"
        points.append(_at_edge(_points(front, below, pair, kind="below floor", label=label, color=GREY), frame))
    x_title, y_title = axis_titles(info, pair)
    return FrontFigure(
        pair=pair,
        x_title=x_title,
        y_title=y_title,
        points=points,
        staircases=staircases_of(front, BLUE),
        regions=regions_of(front, attainment_of(info, statistics), BLUE),
        frame=frame,
    )


def trials_below_floor(front: Front) -> list[TrialRecord]:
    """Return the finished trials below the floor of accuracy; none if all are, as a chart would have nothing else."""
    below = [record for record in front.finished if front.is_below_floor(record)]
    if len(below) == len(front.finished):
        return []
    return below


def _without(records: Sequence[TrialRecord], left_out: Sequence[TrialRecord]) -> list[TrialRecord]:
    names = {record.name for record in left_out}
    return [record for record in records if record.name not in names]


def _at_edge(points: Points, frame: Frame | None) -> Points:
    """Return points that are outside a frame just inside its nearest edge."""
    points = replace(points, marker=TRIANGLE)
    if frame is None:
        return points
    return replace(points, xs=clipped(points.xs, frame.xs), ys=clipped(points.ys, frame.ys))


def clipped(values: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """Return values whose markers stay inside an axis of these limits.

    >>> clipped([2.0, 70.0], (60.0, 160.0))
    [62.0, 70.0]
    """
    inside = with_margin(limits, -EDGE)
    return [float(value) for value in np.clip(values, *inside)]


def _points(
    front: Front, records: Sequence[TrialRecord], pair: tuple[int, int], *, kind: PointKind, label: str, color: str
) -> Points:
    xs, ys = front.coordinates(records, pair)
    return Points(kind=kind, label=label, records=records, xs=xs, ys=ys, color=color)


def _with_intervals(points: Points, info: SweepInfo, statistics: SweepStatistics, pair: tuple[int, int]) -> Points:
    """Add the intervals on both axes; the order of trials, an axis of a single objective, has none."""
    x, y = pair
    x_errors = []
    y_errors = []
    for record in points.records:
        if x != y:
            x_errors.append(error_bar(info, statistics, record, info.objectives[x].metric))
        y_errors.append(error_bar(info, statistics, record, info.objectives[y].metric))
    return replace(points, x_errors=x_errors, y_errors=y_errors)


def frame_of(points_of_kinds: Sequence[Points]) -> Frame | None:
    """Return the frame around all points and their intervals; None if they are all at one place of an axis."""
    ends: list[tuple[float, float]] = []
    for points in points_of_kinds:
        ends += ends_of_intervals(points)
    if not ends:
        return None
    xs, ys = zip(*ends, strict=True)
    if min(xs) == max(xs) or min(ys) == max(ys):
        return None
    return Frame(with_margin(xs, FRAME_MARGIN), with_margin(ys, FRAME_MARGIN))


def with_margin(values: Sequence[float], share: float) -> tuple[float, float]:
    """Return the range of the values, with a share of its width added at both ends."""
    low, high = min(values), max(values)
    margin = share * (high - low)
    return low - margin, high + margin


def ends_of_intervals(points: Points) -> Iterator[tuple[float, float]]:
    """Yield the points, and the ends of their intervals."""
    for index, (x, y) in enumerate(zip(points.xs, points.ys, strict=True)):
        yield x, y
        x_error, y_error = points.error_bars(index)
        if x_error is not None:
            yield x - x_error.below, y
            yield x + x_error.above, y
        if y_error is not None:
            yield x, y - y_error.below
            yield x, y + y_error.above


def staircases_of(front: Front, color: str) -> list[Staircase]:
    if len(front.objectives) != 2:
        return []
    xs, ys = staircase(front)
    return [Staircase(color=color, xs=xs, ys=ys)]


def regions_of(front: Front, attainment: Attainment | None, color: str) -> list[Region]:
    if attainment is None:
        return []
    worst = attainment.worst
    reached = np.concatenate([attainment.best, attainment.median, worst])
    reached = reached[np.isfinite(reached)]
    if len(reached):  # where fewer than 90 % of the resamples reach so far along x, the front may be as bad as anywhere
        limit = reached.max() if front.goals[1] == "min" else reached.min()
        worst = np.where(np.isfinite(worst), worst, limit)
    region = Region(
        color=color,
        xs=attainment.positions.tolist(),
        best=_with_gaps(attainment.best),
        median=_with_gaps(attainment.median),
        worst=_with_gaps(worst),
    )
    return [region]


def _with_gaps(values: Numbers) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def error_bar(info: SweepInfo, statistics: SweepStatistics, record: TrialRecord, metric: str) -> ErrorBar | None:
    """Return the interval of a record's value on the search split; None if it has none."""
    interval = statistics.interval(record, info.search_split, metric)
    if isinstance(interval, str):  # the reason why there is none
        return None
    return ErrorBar(max(0.0, interval.value - interval.low), max(0.0, interval.high - interval.value))


def axis_titles(info: SweepInfo, pair: tuple[int, int]) -> tuple[str, str]:
    """Return the objectives of a pair, with arrows towards their better ends."""
    x, y = info.objectives[pair[0]], info.objectives[pair[1]]
    x_arrow = "→" if x.goal == "max" else "←"
    y_arrow = "↑" if y.goal == "max" else "↓"
    x_title = f"{x.metric}  (better {x_arrow})"
    if x is y:
        x_title = "trials, in the order they ended; baselines at 0"
    return x_title, f"{y.metric}  (better {y_arrow})"


# --- drawing by matplotlib ----------------------------------------------------------------------------


def write_front_picture(path: Path, info: SweepInfo, statistics: SweepStatistics) -> None:
    """Write the picture of a sweep's front as PNG, with a panel for each pair of objectives."""
    front = statistics.front
    panels = front_figures(info, statistics)
    name = textwrap.fill(info.name, 60 * len(panels))
    finished = plural(len(front.finished), "finished trial")
    title = f"{name}\n{len(front.members)} of {finished} on the front, {info.search_split} split"
    if any(panel.frame for panel in panels):
        left_out = plural(len(trials_below_floor(front)), "trial")
        title += f"\n{left_out} more than {front.floor:g} points below {ZERO_SHOT}: triangles at the edge"

    def draw(figure: Figure) -> None:
        figure.set_size_inches(PANEL_SIZE[0] * len(panels), PANEL_SIZE[1])
        figure.suptitle(title, fontsize="medium")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw_front(axes, panel)

    picture = StaticFigure(kind="front", caption=title, data=(), draw=draw)
    with written_whole(path) as partial:
        partial.write_bytes(picture.to_bytes("png"))


# size in square points and the order of drawing, by kind
SCATTER_STYLES: Mapping[str, Mapping[str, Any]] = {
    "trials": {"s": 22, "alpha": 0.7, "linewidths": 0, "zorder": 2},
    "infeasible": {"s": 22, "zorder": 2},
    "below floor": {"s": 30, "zorder": 6},
    "baseline": {"s": 36, "zorder": 4},
    "front": {"s": 48, "edgecolors": "white", "zorder": 5},
}


def draw_front(axes: Axes, figure: FrontFigure) -> None:
    """Draw the picture of a front."""
    for index, region in enumerate(figure.regions):
        _draw_region(axes, region, is_labelled=index == 0)
    for line in figure.staircases:
        axes.plot(line.xs, line.ys, color=line.color, linewidth=1.2, zorder=3)
    single_objective = figure.pair[0] == figure.pair[1]
    for points in figure.points:
        style = SCATTER_STYLES[points.kind]
        label = points.label or None
        axes.scatter(points.xs, points.ys, color=points.color, marker=points.marker.matplotlib, label=label, **style)
        _draw_intervals(axes, points)
        if single_objective and points.kind == "baseline":
            axes.axhline(points.ys[0], color=points.color, linewidth=0.8, linestyle=":", zorder=1)
    axes.set_xlabel(figure.x_title)
    axes.set_ylabel(figure.y_title)
    axes.margins(FRAME_MARGIN)
    if figure.frame is not None:
        axes.set_xlim(figure.frame.xs)
        axes.set_ylim(figure.frame.ys)


def _draw_intervals(axes: Axes, points: Points) -> None:
    """Draw the intervals in x at once, then those in y: matplotlib takes as long for a single one as for all."""
    style: Mapping[str, Any] = {"fmt": "none", "ecolor": points.color, "elinewidth": 0.8, "alpha": 0.6, "zorder": 4}
    errors = [points.error_bars(index) for index in range(len(points.xs))]
    x_errors = [x_error for x_error, _ in errors]
    y_errors = [y_error for _, y_error in errors]
    for direction, errors_of_direction in (("xerr", x_errors), ("yerr", y_errors)):
        xs, ys, lengths = _with_errors(points, errors_of_direction)
        if xs:
            intervals: Mapping[str, Any] = {direction: lengths}
            axes.errorbar(xs, ys, **intervals, **style)


def _with_errors(
    points: Points, errors: Sequence[ErrorBar | None]
) -> tuple[list[float], list[float], tuple[list[float], list[float]]]:
    """Return x and y of the points that have an error bar, and the lengths of the bars below and above them."""
    xs, ys, below, above = [], [], [], []
    for x, y, error in zip(points.xs, points.ys, errors, strict=True):
        if error is not None:
            xs.append(x)
            ys.append(y)
            below.append(error.below)
            above.append(error.above)
    return xs, ys, (below, above)


def _draw_region(axes: Axes, region: Region, *, is_labelled: bool) -> None:
    labels = (REGION_LABEL, MEDIAN_LABEL) if is_labelled else (None, None)
    best = np.array(region.best, np.float64)  # None becomes nan
    median = np.array(region.median, np.float64)
    worst = np.array(region.worst, np.float64)
    shade: Mapping[str, Any] = {"color": region.color, "alpha": 0.12, "linewidth": 0, "zorder": 1}
    axes.fill_between(region.xs, best, worst, label=labels[0], **shade)
    axes.plot(region.xs, median, color=region.color, linewidth=0.8, linestyle="--", zorder=1, label=labels[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFigure:
    """A figure that matplotlib draws when it is saved."""

    kind: str
    caption: str
    data: Any  # a data frame with the lines of its CSV
    draw: Callable[[Figure], None]

    def to_bytes(self, file_format: str) -> bytes:
        """Return the figure as `png`, `pdf` or `svg`; equal figures give equal bytes."""
        file = io.BytesIO()
        with mpl.rc_context(SETTINGS), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+")  # emoji in a title are drawn as boxes
            figure = Figure(dpi=150, layout="constrained")
            self.draw(figure)
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=3)
            figure.savefig(file, format=file_format, metadata=METADATA[file_format])
        return file.getvalue()

    def to_svg(self) -> str:
        """Return SVG for a page, in the colours of the reader's theme."""
        text = self.to_bytes("svg").decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.S)
        text = re.sub(r' id="[A-Za-z]\w*_\d{1,4}"', "", text)  # matplotlib's names of elements, which nothing refers to
        for color, variable in ((INK, "ink"), (LINE, "line"), (PAPER, "paper")):
            text = text.replace(color, f"var(--{variable})")
        return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.caption)}" ', 1)


# --- charts of series ---------------------------------------------------------------------------------

CHART_SIZE = (3.6, 3.3)  # inches
LOG_RATIO = 20.0  # an axis is logarithmic if its largest value is more than this multiple of its smallest
MAX_DIAGRAMS = 5  # reliability diagrams in a row
SeriesKind = Literal["line", "points", "large point", "level"]


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """A colour, marker and dash that tell one series from the others."""

    color: str
    marker: Marker
    dash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points or a line of a chart; a level is a horizontal line at its only y."""

    kind: SeriesKind
    style: SeriesStyle
    xs: Sequence[float | str] = ()
    ys: Sequence[float]
    errors: Sequence[float] = ()  # half-lengths of the error bars of a line
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A pair of axes with series."""

    x_title: str
    y_title: str
    series: Sequence[Series]
    zero_line: bool = False

    @property
    def has_log_axis(self) -> bool:
        """True if x is positive and spans a wide range."""
        xs = [x for series in self.series for x in series.xs]
        numbers = [x for x in xs if not isinstance(x, str)]
        if not numbers or len(numbers) < len(xs) or min(numbers) <= 0:
            return False
        return max(numbers) / min(numbers) > LOG_RATIO


def series_styles() -> list[SeriesStyle]:
    """Return as many distinct styles as there are markers."""
    styles = []
    for color, marker, dash in zip(cycle(PALETTE[:-1]), MARKERS, cycle(DASHES), strict=False):
        styles.append(SeriesStyle(color, marker, dash))
    return styles


def draw_charts(figure: Figure, charts: Sequence[Chart], across: int | None = None) -> None:
    """Draw charts side by side, `across` of them in a row."""
    columns = across or len(charts)
    rows = math.ceil(len(charts) / columns)
    width, height = CHART_SIZE
    figure.set_size_inches(width * columns + 0.4, height * rows)
    for axes, chart in zip(figure.subplots(rows, columns, squeeze=False).flat, charts, strict=True):
        for series in chart.series:
            _draw_series(axes, series)
        if chart.zero_line:
            axes.axhline(0, color=INK, lw=0.6)
        if chart.has_log_axis:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=chart.x_title, ylabel=chart.y_title)


def _draw_series(axes: Axes, series: Series) -> None:
    style = series.style
    marker = style.marker.matplotlib
    label = series.label or None
    if series.kind == "points":
        axes.plot(series.xs, series.ys, marker, color=style.color, alpha=0.75, ms=4, mew=0, label=label)
    elif series.kind == "large point":
        axes.plot(series.xs, series.ys, marker, color=style.color, ms=8, mec=INK, label=label)
    elif series.kind == "level":
        axes.axhline(series.ys[0], color=style.color, ls=style.dash, label=label)
    elif series.errors:
        axes.errorbar(
            series.xs,
            series.ys,
            yerr=series.errors,
            marker=marker,
            color=style.color,
            ls=style.dash,
            capsize=2,
            label=label,
        )
    else:
        axes.plot(series.xs, series.ys, marker=marker, color=style.color, ls=style.dash, label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityDiagram:
    """Accuracy, confidence and number of samples of the bins that have samples."""

    title: str
    lows: Sequence[float]  # left edges of the bins
    accuracies: Sequence[float]
    confidences: Sequence[float]
    counts: Sequence[int]
    bin_width: float


def draw_reliability_diagrams(figure: Figure, diagrams: Sequence[ReliabilityDiagram]) -> None:
    """Draw reliability diagrams in rows of at most MAX_DIAGRAMS, with the number of samples below each."""
    across = min(MAX_DIAGRAMS, len(diagrams))
    down = math.ceil(len(diagrams) / MAX_DIAGRAMS)
    figure.set_size_inches(max(4.0, 2.1 * across), 3.0 * down + 0.3)
    panels = figure.subplots(2 * down, across, squeeze=False, sharex=True, height_ratios=[3, 1] * down)
    for axes in panels.flat:
        axes.set_visible(False)
    for index, diagram in enumerate(diagrams):
        row, column = divmod(index, across)
        upper, lower = panels[2 * row, column], panels[2 * row + 1, column]
        _draw_bins(upper, lower, diagram)
        upper.set_title(diagram.title, fontsize="small")
        if column == 0:
            upper.set_ylabel("accuracy")
            lower.set_ylabel("samples")


def _draw_bins(upper: Axes, lower: Axes, diagram: ReliabilityDiagram) -> None:
    width, lows, heights = diagram.bin_width, diagram.lows, diagram.accuracies
    gaps = []
    for accuracy, confidence in zip(heights, diagram.confidences, strict=True):
        gaps.append(confidence - accuracy)
    outline: Mapping[str, Any] = {"fc": "none", "ec": RED, "lw": 0.9, "label": "gap to confidence"}
    upper.bar(lows, heights, width, align="edge", color=BLUE, ec=PAPER, lw=0.4, label="accuracy")
    upper.bar(lows, gaps, width, bottom=heights, align="edge", **outline)
    upper.plot([0, 1], [0, 1], "--", color=INK, lw=0.8, label="perfect calibration")
    upper.set(xlim=(0, 1), ylim=(0, 1), visible=True)
    lower.bar(lows, diagram.counts, width, align="edge", color=PALETTE[-1], ec=PAPER, lw=0.4)
    lower.set(xlabel="confidence", visible=True)
