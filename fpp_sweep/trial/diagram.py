"""Reliability diagrams: accuracy against confidence, by bin of confidence.

This module loads matplotlib, which takes a second; `artifacts` imports it when it writes a diagram.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fpp_sweep.core.metrics import BINS, EDGES, Confidences, Predictions, accuracy, expected_calibration_error
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.palette import BLUE, GREY, INK, RED

MAX_COLUMNS = 5  # diagrams in a row
PITCH = 1.25  # from panel to panel, in sides of a panel
TICKS = (0, 0.5, 1)
COUNT_BAR = 0.12  # length of the longest bar of a number of samples, below the axis


def write_reliability_diagrams(datasets: Mapping[str, Predictions], path: Path, *, title: str) -> None:
    """Write a PNG with a reliability diagram for each dataset, side by side."""
    figure = Figure(dpi=110)
    draw_panels(figure, datasets)
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize="small", frameon=False)
    with written_whole(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+")  # emoji in a title are drawn as boxes
        figure.savefig(partial, format="png", metadata={"Software": None})


def draw_panels(figure: Figure, samples_by_title: Mapping[str, Predictions | Confidences]) -> None:
    """Draw reliability diagrams in rows of at most MAX_COLUMNS, in a figure that takes the size of all."""
    columns = min(MAX_COLUMNS, len(samples_by_title))
    rows = math.ceil(len(samples_by_title) / columns)
    height = 2.9 * rows + 1.2
    figure.set_layout_engine("none")
    figure.set_size_inches(max(4.0, 2.3 * columns), height)
    figure.subplots_adjust(left=0.5 / columns, right=0.98, bottom=1.1 / height, top=1 - 0.9 / height, hspace=0.5)
    # one pair of axes for a row: with a pair for each panel, drawing takes most of a short trial's time
    axes_of_rows = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axes in axes_of_rows:
        axes.set(xlim=(0, PITCH * columns), ylim=(-COUNT_BAR, 1), ylabel="accuracy", xlabel="confidence")
        lefts = [PITCH * column for column in range(columns)]
        axes.set_xticks([left + tick for left in lefts for tick in TICKS], [f"{tick:g}" for tick in TICKS] * columns)
        axes.spines[:].set_visible(False)
    for number, (title, samples) in enumerate(samples_by_title.items()):
        row, column = divmod(number, columns)
        axes, left = axes_of_rows[row], PITCH * column
        scores = f"accuracy {accuracy(samples):.2f} %, ECE {expected_calibration_error(samples):.2f} %"
        text = f"{title}, {len(samples)} images\n{scores}"
        axes.text(left + 0.5, 1.04, text, fontsize="x-small", ha="center", parse_math=False)
        _draw_bins(axes, samples, left, is_labelled=number == 0)


def _draw_bins(axes: Axes, samples: Predictions | Confidences, left: float, *, is_labelled: bool) -> None:
    """Draw bars of accuracy and gaps to confidence; below the axis, the number of samples of each bin."""
    bins = samples.bins
    used = bins.counts[0] > 0
    counts = bins.counts[0][used]
    accuracies, confidences = bins.hits[0][used] / counts, bins.confidence[0][used] / counts
    labels = ("accuracy", "gap to confidence", "number of images", "perfect calibration")
    if not is_labelled:
        labels = ("", "", "", "")
    places: Mapping[str, Any] = {"x": left + EDGES[:-1][used], "width": 1 / BINS, "align": "edge"}
    gap: Mapping[str, Any] = {"fc": "none", "ec": RED, "hatch": "////", "lw": 0.9}  # a hatch shows on grey prints
    axes.bar(height=accuracies, **places, color=BLUE, label=labels[0])
    axes.bar(height=confidences - accuracies, bottom=accuracies, **places, **gap, label=labels[1])
    axes.bar(height=-COUNT_BAR * counts / counts.max(initial=1), **places, color=GREY, label=labels[2])
    axes.plot([left, left + 1], [0, 1], "--", color=INK, lw=0.8, label=labels[3])
