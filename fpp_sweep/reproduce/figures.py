"""An experiment's figures, from its table and its predictions.

    scatter      a column against another: a point for each row and dataset, a large one for the row's mean
    groups       samples of each dataset by sharpness, in three groups of equal size: means over the datasets
    reliability  a diagram for each row and dataset: accuracy and confidence of each bin
    lines        columns over a setting, with a line for each value of another; a row on no line is a level

A figure's data are computed first, as a data frame: its lines are those of figure.csv.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fpp_sweep.core.metrics import BINS, EDGES, Confidences, accuracy, expected_calibration_error
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.texts import format_setting, is_number
from fpp_sweep.report.figures import StaticFigure
from fpp_sweep.reproduce.experiments import AVERAGE, ExperimentColumn, ExperimentFigure, ExperimentRow
from fpp_sweep.reproduce.tables import SPLIT, ResultTable
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.palette import BLUE, DASHES, INK, MARKERS, PALETTE, PAPER, RED
from fpp_sweep.trial.artifacts import prediction_files, read_predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

GROUPS = ("low", "medium", "high")
SHARPNESS = "sharpness"  # a metric, and its column of the predictions
GROUP_MEASURES = (catalogue.ECE, catalogue.ACCURACY, SHARPNESS)
CHART_SIZE = (3.6, 3.3)  # inches
LOG_RATIO = 20.0  # an axis is logarithmic if its largest value is more than this multiple of its smallest
MAX_DIAGRAMS = 5  # reliability diagrams in a row
Samples = Mapping[str, NDArray[Any]]  # predictions of a dataset: an array for each of their columns
Style = dict[str, Any]  # colour, marker and dash that tell one series from the others


def write_figure(folder: SweepFolder, table: ResultTable) -> None:
    """Write figure.png, figure.pdf and figure.csv, if the experiment has a figure and there is something to draw."""
    figure = figure_of(folder, table)
    if figure is None:
        return
    for kind in ("png", "pdf"):
        with written_whole(folder.report / f"figure.{kind}") as partial:
            partial.write_bytes(figure.to_bytes(kind))
    with written_whole(folder.report / "figure.csv") as partial:
        figure.data.to_csv(partial, index=False, float_format="%.6g", errors="backslashreplace", encoding="utf-8")


def figure_of(folder: SweepFolder, table: ResultTable) -> StaticFigure | None:
    """Return the experiment's figure; None if it has none, or no row has the numbers or predictions that it needs."""
    figure = table.experiment.figure
    if figure is None:
        return None
    if figure.kind == "scatter":
        return _scatter(table, figure)
    if figure.kind == "lines":
        return _lines(table, figure)
    if figure.kind == "groups":
        return _groups(folder, table, figure)
    return _reliability(folder, table, figure)


def _styles() -> Iterator[Style]:
    """Yield the style of one series after the other, without an end."""
    for color, marker, dash in zip(cycle(PALETTE[:-1]), cycle(MARKERS), cycle(DASHES), strict=False):
        yield {"color": color, "marker": marker.matplotlib, "linestyle": dash}


def _by_row(table: ResultTable, data: Any) -> Iterator[tuple[ExperimentRow, Style, Any]]:
    """Yield the rows that have data, each with its own style and its lines."""
    groups = dict(iter(data.groupby("row")))
    rows = [row for row in table.rows if row.name in groups]
    for row, style in zip(rows, _styles(), strict=False):
        yield row, style, groups[row.name]


def _headings(columns: Sequence[ExperimentColumn]) -> str:
    return ", ".join(column.heading for column in columns)


def _panels(canvas: Canvas, titles: Sequence[str], x_title: str) -> Iterator[Axes]:
    """Yield axes side by side, one for each title of a vertical axis."""
    width, height = CHART_SIZE
    canvas.set_size_inches(width * len(titles) + 0.4, height)
    for axes, title in zip(canvas.subplots(1, len(titles), squeeze=False)[0], titles, strict=True):
        axes.set(xlabel=x_title, ylabel=title)
        yield axes


