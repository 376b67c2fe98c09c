"""The reliability diagram: is a model right as often as it says? matplotlib is imported when it draws: a second."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.core.metrics import EDGES, Predictions, accuracy, expected_error
from fpp_sweep.spec.files import written_whole
from fpp_sweep.statistics.old_bootstrap import REACH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's bright scheme, for colour-blind readers; the hatch serves those who print in grey
_BLUE, _RED, _GREY = "#4477AA", "#EE6677", "#555555"
PITCH, SIDE = 2.25, 1.9  # inches: from panel to panel, and of one


def reliability_panels(datasets: Mapping[str, Predictions], path: Path, *, title: str) -> None:
    """Write a PNG with a reliability diagram for each of several datasets, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(5, len(datasets))
    rows = -(-len(datasets) // columns)
    name = textwrap.fill(title, 24 * columns)
    width, height = columns * PITCH + 0.6, rows * (PITCH + 0.6) + 0.7 + 0.2 * name.count("\n")
    figure = Figure(figsize=(width, height), dpi=110)
    FigureCanvasAgg(figure)
    # one pair of axes, in inches: with a pair for each panel a sweep's trials spend most of their time here
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    axes.text(width / 2, height - 0.1, name, ha="center", va="top", fontsize="medium", parse_math=False)
    for number, (dataset, predictions) in enumerate(datasets.items()):
        row, column = divmod(number, columns)
        left, bottom = 0.6 + column * PITCH, 0.95 + (rows - 1 - row) * (PITCH + 0.6)
        _draw_panel(axes, (left, bottom), predictions, dataset)
        _name_levels(axes, (left, bottom), first=not column)
    handles, labels = axes.get_legend_handles_labels()
    first = dict(zip(labels, handles, strict=True))
    across = 4 if columns > 2 else 2
    figure.legend(first.values(), first, loc="lower center", ncols=across, fontsize="small", frameon=False)
    _save(figure, path)


def _draw_panel(axes: Axes, place: tuple[float, float], predictions: Predictions, name: str) -> None:
    """A square with bars of accuracy, gaps to confidence and bands; below it, how many images each bin has."""
    from matplotlib.collections import LineCollection, PolyCollection

    bins = predictions.bins
    full = bins.counts[0] > 0
    counts = bins.counts[0][full]
    accuracies, confidence = bins.hits[0][full] / counts, bins.confidence[0][full] / counts
    left, right = EDGES[:-1][full], EDGES[1:][full]
    centres, ends = (left + right) / 2, band(bins.hits[0][full], counts)

    def boxes(low: Any, high: Any, **how: Any) -> None:
        ends = zip(left, right, low, high, strict=True)
        corners: Any = np.array([[(a, c), (b, c), (b, d), (a, d)] for a, b, c, d in ends]).reshape(-1, 4, 2)
        axes.add_collection(PolyCollection(corners * SIDE + place, **how), autolim=False)

    def lines(ends: Any, **how: Any) -> None:
        pairs: Any = np.array(ends).reshape(-1, 2, 2)
        axes.add_collection(LineCollection(pairs * SIDE + place, **how), autolim=False)

    boxes(0 * left, accuracies, facecolor=_BLUE, edgecolor="black", linewidth=0.5, label="accuracy")
    gap = {"facecolor": (_RED, 0.4), "edgecolor": _RED, "hatch": "////", "linewidth": 0.5}
    boxes(accuracies, confidence, label="gap to confidence", **gap)
    lines(
        [[(x, low), (x, high)] for x, low, high in zip(centres, *ends, strict=True)],
        color="black",
        linewidth=0.8,
        label="95 % of accuracy",
    )
    lines([[(0, 0), (1, 1)]], color=_GREY, linestyle="--", linewidth=1, label="perfect calibration")
    lines([[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 0), (0, 1)], [(1, 0), (1, 1)]], color="black", linewidth=0.8)
    share = counts / counts.max(initial=1)
    boxes(-0.02 - 0.06 * share, 0 * left - 0.02, facecolor=_GREY)
    scores = f"accuracy {accuracy(predictions):.2f} %  ECE {expected_error(predictions):.2f} %"
    text = f"{name}, {len(predictions)} images\n{scores}"
    middle = place[0] + SIDE / 2
    axes.text(middle, place[1] + SIDE + 0.05, text, ha="center", va="bottom", fontsize="small", parse_math=False)


def _name_levels(axes: Axes, place: tuple[float, float], *, first: bool) -> None:
    """What is on a panel's sides; the left side's is the same for a row, and stands at the first."""
    small: dict[str, Any] = {"fontsize": "x-small", "va": "center"}
    for level in (0.0, 0.5, 1.0):
        axes.text(place[0] + SIDE * level, place[1] - 0.25, f"{level:g}", ha="center", **small)
        if first:
            axes.text(place[0] - 0.05, place[1] + SIDE * level, f"{level:g}", ha="right", **small)
    axes.text(place[0] + SIDE / 2, place[1] - 0.4, "confidence", ha="center", **small)
    if first:
        axes.text(place[0] - 0.35, place[1] + SIDE / 2, "accuracy", ha="center", rotation=90, **small)
        axes.text(place[0] - 0.05, place[1] - 0.1, "images", ha="right", **small)


def band(hits: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's 95 % interval of each bin's accuracy.

    >>> [round(float(end[0]), 3) for end in band(np.array([8]), np.array([10]))]
    [0.49, 0.943]
    """
    share, z = hits / counts, REACH**2 / counts
    middle = (share + z / 2) / (1 + z)
    reach = np.sqrt(z * share * (1 - share) + z**2 / 4) / (1 + z)
    return middle - reach, middle + reach


def _save(figure: Figure, path: Path) -> None:
    with written_whole(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+")  # a title with emoji is drawn with boxes
        # without matplotlib's version, so that equal inputs give equal bytes
        figure.savefig(partial, format="png", metadata={"Software": None})
