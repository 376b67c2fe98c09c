"""Descriptions of an experiment's figures, from its table and its predictions; report/figures.py draws them.

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
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.texts import format_setting, is_number
from fpp_sweep.report.figures import (
    Chart,
    ReliabilityDiagram,
    Series,
    SeriesStyle,
    StaticFigure,
    draw_charts,
    draw_reliability_diagrams,
    series_styles,
)
from fpp_sweep.reproduce.experiments import ExperimentColumn, ExperimentFigure, ExperimentRow
from fpp_sweep.reproduce.printed import AVERAGE
from fpp_sweep.reproduce.tables import SPLIT, ResultTable
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.files import written_whole
from fpp_sweep.trial.artifacts import prediction_files, read_predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

GROUPS = ("low", "medium", "high")
SHARPNESS = "sharpness"  # a metric, and its column of the predictions
GROUP_MEASURES = (catalogue.ECE, catalogue.ACCURACY, SHARPNESS)
Samples = Mapping[str, NDArray[Any]]  # predictions of a dataset: an array for each of their columns


def write_figure(folder: SweepFolder, table: ResultTable) -> None:
    """Write figure.png, figure.pdf and figure.csv, if the experiment has a figure and there is something to draw."""
    if table.experiment.figure is None:
        return
    figure = figure_of(folder, table, table.experiment.figure)
    if figure is None:
        return
    for kind in ("png", "pdf"):
        with written_whole(folder.report / f"figure.{kind}") as partial:
            partial.write_bytes(figure.to_bytes(kind))
    with written_whole(folder.report / "figure.csv") as partial:
        figure.data.to_csv(partial, index=False, float_format="%.6g", errors="backslashreplace", encoding="utf-8")


def figures_of_page(folder: SweepFolder, table: ResultTable) -> Iterator[StaticFigure]:
    """Yield the experiment's figure, and those that its predictions allow; one of each kind."""
    columns = {column.metric: column.name for column in table.experiment.columns if column.of == "mean"}
    figures: dict[str, ExperimentFigure] = {}
    if table.experiment.figure:
        figures[table.experiment.figure.kind] = table.experiment.figure
    if catalogue.ECE in columns:
        figures.setdefault("reliability", ExperimentFigure(kind="reliability"))
    if {catalogue.ECE, SHARPNESS} <= columns.keys():
        groups = ExperimentFigure(kind="groups", y=(columns[catalogue.ECE], columns[SHARPNESS]))
        figures.setdefault("groups", groups)
    for figure in figures.values():
        drawing = figure_of(folder, table, figure)
        if drawing is not None:
            yield drawing


