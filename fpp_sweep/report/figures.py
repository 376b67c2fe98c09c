"""Figures: what the picture of a front shows, its drawing by matplotlib, and figures as PNG, PDF and SVG.

`plots.py` draws the same data with plotly.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fpp_sweep.records.answer import SweepStatistics, region_of
from fpp_sweep.records.front import Front, objective_pairs, staircase
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.spec.catalogue import ZERO_SHOT
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.palette import BLUE, CIRCLE, CROSS, GREY, INK, LINE, MARKERS, PALETTE, PAPER, TRIANGLE, Marker
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.front_support import Region

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
    marker: Marker
    # distances of the ends of 95 % intervals from the values, in two rows; nan where a record has no interval
    x_errors: Numbers | None = None
    y_errors: Numbers | None = None


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
    staircase: tuple[Sequence[float], Sequence[float]] | None = None  # the edge of what the front dominates
    region: Region | None = None
    frame: Frame | None = None  # None: the axes cover everything


def front_figures(info: SweepInfo, statistics: SweepStatistics) -> list[FrontFigure]:
    """Return the picture of a sweep's front for each pair of objectives."""
    return [_front_figure(info, statistics, pair) for pair in objective_pairs(info)]


def _front_figure(info: SweepInfo, statistics: SweepStatistics, pair: tuple[int, int]) -> FrontFigure:
    front = statistics.front

    def points_of(
        records: Sequence[TrialRecord], kind: PointKind, label: str, color: str = GREY, marker: Marker = CIRCLE
    ) -> Points:
        xs, ys = front.coordinates(records, pair)
        return Points(kind=kind, label=label, records=records, xs=xs, ys=ys, color=color, marker=marker)

    below = trials_below_floor(front)
    points = [points_of(front.dominated, "trials", "trials")]
    infeasible = [record for record in front.infeasible if record not in below]
    if infeasible:
        points.append(points_of(infeasible, "infeasible", "break a constraint", marker=CROSS))
    members = points_of(front.members, "front", "front", BLUE)
    points.append(_with_intervals(members, info, statistics, pair))
    for baseline, marker, color in zip(front.baselines, cycle(MARKERS[1:]), cycle(PALETTE[1:]), strict=False):
        points.append(points_of([baseline], "baseline", baseline.label, color, marker))
    frame = None
    if below:
        frame = frame_of(points)
        label = f"more than {front.info.floor:g} points below {ZERO_SHOT}"
        points.append(_at_edge(points_of(below, "below floor", label, marker=TRIANGLE), frame))
    x_title, y_title = axis_titles(info, pair)
    return FrontFigure(
        pair=pair,
        x_title=x_title,
        y_title=y_title,
        points=points,
        staircase=staircase(front) if len(front.objectives) == 2 else None,
        region=region_of(statistics),
        frame=frame,
    )


def trials_below_floor(front: Front) -> list[TrialRecord]:
    """Return the finished trials below the floor of accuracy; none if all are, as a chart would have nothing else."""
    below = [record for record in front.finished if front.is_below_floor(record)]
    if len(below) == len(front.finished):
        return []
    return below


def _at_edge(points: Points, frame: Frame | None) -> Points:
    """Return points that are outside a frame just inside its nearest edge."""
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


def _with_intervals(points: Points, info: SweepInfo, statistics: SweepStatistics, pair: tuple[int, int]) -> Points:
    """Add the intervals on both axes; the order of trials, an axis of a single objective, has none."""
    x, y = pair
    x_errors = None
    if x != y:
        x_errors = _error_bars(info, statistics, points.records, info.objectives[x].metric)
    y_errors = _error_bars(info, statistics, points.records, info.objectives[y].metric)
    return replace(points, x_errors=x_errors, y_errors=y_errors)


