"""An experiment's figures, from its table and its predictions.

    scatter      a column against another: a point for each row and dataset, a large one for the row's mean
    groups       samples of each dataset by sharpness, in three groups of equal size: means over the datasets
    reliability  a diagram for each row and dataset: accuracy and confidence of each bin
    lines        columns over a setting, with a line for each value of another; a row on no line is a level

A figure's data are computed first, as a data frame: its lines are those of figure.csv.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fpp_sweep.core.metrics import BINS, EDGES, Confidences, accuracy, expected_calibration_error
from fpp_sweep.records.texts import format_setting, is_number
from fpp_sweep.report.figures import StaticFigure
from fpp_sweep.reproduce.experiments import AVERAGE, ExperimentColumn, ExperimentFigure, TableLine, line_name
from fpp_sweep.reproduce.tables import SPLIT, ResultTable
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.palette import DASHES, INK, MARKERS, PALETTE
from fpp_sweep.trial.artifacts import prediction_files, read_predictions
from fpp_sweep.trial.diagram import draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LINE = ["row", "precision"]  # the columns of data that name a line of the table
GROUPS = ("low", "medium", "high")
SHARPNESS = "sharpness"  # a metric, and its column of the predictions
GROUP_MEASURES = (catalogue.ECE, catalogue.ACCURACY, SHARPNESS)
CHART_SIZE = (3.6, 3.3)  # inches
LOG_RATIO = 20.0  # an axis is logarithmic if its largest value is more than this multiple of its smallest
Samples = Mapping[str, NDArray[Any]]  # predictions of a dataset: an array for each of their columns
Style = dict[str, Any]  # colour, marker and dash that tell one series from the others


def write_figure(table: ResultTable) -> None:
    """Write figure.png, figure.pdf and figure.csv, if the experiment has a figure and there is something to draw."""
    figure = figure_of(table)
    if figure is None:
        return
    for kind in ("png", "pdf"):
        with written_whole(table.sweep.report / f"figure.{kind}") as partial:
            partial.write_bytes(figure.to_bytes(kind))
    with written_whole(table.sweep.report / "figure.csv") as partial:
        figure.data.to_csv(partial, index=False, float_format="%.6g", errors="backslashreplace", encoding="utf-8")


def figure_of(table: ResultTable) -> StaticFigure | None:
    """Return the experiment's figure; None if it has none, or no row has the numbers or predictions that it needs."""
    figure = table.experiment.figure
    if figure is None:
        return None
    if figure.kind == "scatter":
        return _scatter(table, figure)
    if figure.kind == "lines":
        return _lines(table, figure)
    if figure.kind == "groups":
        return _groups(table, figure)
    return _reliability(table, figure)


def _styles() -> Iterator[Style]:
    """Yield the style of one series after the other, without an end."""
    for color, marker, dash in zip(cycle(PALETTE[:-1]), cycle(MARKERS), cycle(DASHES), strict=False):
        yield {"color": color, "marker": marker.matplotlib, "linestyle": dash}


def _by_line(table: ResultTable, data: Any) -> Iterator[tuple[TableLine, Style, Any]]:
    """Yield the table's lines that have data, each with its own style and its data."""
    groups = dict(iter(data.groupby(LINE)))
    lines = [line for line in table.lines if line.key in groups]
    for line, style in zip(lines, _styles(), strict=False):
        yield line, style, groups[line.key]


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
    by_cell = cells.pivot(index=[*LINE, "dataset"], columns="column", values="ours")
    points = by_cell.reindex(columns=names).dropna().reset_index()
    if points.empty:
        return None
    means = points.groupby(LINE)[names].mean()

    def draw(canvas: Canvas) -> None:
        for y, axes in zip(ys, _panels(canvas, [y.heading for y in ys], x.heading), strict=True):
            for line, style, of_line in _by_line(table, points):
                mean = means.loc[line.key]
                style["linestyle"] = "none"
                axes.plot(of_line[x.name], of_line[y.name], **style, alpha=0.75, ms=4, mew=0)
                axes.plot(mean[x.name], mean[y.name], **style, ms=8, mec=INK, label=line.title)
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


