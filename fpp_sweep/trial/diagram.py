"""The reliability diagram: is a model right as often as it says? matplotlib is imported when it draws: a second."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.core.evidence import REACH
from fpp_sweep.core.metrics import BINS, EDGES, Predictions, accuracy, expected_error
from fpp_sweep.files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's bright scheme, for colour-blind readers; the hatch serves those who print in grey
_BLUE, _RED, _GREY = "#4477AA", "#EE6677", "#555555"


def reliability_panels(datasets: Mapping[str, Predictions], path: Path, *, title: str) -> None:
    """Write a PNG with a reliability diagram for each of several datasets, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(5, len(datasets))
    rows = -(-len(datasets) // columns)
    figure = Figure(figsize=(2.3 * columns + 0.4, 2.5 * rows + 0.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, (name, predictions) in zip(panels.flat, datasets.items(), strict=False):
        _draw_bins(axes, predictions)
        text = f"{name}\naccuracy {accuracy(predictions):.2f} %  ECE {expected_error(predictions):.2f} %"
        axes.set_title(text, fontsize="small", parse_math=False)
    for axes in panels[:, 1:].flat:
        axes.set_ylabel("")
    for axes in panels.flat[len(datasets) :]:
        axes.set_axis_off()
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    figure.suptitle(textwrap.fill(title, 24 * columns), fontsize="medium", parse_math=False)
    _save(figure, path)


def _draw_bins(axes: Axes, predictions: Predictions) -> None:
    bins = predictions.bins
    full = bins.counts[0] > 0
    counts = bins.counts[0][full]
    accuracy, confidence = bins.hits[0][full] / counts, bins.confidence[0][full] / counts
    left, width = EDGES[:-1][full], 1 / BINS
    low, high = band(bins.hits[0][full], counts)
    axes.bar(left, accuracy, width, align="edge", color=_BLUE, edgecolor="black", linewidth=0.5, label="accuracy")
    axes.bar(
        left,
        confidence - accuracy,
        width,
        bottom=accuracy,
        align="edge",
        color=(_RED, 0.4),
        edgecolor=_RED,
        hatch="////",
        linewidth=0.5,
        label="gap to confidence",
    )
    centres = left + width / 2
    axes.vlines(centres, low, high, color="black", linewidth=0.8, label="95 % of accuracy")
    for centre, top, count in zip(centres, np.maximum(high, confidence), counts, strict=True):
        text = f"{count}" if count < 1000 else f"{count / 1000:.2g}k"
        axes.annotate(text, (centre, min(top + 0.02, 0.9)), fontsize=4, ha="center", va="bottom", rotation=90)
    axes.plot([0, 1], [0, 1], linestyle="--", color=_GREY, linewidth=1, label="perfect calibration")
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")


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