def _error_bars(info: SweepInfo, statistics: SweepStatistics, records: Sequence[TrialRecord], metric: str) -> Numbers:
    """Return the intervals of records' values on the search split; an interval may be on one side of its value."""
    bars = np.full((2, len(records)), np.nan)
    for index, record in enumerate(records):
        interval = statistics.interval(record, info.search_split, metric)
        if interval is not None:
            bars[:, index] = max(0.0, interval.value - interval.low), max(0.0, interval.high - interval.value)
    return bars


def frame_of(points_of_kinds: Sequence[Points]) -> Frame | None:
    """Return the frame around all points and their intervals; None if they are all at one place of an axis."""
    xs: list[float] = []
    ys: list[float] = []
    for points in points_of_kinds:
        xs += _with_ends(points.xs, points.x_errors)
        ys += _with_ends(points.ys, points.y_errors)
    if not xs or min(xs) == max(xs) or min(ys) == max(ys):
        return None
    return Frame(with_margin(xs, FRAME_MARGIN), with_margin(ys, FRAME_MARGIN))


def _with_ends(values: Sequence[float], errors: Numbers | None) -> list[float]:
    """Return values and the ends of their intervals."""
    if errors is None:
        return list(values)
    below, above = np.nan_to_num(errors)
    return [*values, *(np.array(values) - below).tolist(), *(np.array(values) + above).tolist()]


def with_margin(values: Sequence[float], share: float) -> tuple[float, float]:
    """Return the range of the values, with a share of its width added at both ends."""
    low, high = min(values), max(values)
    margin = share * (high - low)
    return low - margin, high + margin


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
        title += f"\n{left_out} more than {front.info.floor:g} points below {ZERO_SHOT}: triangles at the edge"

    def draw(figure: Figure) -> None:
        figure.set_size_inches(PANEL_SIZE[0] * len(panels), PANEL_SIZE[1])
        figure.suptitle(title, fontsize="medium")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw_front(axes, panel)

    picture = StaticFigure(caption=title, data=(), draw=draw)
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


INTERVAL_STYLE: Mapping[str, Any] = {"fmt": "none", "elinewidth": 0.8, "alpha": 0.6, "zorder": 4}


def draw_front(axes: Axes, figure: FrontFigure) -> None:
    """Draw the picture of a front."""
    if figure.region is not None:
        _draw_region(axes, figure.region)
    if figure.staircase is not None:
        axes.plot(*figure.staircase, color=BLUE, linewidth=1.2, zorder=3)
    single_objective = figure.pair[0] == figure.pair[1]
    for points in figure.points:
        style = SCATTER_STYLES[points.kind]
        label = points.label or None
        axes.scatter(points.xs, points.ys, color=points.color, marker=points.marker.matplotlib, label=label, **style)
        if points.y_errors is not None:
            style = {"xerr": points.x_errors, "yerr": points.y_errors, "ecolor": points.color, **INTERVAL_STYLE}
            axes.errorbar(points.xs, points.ys, **style)
        if single_objective and points.kind == "baseline":
            axes.axhline(points.ys[0], color=points.color, linewidth=0.8, linestyle=":", zorder=1)
    axes.set_xlabel(figure.x_title)
    axes.set_ylabel(figure.y_title)
    axes.margins(FRAME_MARGIN)
    if figure.frame is not None:
        axes.set_xlim(figure.frame.xs)
        axes.set_ylim(figure.frame.ys)


def _draw_region(axes: Axes, region: Region) -> None:
    best = np.array(region.best, np.float64)  # None becomes nan
    median = np.array(region.median, np.float64)
    worst = np.array(region.worst, np.float64)
    shade: Mapping[str, Any] = {"color": BLUE, "alpha": 0.12, "linewidth": 0, "zorder": 1}
    axes.fill_between(region.xs, best, worst, label=REGION_LABEL, **shade)
    axes.plot(region.xs, median, color=BLUE, linewidth=0.8, linestyle="--", zorder=1, label=MEDIAN_LABEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFigure:
    """A figure that matplotlib draws when it is saved."""

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
            if not figure.legends:
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