def _groups(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    by_seed = []
    for line in table.lines:
        for dataset in table.averaged:
            place = {"row": line.row.name, "precision": line.precision, "dataset": dataset}
            for samples in predictions_of(table, line, dataset):
                if SHARPNESS in samples:
                    by_seed += [{**place, **group} for group in _by_sharpness(samples)]
    if not by_seed:
        return None
    data = pandas.DataFrame(by_seed).groupby([*LINE, "dataset", "group"], sort=False).mean()
    average = data.groupby([*LINE, "group"], sort=False).mean().reset_index()
    columns = [column for column in table.experiment.columns if column.name in figure.y]
    columns = [column for column in columns if column.metric in GROUP_MEASURES]

    def draw(canvas: Canvas) -> None:
        titles = [f"{column.heading} of the group" for column in columns]
        for column, axes in zip(columns, _panels(canvas, titles, "sharpness of the samples"), strict=True):
            for line, style, of_line in _by_line(table, average):
                axes.plot(GROUPS, of_line[column.metric], **style, label=line.title)
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


def _reliability(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    datasets = [name for name in table.datasets if name in figure.datasets] or table.datasets
    diagrams = {}
    bins = []
    for dataset in datasets:
        for line in table.lines:
            parts = [Confidences.of(samples) for samples in predictions_of(table, line, dataset)]
            if parts:
                samples = _joined(parts)
                diagrams[f"{line.title}\n{dataset}"] = samples
                bins.append(_bins_of(samples).assign(row=line.row.name, precision=line.precision, dataset=dataset))
    if not diagrams:
        return None

    def draw(canvas: Canvas) -> None:
        draw_panels(canvas, diagrams)

    caption = (
        f"Reliability in {BINS} bins over the images of all seeds of one dataset, with the number of images of each "
        "bin below. The ECE above a diagram is that of all these images together."
    )
    return StaticFigure(caption=caption, data=pandas.concat(bins), draw=draw)


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


# --- lines over a setting -----------------------------------------------------------------------------


def _lines(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    """Draw columns over a setting; a row whose `by` no other row has, or that does not read the setting, is a level."""
    columns = [column for column in table.experiment.columns if column.name in figure.y]
    x, by = figure.x or "x", figure.by or "by"  # settings, and columns of the CSV
    cells = table.tidy[(table.tidy["dataset"] == table.main_scope) & table.tidy["ours"].notna()]
    cells = cells[cells["column"].isin(figure.y)]
    if cells.empty:
        return None
    data = _data_of_lines(table, cells, x, by)
    rows_by_value = data.dropna(subset=[x]).groupby(by, sort=False)["row"].nunique()
    if figure.by:
        rows_by_value = rows_by_value[rows_by_value > 1]
    is_on_line = data[x].notna() & data[by].isin(rows_by_value.index)
    titles = {line.key: line.title for line in table.lines}

    def draw(canvas: Canvas) -> None:
        for column, axes in zip(columns, _panels(canvas, [column.heading for column in columns], x), strict=True):
            styles = _styles()
            is_shown = data["column"] == column.name
            for (value, precision), points in data[is_shown & is_on_line].groupby([by, "precision"], sort=False):
                ordered = points.sort_values(x)
                label = line_name((f"{by} = {value}" if value else table.main_scope, precision))
                errors = ordered["deviation"].fillna(0.0)
                axes.errorbar(ordered[x], ordered["value"], yerr=errors, capsize=2, label=label, **next(styles))
            for level in data[is_shown & ~is_on_line].itertuples():
                label = titles[level.row, level.precision]
                axes.axhline(level.value, **next(styles) | {"marker": ""}, label=label)
            _set_scale(axes, data[is_shown & is_on_line][x])

    caption = f"{_headings(columns)} over {x}, {table.main_scope}; bars are a standard deviation over seeds."
    return StaticFigure(caption=caption, data=data, draw=draw)


def _data_of_lines(table: ResultTable, cells: Any, x: str, by: str) -> Any:
    """Return the cells with the settings of the axis and of the lines."""
    numbers, texts = [], []
    for line in zip(cells["row"], cells["precision"], strict=True):
        record = table.record(line)
        settings = {} if record is None else relevant(record.config)  # as far as the method reads them
        numbers.append(settings.get(x) if is_number(settings.get(x)) else None)
        texts.append("" if settings.get(by) is None else format_setting(settings[by]))
    columns: dict[str, Any] = {x: numbers, by: texts}
    places = cells[["row", "precision", "column"]].assign(**columns)
    return places.assign(value=cells["ours"], deviation=cells["deviation_over_seeds"])


# --- predictions --------------------------------------------------------------------------------------


def predictions_of(table: ResultTable, line: TableLine, dataset: str) -> Iterator[Samples]:
    """Yield a line's predictions on a dataset, for each seed."""
    record = table.record(line.key)
    if record is None:
        return
    for path in prediction_files(table.sweep.artifacts(record.name), SPLIT, dataset):
        yield read_predictions(path)
