"""Reliability diagrams: accuracy against confidence, by bin of confidence.

This module loads matplotlib, which takes a second; `artifacts` imports it when it writes a diagram.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from fpp_sweep.core.metrics import EDGES, Confidences, Predictions, accuracy, expected_calibration_error
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.palette import BLUE, GREY, INK, RED

MAX_COLUMNS = 5  # panels in a row
PITCH = 2.25  # inches from panel to panel
SIDE = 1.9  # inches: a panel's square
N_COLORS = 64  # the palette has these; more make no visible difference
Z_95 = 1.96  # half-width of a 95 % interval in standard deviations

Floats = NDArray[np.float64]


def reliability_panels(datasets: Mapping[str, Predictions], path: Path, *, title: str) -> None:
    """Write a PNG with a reliability diagram for each dataset, side by side."""
    figure = Figure(dpi=110)
    draw_panels(figure, datasets, title=title)
    _save(figure, path)


def draw_panels(figure: Figure, datasets: Mapping[str, Predictions | Confidences], *, title: str = "") -> None:
    """Draw a reliability diagram for each dataset, side by side, in a figure that takes the size of all."""
    columns = min(MAX_COLUMNS, len(datasets))
    rows = math.ceil(len(datasets) / columns)
    wrapped = textwrap.fill(title, 24 * columns)
    width = columns * PITCH + 0.6
    height = rows * (PITCH + 0.6) + 0.7 + 0.2 * wrapped.count("\n")
    figure.set_layout_engine("none")
    figure.set_size_inches(width, height)
    # one pair of axes, in inches: with a pair for each panel, drawing takes most of a short trial's time
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    axes.text(width / 2, height - 0.1, wrapped, ha="center", va="top", fontsize="medium", parse_math=False)
    for number, (dataset, predictions) in enumerate(datasets.items()):
        row, column = divmod(number, columns)
        panel = Panel(axes, left=0.6 + column * PITCH, bottom=0.95 + (rows - 1 - row) * (PITCH + 0.6))
        panel.draw(predictions, dataset)
        panel.label_axes(is_first=column == 0)
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))  # once each, of all panels
    entries_per_row = 4 if columns > 2 else 2
    # the legend of a single panel must fit into the picture
    style: dict[str, Any] = {"handlelength": 1.2, "handletextpad": 0.4, "columnspacing": 1.0, "frameon": False}
    figure.legend(by_label.values(), by_label, loc="lower center", ncols=entries_per_row, fontsize="small", **style)


@dataclass(frozen=True, slots=True)
class Panel:
    """A square of a figure whose axes are in inches; positions inside the panel are shares of its side."""

    axes: Axes
    left: float
    bottom: float

    def draw(self, predictions: Predictions | Confidences, name: str) -> None:
        """Draw bars of accuracy, gaps to confidence and intervals; below them, the number of images of each bin."""
        bins = predictions.bins
        used = bins.counts[0] > 0
        counts = bins.counts[0][used]
        accuracies = bins.hits[0][used] / counts
        confidence = bins.confidence[0][used] / counts
        left, right = EDGES[:-1][used], EDGES[1:][used]
        zeros = np.zeros(len(counts))
        self._boxes(left, right, zeros, accuracies, facecolor=BLUE, edgecolor=INK, linewidth=0.5, label="accuracy")
        # the hatch shows the gap on grey prints
        gap = {"facecolor": (RED, 0.4), "edgecolor": RED, "hatch": "////", "linewidth": 0.5}
        self._boxes(left, right, accuracies, confidence, label="gap to confidence", **gap)
        centres = (left + right) / 2
        low, high = wilson_interval(bins.hits[0][used], counts)
        intervals = np.stack([np.stack([centres, low], axis=1), np.stack([centres, high], axis=1)], axis=1)
        self._lines(intervals, color=INK, linewidth=0.8, label="95 % of accuracy")
        diagonal = [[(0, 0), (1, 1)]]
        self._lines(diagonal, color=GREY, linestyle="--", linewidth=1, label="perfect calibration")
        frame = [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 0), (0, 1)], [(1, 0), (1, 1)]]
        self._lines(frame, color=INK, linewidth=0.8)
        share = counts / counts.max(initial=1)
        self._boxes(left, right, -0.02 - 0.06 * share, zeros - 0.02, facecolor=GREY)
        scores = f"accuracy {accuracy(predictions):.2f} %  ECE {expected_calibration_error(predictions):.2f} %"
        self._text(0.5, 1, f"{name}, {len(predictions)} images\n{scores}", up=0.05, va="bottom", fontsize="small")

    def label_axes(self, *, is_first: bool) -> None:
        """Label the axes; only the first panel of a row has labels on its left side."""
        small: dict[str, Any] = {"fontsize": "x-small", "va": "center"}
        for level in (0.0, 0.5, 1.0):
            self._text(level, 0, f"{level:g}", up=-0.25, **small)
        self._text(0.5, 0, "confidence", up=-0.4, **small)
        if not is_first:
            return
        for level in (0.0, 0.5, 1.0):
            self._text(0, level, f"{level:g}", right=-0.05, ha="right", **small)
        self._text(0, 0.5, "accuracy", right=-0.35, rotation=90, **small)
        self._text(0, 0, "images", right=-0.05, up=-0.1, ha="right", **small)

    def _boxes(self, left: Any, right: Any, low: Any, high: Any, **style: Any) -> None:
        """Draw rectangles with these sides."""
        corners = [
            np.stack([left, low], axis=1),
            np.stack([right, low], axis=1),
            np.stack([right, high], axis=1),
            np.stack([left, high], axis=1),
        ]
        boxes = self._to_inches(np.stack(corners, axis=1))
        self.axes.add_collection(PolyCollection(boxes, **style), autolim=False)

    def _lines(self, ends: Any, **style: Any) -> None:
        """Draw lines between pairs of points."""
        self.axes.add_collection(LineCollection(self._to_inches(np.array(ends)), **style), autolim=False)

    def _text(
        self, x: float, y: float, text: str, *, right: float = 0.0, up: float = 0.0, ha: str = "center", **style: Any
    ) -> None:
        """Write a text at a point of the panel, shifted by inches."""
        across, along = self.left + SIDE * x + right, self.bottom + SIDE * y + up
        self.axes.text(across, along, text, ha=ha, parse_math=False, **style)

    def _to_inches(self, points: Any) -> Any:
        return points * SIDE + (self.left, self.bottom)


def wilson_interval(hits: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the ends of Wilson's 95 % interval of each bin's accuracy.

    >>> low, high = wilson_interval(np.array([8]), np.array([10]))
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.49, 0.943)
    """
    share = hits / counts
    z = Z_95**2 / counts
    middle = (share + z / 2) / (1 + z)
    half_width = np.sqrt(z * share * (1 - share) + z**2 / 4) / (1 + z)
    return middle - half_width, middle + half_width


def _save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG with a palette, which takes two fifths of the space: a large sweep has 1,000 of them."""
    canvas: Any = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+")  # emoji in a title are drawn as boxes
        canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    few_colors = picture.quantize(N_COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    with written_whole(path) as partial:
        few_colors.save(partial, format="png", dpi=(figure.dpi, figure.dpi))