def _set_scale(axes: Axes, xs: Any) -> None:
    """Make the horizontal axis logarithmic if its numbers are positive and span a wide range."""
    if len(xs) and min(xs) > 0 and max(xs) / min(xs) > LOG_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")


# --- scatter ------------------------------------------------------------------------------------------


def _scatter(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    x, *ys = [table.experiment.column(name) for name in (figure.x or "", *figure.y)]
    names = [x.name, *(y.name for y in ys)]
    cells = table.tidy[table.tidy["dataset"].isin(table.datasets)]
    by_cell = cells.pivot(index=["row", "dataset"], columns="column", values="ours")
    points = by_cell.reindex(columns=names).dropna().reset_index()
    if points.empty:
        return None
    means = points.groupby("row")[names].mean()

    def draw(canvas: Canvas) -> None:
        for y, axes in zip(ys, _panels(canvas, [y.heading for y in ys], x.heading), strict=True):
            for row, style, lines in _by_row(table, points):
                mean = means.loc[row.name]
                style["linestyle"] = "none"
                axes.plot(lines[x.name], lines[y.name], **style, alpha=0.75, ms=4, mew=0)
                axes.plot(mean[x.name], mean[y.name], **style, ms=8, mec=INK, label=row.title)
            _set_scale(axes, points[x.name])

    correlated = [f"{y.heading}: {correlations(points, x.name, y.name)}" for y in ys]
    caption = (
        f"{x.heading} against {_headings(ys)}: a point for each row and dataset, a large one for a row's mean. "
        f"Over all {len(points)} points, {'; '.join(correlated)}."
    )
    data = pandas.concat([points, means.reset_index().assign(dataset="mean")])
    return StaticFigure(caption=caption, data=data, draw=draw)


def correlations(points: Any, x: str, y: str) -> str:
    """Return Pearson's and Spearman's coefficients as text.

    >>> correlations(pandas.DataFrame({"h": [1, 2, 3], "ece": [2.0, 3.0, 9.0]}), "h", "ece")
    'Pearson r 0.92, Spearman rho 1.00'
    """
    if points[x].nunique() < 2 or points[y].nunique() < 2:
        return "no correlation, as one of them is constant"
    pearson = points[x].corr(points[y])
    spearman = points[x].corr(points[y], method="spearman")
    return f"Pearson r {pearson:.2f}, Spearman rho {spearman:.2f}"


# --- groups by sharpness ------------------------------------------------------------------------------


def _groups(folder: SweepFolder, table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    by_seed = []
    for row in table.rows:
        for dataset in table.averaged:
            for samples in predictions_of(folder, table, row, dataset):
                if SHARPNESS in samples:
                    by_seed += [{"row": row.name, "dataset": dataset, **group} for group in _by_sharpness(samples)]
    if not by_seed:
        return None
    data = pandas.DataFrame(by_seed).groupby(["row", "dataset", "group"], sort=False).mean()
    average = data.groupby(["row", "group"], sort=False).mean().reset_index()
    columns = [column for column in table.experiment.columns if column.name in figure.y]
    columns = [column for column in columns if column.metric in GROUP_MEASURES]

    def draw(canvas: Canvas) -> None:
        titles = [f"{column.heading} of the group" for column in columns]
        for column, axes in zip(columns, _panels(canvas, titles, "sharpness of the samples"), strict=True):
            for row, style, lines in _by_row(table, average):
                axes.plot(GROUPS, lines[column.metric], **style, label=row.title)
            axes.axhline(0, color=INK, lw=0.6)

    caption = (
        f"Samples of each dataset and seed by the sharpness at their prompt, in three groups of equal size; ECE "
        f"({BINS} bins) and mean sharpness inside each, averaged over seeds, then over datasets."
    )
    data = pandas.concat([data.reset_index(), average.assign(dataset=AVERAGE)])
    return StaticFigure(caption=caption, data=data, draw=draw)


def _by_sharpness(samples: Samples) -> Iterator[dict[str, Any]]:
    """Yield the numbers of a dataset's flattest, middle and sharpest third, as far as it has samples."""
    order = np.argsort(samples[SHARPNESS], kind="stable")
    for name, indices in zip(GROUPS, np.array_split(order, len(GROUPS)), strict=True):
        numbers: dict[str, Any] = {"group": name, "samples": len(indices)}
        if len(indices):
            confidences = Confidences.of({key: samples[key][indices] for key in ("label", "predicted", "confidence")})
            numbers[SHARPNESS] = float(np.mean(samples[SHARPNESS][indices], dtype=np.float64))
            numbers[catalogue.ACCURACY] = accuracy(confidences)
            numbers[catalogue.ECE] = expected_calibration_error(confidences)
        yield numbers


# --- reliability --------------------------------------------------------------------------------------


def _reliability(folder: SweepFolder, table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    datasets = [name for name in table.datasets if name in figure.datasets] or table.datasets
    diagrams: dict[str, Any] = {}  # bins by title
    for dataset in datasets:
        for row in table.rows:
            parts = [Confidences.of(samples) for samples in predictions_of(folder, table, row, dataset)]
            if parts:
                samples = _joined(parts)
                numbers = f"accuracy {accuracy(samples):.2f} %, ECE {expected_calibration_error(samples):.2f} %"
                bins = _bins_of(samples).assign(row=row.name, dataset=dataset)
                diagrams[f"{row.title}, {dataset}\n{numbers}"] = bins
    if not diagrams:
        return None

    def draw(canvas: Canvas) -> None:
        _draw_diagrams(canvas, diagrams)

    caption = (
        f"Reliability in {BINS} bins over the samples of all seeds of one dataset; below, the number of samples of "
        "each bin. The ECE above a diagram is that of these samples together."
    )
    return StaticFigure(caption=caption, data=pandas.concat(diagrams.values()), draw=draw)


def _joined(parts: Sequence[Confidences]) -> Confidences:
    confidence = np.concatenate([part.confidence for part in parts])
    correct = np.concatenate([part.correct for part in parts])
    return Confidences(confidence, correct)


def _bins_of(samples: Confidences) -> Any:
    """Return a line for each bin; accuracy and confidence of an empty one are missing."""
    bins = samples.bins
    counts = pandas.Series(bins.counts[0])
    filled = counts.where(counts > 0)
    return pandas.DataFrame(
        {
            "low": EDGES[:-1],
            "high": EDGES[1:],
            "samples": counts,
            "accuracy": bins.hits[0] / filled,
            "confidence": bins.confidence[0] / filled,
        }
    )


def _draw_diagrams(canvas: Canvas, diagrams: Mapping[str, Any]) -> None:
    """Draw reliability diagrams in rows of at most MAX_DIAGRAMS, with the number of samples below each."""
    across = min(MAX_DIAGRAMS, len(diagrams))
    down = math.ceil(len(diagrams) / MAX_DIAGRAMS)
    canvas.set_size_inches(max(4.0, 2.1 * across), 3.0 * down + 0.3)
    panels = canvas.subplots(2 * down, across, squeeze=False, sharex=True, height_ratios=[3, 1] * down)
    for axes in panels.flat:
        axes.set_visible(False)
    for index, (title, bins) in enumerate(diagrams.items()):
        row, column = divmod(index, across)
        upper, lower = panels[2 * row, column], panels[2 * row + 1, column]
        _draw_bins(upper, lower, bins.dropna())
        upper.set_title(title, fontsize="small")
        if column == 0:
            upper.set_ylabel("accuracy")
            lower.set_ylabel("samples")


def _draw_bins(upper: Axes, lower: Axes, bins: Any) -> None:
    gaps = bins["confidence"] - bins["accuracy"]
    places: Mapping[str, Any] = {"x": bins["low"], "width": 1 / BINS, "align": "edge"}
    outline: Mapping[str, Any] = {"fc": "none", "ec": RED, "lw": 0.9, "label": "gap to confidence"}
    upper.bar(height=bins["accuracy"], **places, color=BLUE, ec=PAPER, lw=0.4, label="accuracy")
    upper.bar(height=gaps, bottom=bins["accuracy"], **places, **outline)
    upper.plot([0, 1], [0, 1], "--", color=INK, lw=0.8, label="perfect calibration")
    upper.set(xlim=(0, 1), ylim=(0, 1), visible=True)
    lower.bar(height=bins["samples"], **places, color=PALETTE[-1], ec=PAPER, lw=0.4)
    lower.set(xlabel="confidence", visible=True)


# --- lines over a setting -----------------------------------------------------------------------------


def _lines(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    """Draw columns over a setting; a row whose `by` no other row has, or that does not read the setting, is a level."""
    columns = [column for column in table.experiment.columns if column.name in figure.y]
    x, by = figure.x or "x", figure.by or "by"  # settings, and columns of the CSV
    cells = table.tidy[(table.tidy["dataset"] == table.main_scope) & table.tidy["ours"].notna()]
    cells = cells[cells["column"].isin(figure.y)]
    if cells.empty:
        return None
    settings = {row.name: _settings_of(table, row, x, by) for row in table.rows}
    data = pandas.DataFrame(
        {
            "row": cells["row"],
            "column": cells["column"],
            x: [settings[name][0] for name in cells["row"]],
            by: [settings[name][1] for name in cells["row"]],
            "value": cells["ours"],
            "deviation": cells["deviation_over_seeds"],
        }
    )
    rows_by_value = data.dropna(subset=[x]).groupby(by, sort=False)["row"].nunique()
    if figure.by:
        rows_by_value = rows_by_value[rows_by_value > 1]
    is_on_line = data[x].notna() & data[by].isin(rows_by_value.index)

    def draw(canvas: Canvas) -> None:
        for column, axes in zip(columns, _panels(canvas, [column.heading for column in columns], x), strict=True):
            styles = _styles()
            is_shown = data["column"] == column.name
            for value, points in data[is_shown & is_on_line].groupby(by, sort=False):
                ordered = points.sort_values(x)
                label = f"{by} = {value}" if value else table.main_scope
                errors = ordered["deviation"].fillna(0.0)
                axes.errorbar(ordered[x], ordered["value"], yerr=errors, capsize=2, label=label, **next(styles))
            for level in data[is_shown & ~is_on_line].itertuples():
                axes.axhline(level.value, **next(styles) | {"marker": ""}, label=table.experiment.row(level.row).title)
            _set_scale(axes, data[is_shown & is_on_line][x])

    caption = f"{_headings(columns)} over {x}, {table.main_scope}; bars are a standard deviation over seeds."
    return StaticFigure(caption=caption, data=data, draw=draw)


def _settings_of(table: ResultTable, row: ExperimentRow, x: str, by: str) -> tuple[float | None, str]:
    """Return a row's number of one setting and its value of another, as far as its method reads them."""
    record = table.record(row)
    if record is None:
        return None, ""
    settings = relevant(record.config)
    value = settings.get(x) if is_number(settings.get(x)) else None
    return value, "" if settings.get(by) is None else format_setting(settings[by])


# --- predictions --------------------------------------------------------------------------------------


def predictions_of(folder: SweepFolder, table: ResultTable, row: ExperimentRow, dataset: str) -> Iterator[Samples]:
    """Yield a row's predictions on a dataset, for each seed."""
    record = table.record(row)
    if record is None:
        return
    for path in prediction_files(folder.artifacts(record.name), SPLIT, dataset):
        yield read_predictions(path)
