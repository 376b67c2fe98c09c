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
COUNT_BAR = 0.12  # length of the longest bar of a number of samples, below the axis


def write_reliability_diagrams(datasets: Mapping[str, Predictions], path: Path, *, title: str) -> None:
    """Write a PNG with a reliability diagram for each dataset, side by side."""
    figure = Figure(dpi=110, layout="constrained")
    draw_panels(figure, datasets)
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    with written_whole(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+")  # emoji in a title are drawn as boxes
        figure.savefig(partial, format="png", metadata={"Software": None})


def draw_panels(figure: Figure, samples_by_title: Mapping[str, Predictions | Confidences]) -> None:
    """Draw reliability diagrams in rows of at most MAX_COLUMNS."""
    columns = min(MAX_COLUMNS, len(samples_by_title))
    rows = math.ceil(len(samples_by_title) / columns)
    figure.set_size_inches(max(4.0, 2.3 * columns), 2.7 * rows + 0.8)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(samples_by_title) :]:
        axes.set_visible(False)
    for axes, (title, samples) in zip(panels.flat, samples_by_title.items(), strict=False):
        scores = f"accuracy {accuracy(samples):.2f} %, ECE {expected_calibration_error(samples):.2f} %"
        axes.set_title(f"{title}, {len(samples)} images\n{scores}", fontsize="small", parse_math=False)
        _draw_bins(axes, samples)
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")


def _draw_bins(axes: Axes, samples: Predictions | Confidences) -> None:
    """Draw bars of accuracy and gaps to confidence; below the axis, the number of samples of each bin."""
    bins = samples.bins
    used = bins.counts[0] > 0
    counts = bins.counts[0][used]
    accuracies, confidences = bins.hits[0][used] / counts, bins.confidence[0][used] / counts
    places: Mapping[str, Any] = {"x": EDGES[:-1][used], "width": 1 / BINS, "align": "edge"}
    # the hatch shows the gap on grey prints
    gap: Mapping[str, Any] = {"fc": "none", "ec": RED, "hatch": "////", "lw": 0.9, "label": "gap to confidence"}
    axes.bar(height=accuracies, **places, color=BLUE, label="accuracy")
    axes.bar(height=confidences - accuracies, bottom=accuracies, **places, **gap)
    axes.bar(height=-COUNT_BAR * counts / counts.max(initial=1), **places, color=GREY, label="number of images")
    axes.plot([0, 1], [0, 1], "--", color=INK, lw=0.8, label="perfect calibration")
    axes.set(xlim=(0, 1), ylim=(-COUNT_BAR, 1), xlabel="confidence")