def figure_of(folder: SweepFolder, table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    """Return a figure; None if no row has the numbers or predictions that it needs."""
    if figure.kind == "scatter":
        return _scatter(table, figure)
    if figure.kind == "lines":
        return _lines(table, figure)
    if figure.kind == "groups":
        return _groups(folder, table, figure)
    return _reliability(folder, table, figure)


def _figure_of_charts(kind: str, caption: str, data: Any, charts: Sequence[Chart]) -> StaticFigure:
    def draw(canvas: Canvas) -> None:
        draw_charts(canvas, charts)

    return StaticFigure(kind=kind, caption=caption, data=data, draw=draw)


def _by_row(table: ResultTable, data: Any) -> Iterator[tuple[ExperimentRow, SeriesStyle, Any]]:
    """Yield the rows that have data, each with its own style and its lines."""
    groups = dict(iter(data.groupby("row")))
    rows = [row for row in table.rows if row.name in groups]
    for row, style in zip(rows, cycle(series_styles()), strict=False):
        yield row, style, groups[row.name]


def _headings(columns: Sequence[ExperimentColumn]) -> str:
    return ", ".join(column.heading for column in columns)


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
    charts = []
    correlated = []
    for y in ys:
        series = []
        for row, style, lines in _by_row(table, points):
            mean = means.loc[row.name]
            series.append(Series(kind="points", style=style, xs=list(lines[x.name]), ys=list(lines[y.name])))
            large = Series(kind="large point", style=style, xs=[mean[x.name]], ys=[mean[y.name]], label=row.title)
            series.append(large)
        charts.append(Chart(x_title=x.heading, y_title=y.heading, series=series))
        correlated.append(f"{y.heading}: {correlations(points, x.name, y.name)}")
    caption = (
        f"{x.heading} against {_headings(ys)}: a point for each row and dataset, a large one for a row's mean. "
        f"Over all {len(points)} points, {'; '.join(correlated)}."
    )
    data = pandas.concat([points, means.reset_index().assign(dataset="mean")])
    return _figure_of_charts("scatter", caption, data, charts)


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
    charts = []
    for column in table.experiment.columns:
        if column.name in figure.y and column.metric in GROUP_MEASURES:
            series = []
            for row, style, lines in _by_row(table, average):
                ys = list(lines[column.metric])
                series.append(Series(kind="line", style=style, xs=GROUPS, ys=ys, label=row.title))
            title = f"{column.heading} of the group"
            charts.append(Chart(x_title="sharpness of the samples", y_title=title, series=series, zero_line=True))
    caption = (
        f"Samples of each dataset and seed by the sharpness at their prompt, in three groups of equal size; ECE "
        f"({BINS} bins) and mean sharpness inside each, averaged over seeds, then over datasets."
    )
    data = pandas.concat([data.reset_index(), average.assign(dataset=AVERAGE)])
    return _figure_of_charts("groups", caption, data, charts)


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
    lines = []
    diagrams = []
    for dataset in datasets:
        for row in table.rows:
            parts = [Confidences.of(samples) for samples in predictions_of(folder, table, row, dataset)]
            if parts:
                samples = _joined(parts)
                bins = _bins_of(samples)
                diagrams.append(_diagram(f"{row.title}, {dataset}", samples, bins))
                lines.append(bins.assign(row=row.name, dataset=dataset))
    if not lines:
        return None

    def draw(canvas: Canvas) -> None:
        draw_reliability_diagrams(canvas, diagrams)

    caption = (
        f"Reliability in {BINS} bins over the samples of all seeds of one dataset; below, the number of samples of "
        "each bin. The ECE above a diagram is that of these samples together."
    )
    return StaticFigure(kind="reliability", caption=caption, data=pandas.concat(lines), draw=draw)


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


def _diagram(title: str, samples: Confidences, bins: Any) -> ReliabilityDiagram:
    filled = bins[bins["samples"] > 0]
    numbers = f"accuracy {accuracy(samples):.2f} %, ECE {expected_calibration_error(samples):.2f} %"
    return ReliabilityDiagram(
        title=f"{title}\n{numbers}",
        lows=list(filled["low"]),
        accuracies=list(filled["accuracy"]),
        confidences=list(filled["confidence"]),
        counts=list(filled["samples"]),
        bin_width=1 / BINS,
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
    charts = []
    for column in columns:
        of_column = data[data["column"] == column.name]
        series = _line_series(table, of_column, x, by, list(rows_by_value.index))
        charts.append(Chart(x_title=x, y_title=column.heading, series=series))
    caption = f"{_headings(columns)} over {x}, {table.main_scope}; bars are a standard deviation over seeds."
    return _figure_of_charts("lines", caption, data, charts)


def _settings_of(table: ResultTable, row: ExperimentRow, x: str, by: str) -> tuple[float | None, str]:
    """Return a row's number of one setting and its value of another, as far as its method reads them."""
    record = table.record(row)
    if record is None:
        return None, ""
    settings = relevant(record.config)
    value = settings.get(x) if is_number(settings.get(x)) else None
    return value, "" if settings.get(by) is None else format_setting(settings[by])


def _line_series(table: ResultTable, data: Any, x: str, by: str, values: Sequence[str]) -> list[Series]:
    """Return a line for each value of `by`, then the levels."""
    styles = cycle(series_styles())
    series = []
    is_on_line = data[x].notna() & data[by].isin(values)
    for value, points in data[is_on_line].groupby(by, sort=False):
        ordered = points.sort_values(x)
        label = f"{by} = {value}" if value else table.main_scope
        errors = list(ordered["deviation"].fillna(0.0))
        xs, ys = list(ordered[x]), list(ordered["value"])
        series.append(Series(kind="line", style=next(styles), xs=xs, ys=ys, errors=errors, label=label))
    for name, value in zip(data[~is_on_line]["row"], data[~is_on_line]["value"], strict=True):
        title = table.experiment.row(name).title
        series.append(Series(kind="level", style=next(styles), ys=[value], label=title))
    return series


# --- predictions --------------------------------------------------------------------------------------


def predictions_of(folder: SweepFolder, table: ResultTable, row: ExperimentRow, dataset: str) -> Iterator[Samples]:
    """Yield a row's predictions on a dataset, for each seed."""
    record = table.record(row)
    if record is None:
        return
    for path in prediction_files(folder.artifacts(record.name), SPLIT, dataset):
        yield read_predictions(path)
