"""Descriptions of an experiment's figures, from its table and its predictions; report/figures.py draws them.

    scatter      a column against another: a point for each row and dataset, a large one for the row's mean
    groups       samples of each dataset by sharpness, in three groups of equal size: means over the datasets
    reliability  a diagram for each row and dataset: accuracy and confidence of each bin
    lines        columns over a setting, with a line for each value of another; a row on no line is a level

A figure's data are computed first: they are the lines of its figure.csv.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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
CsvLine = dict[str, Any]  # a line of figure.csv: value by column
Samples = Mapping[str, NDArray[Any]]  # predictions of a dataset: an array for each of their columns


def write_figure(folder: SweepFolder, table: ResultTable) -> None:
    """Write the experiment's figure, if it has one and there is something to draw."""
    if table.experiment.figure is None:
        return
    figure = figure_of(folder, table, table.experiment.figure)
    if figure is not None:
        write_static_figure(folder.report, figure)


def write_static_figure(folder: Path, figure: StaticFigure) -> None:
    """Write figure.png, figure.pdf and figure.csv."""
    for kind in ("png", "pdf"):
        with written_whole(folder / f"figure.{kind}") as partial:
            partial.write_bytes(figure.to_bytes(kind))
    with (
        written_whole(folder / "figure.csv") as partial,
        partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.DictWriter(file, list(figure.data[0]), lineterminator="\n")
        writer.writeheader()
        for line in figure.data:
            writer.writerow({key: _csv_value(value) for key, value in line.items()})


def _csv_value(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value


def figures_of_page(folder: SweepFolder, table: ResultTable) -> Iterator[StaticFigure]:
    """Yield the experiment's figure, and those that its predictions allow; one of each kind."""
    figures: list[ExperimentFigure] = []
    if table.experiment.figure:
        figures.append(table.experiment.figure)
    columns = {column.metric: column.name for column in table.experiment.columns if column.of == "mean"}
    if catalogue.ECE in columns:
        figures.append(ExperimentFigure(kind="reliability"))
    if {catalogue.ECE, SHARPNESS} <= columns.keys():
        figures.append(ExperimentFigure(kind="groups", y=(columns[catalogue.ECE], columns[SHARPNESS])))
    kinds = set()
    for figure in figures:
        if figure.kind in kinds:
            continue
        kinds.add(figure.kind)
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


def _figure_of_charts(kind: str, caption: str, data: Sequence[CsvLine], charts: Sequence[Chart]) -> StaticFigure:
    def draw(canvas: Canvas) -> None:
        draw_charts(canvas, charts)

    return StaticFigure(kind=kind, caption=caption, data=data, draw=draw)


def _values(csv_lines: Sequence[CsvLine], key: str) -> list[Any]:
    return [line[key] for line in csv_lines]


def _select(csv_lines: Sequence[CsvLine], **conditions: str) -> list[CsvLine]:
    """Return the lines of the CSV that have all of these values."""
    selected = []
    for line in csv_lines:
        if conditions.items() <= line.items():
            selected.append(line)
    return selected


def _styled_rows(table: ResultTable, csv_lines: Sequence[CsvLine]) -> list[tuple[ExperimentRow, SeriesStyle]]:
    """Return the rows that have a line in the CSV, each with its own style."""
    names = set(_values(csv_lines, "row"))
    rows = [row for row in table.rows if row.name in names]
    return list(zip(rows, cycle(series_styles()), strict=False))


# --- scatter ------------------------------------------------------------------------------------------


def _scatter(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    x = table.experiment.column(figure.x or "")
    ys = [table.experiment.column(name) for name in figure.y]
    csv_lines: list[CsvLine] = []
    for row in table.rows:
        csv_lines += _scatter_lines(table, row, [x, *ys])
    if not csv_lines:
        return None
    points = [line for line in csv_lines if line["dataset"] != "mean"]
    charts = []
    correlated = []
    for y in ys:
        series = _scatter_series(table, csv_lines, x, y)
        charts.append(Chart(x_title=x.heading, y_title=y.heading, series=series))
        correlated.append(f"{y.heading}: {correlations(points, x.name, y.name)}")
    caption = (
        f"{x.heading} against {_headings(ys)}: a point for each row and dataset, a large one for a row's mean. "
        f"Over all {len(points)} points, {'; '.join(correlated)}."
    )
    return _figure_of_charts("scatter", caption, csv_lines, charts)


def _scatter_lines(table: ResultTable, row: ExperimentRow, columns: Sequence[ExperimentColumn]) -> list[CsvLine]:
    """Return a line for each dataset on which the row has all numbers, and one for their means."""
    csv_lines: list[CsvLine] = []
    for dataset in table.datasets:
        values = {column.name: table.cell(row, column, dataset).value for column in columns}
        if None not in values.values():
            csv_lines.append({"row": row.name, "dataset": dataset, **values})
    if csv_lines:
        mean: CsvLine = {"row": row.name, "dataset": "mean"}
        for column in columns:
            mean[column.name] = statistics.fmean(_values(csv_lines, column.name))
        csv_lines.append(mean)
    return csv_lines


def _headings(columns: Sequence[ExperimentColumn]) -> str:
    return ", ".join(column.heading for column in columns)


def _scatter_series(
    table: ResultTable, csv_lines: Sequence[CsvLine], x: ExperimentColumn, y: ExperimentColumn
) -> list[Series]:
    series = []
    for row, style in _styled_rows(table, csv_lines):
        *xs, mean_x = _values(_select(csv_lines, row=row.name), x.name)
        *ys, mean_y = _values(_select(csv_lines, row=row.name), y.name)
        series.append(Series(kind="points", style=style, xs=xs, ys=ys))
        series.append(Series(kind="large point", style=style, xs=[mean_x], ys=[mean_y], label=row.title))
    return series


def correlations(points: Sequence[CsvLine], x: str, y: str) -> str:
    """Return Pearson's and Spearman's coefficients as text.

    >>> correlations([{"h": 1, "ece": 2.0}, {"h": 2, "ece": 3.0}, {"h": 3, "ece": 9.0}], "h", "ece")
    'Pearson r 0.92, Spearman rho 1.00'
    """
    xs = _values(points, x)
    ys = _values(points, y)
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return "no correlation, as one of them is constant"
    pearson = statistics.correlation(xs, ys)
    spearman = statistics.correlation(_ranks(xs), _ranks(ys))
    return f"Pearson r {pearson:.2f}, Spearman rho {spearman:.2f}"


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks; equal values share the mean of their ranks."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


# --- groups by sharpness ------------------------------------------------------------------------------

GROUP_MEASURES = {catalogue.ECE: "ece", catalogue.ACCURACY: "accuracy", SHARPNESS: SHARPNESS}  # by metric


def _groups(folder: SweepFolder, table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    csv_lines: list[CsvLine] = []
    for row in table.rows:
        csv_lines += _group_lines(folder, table, row)
    if not csv_lines:
        return None
    charts = []
    for column in table.experiment.columns:
        if column.name not in figure.y or column.metric not in GROUP_MEASURES:
            continue
        series = _group_series(table, csv_lines, GROUP_MEASURES[column.metric])
        title = f"{column.heading} of the group"
        charts.append(Chart(x_title="sharpness of the samples", y_title=title, series=series, zero_line=True))
    caption = (
        f"Samples of each dataset and seed by the sharpness at their prompt, in three groups of equal size; ECE "
        f"({BINS} bins) and mean sharpness inside each, averaged over seeds, then over datasets."
    )
    return _figure_of_charts("groups", caption, csv_lines, charts)


def _group_lines(folder: SweepFolder, table: ResultTable, row: ExperimentRow) -> list[CsvLine]:
    """Return a line for each dataset and group, and for the average of the datasets."""
    by_dataset: dict[str, list[CsvLine]] = {}
    for dataset in table.averaged:
        by_seed = []
        for samples in predictions_of(folder, table, row, dataset):
            if SHARPNESS in samples:
                by_seed.append(groups_by_sharpness(samples))
        if by_seed:
            by_dataset[dataset] = [_mean_line(groups) for groups in zip(*by_seed, strict=True)]
    if by_dataset:
        by_dataset[AVERAGE] = [_mean_line(groups) for groups in zip(*by_dataset.values(), strict=True)]
    csv_lines = []
    for dataset, groups in by_dataset.items():
        for name, group in zip(GROUPS, groups, strict=True):
            csv_lines.append({"row": row.name, "dataset": dataset, "group": name, **group})
    return csv_lines


def groups_by_sharpness(samples: Samples) -> list[CsvLine]:
    """Return the numbers of a dataset's flattest, middle and sharpest third."""
    order = np.argsort(samples[SHARPNESS], kind="stable")
    groups = []
    for indices in np.array_split(order, len(GROUPS)):
        group = {name: samples[name][indices] for name in ("label", "predicted", "confidence", SHARPNESS)}
        groups.append(_group_numbers(group))
    return groups


def _group_numbers(group: Samples) -> CsvLine:
    count = len(group["label"])
    if not count:
        return {"samples": 0, SHARPNESS: math.nan, "accuracy": math.nan, "ece": math.nan}
    confidences = Confidences.of(group)
    return {
        "samples": count,
        SHARPNESS: float(np.mean(group[SHARPNESS], dtype=np.float64)),
        "accuracy": accuracy(confidences),
        "ece": expected_calibration_error(confidences),
    }


def _mean_line(csv_lines: Sequence[CsvLine]) -> CsvLine:
    means = {}
    for key in csv_lines[0]:
        means[key] = statistics.fmean(_values(csv_lines, key))
    return means


def _group_series(table: ResultTable, csv_lines: Sequence[CsvLine], measure: str) -> list[Series]:
    series = []
    for row, style in _styled_rows(table, csv_lines):
        ys = _values(_select(csv_lines, row=row.name, dataset=AVERAGE), measure)
        series.append(Series(kind="line", style=style, xs=GROUPS, ys=ys, label=row.title))
    return series


# --- reliability --------------------------------------------------------------------------------------


def _reliability(folder: SweepFolder, table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    datasets = [name for name in table.datasets if name in figure.datasets] or table.datasets
    csv_lines: list[CsvLine] = []
    diagrams = []
    for dataset in datasets:
        for row in table.rows:
            parts = [Confidences.of(samples) for samples in predictions_of(folder, table, row, dataset)]
            if not parts:
                continue
            samples = _joined(parts)
            bins = _bin_lines(samples)
            for line in bins:
                csv_lines.append({"row": row.name, "dataset": dataset, **line})
            diagrams.append(_diagram(f"{row.title}, {dataset}", samples, bins))
    if not csv_lines:
        return None

    def draw(canvas: Canvas) -> None:
        draw_reliability_diagrams(canvas, diagrams)

    caption = (
        f"Reliability in {BINS} bins over the samples of all seeds of one dataset; below, the number of samples of "
        "each bin. The ECE above a diagram is that of these samples together."
    )
    return StaticFigure(kind="reliability", caption=caption, data=csv_lines, draw=draw)


def _joined(parts: Sequence[Confidences]) -> Confidences:
    confidence = np.concatenate([part.confidence for part in parts])
    correct = np.concatenate([part.correct for part in parts])
    return Confidences(confidence, correct)


def _bin_lines(samples: Confidences) -> list[CsvLine]:
    bins = samples.bins
    csv_lines: list[CsvLine] = []
    for index in range(BINS):
        count = int(bins.counts[0][index])
        line: CsvLine = {"low": float(EDGES[index]), "high": float(EDGES[index + 1]), "samples": count}
        line["accuracy"] = line["confidence"] = ""
        if count:
            line["accuracy"] = bins.hits[0][index] / count
            line["confidence"] = bins.confidence[0][index] / count
        csv_lines.append(line)
    return csv_lines


def _diagram(title: str, samples: Confidences, csv_lines: Sequence[CsvLine]) -> ReliabilityDiagram:
    filled = [line for line in csv_lines if line["samples"]]
    numbers = f"accuracy {accuracy(samples):.2f} %, ECE {expected_calibration_error(samples):.2f} %"
    return ReliabilityDiagram(
        title=f"{title}\n{numbers}",
        lows=_values(filled, "low"),
        accuracies=_values(filled, "accuracy"),
        confidences=_values(filled, "confidence"),
        counts=_values(filled, "samples"),
        bin_width=1 / BINS,
    )


# --- lines over a setting -----------------------------------------------------------------------------


def _lines(table: ResultTable, figure: ExperimentFigure) -> StaticFigure | None:
    """Draw columns over a setting; a row whose `by` no other row has, or that does not read the setting, is a level."""
    columns = [column for column in table.experiment.columns if column.name in figure.y]
    x, by = figure.x or "x", figure.by or "by"  # settings, and columns of the CSV
    csv_lines: list[CsvLine] = []
    for row in table.rows:
        csv_lines += _setting_lines(table, row, columns, x, by)
    if not csv_lines:
        return None
    values = _values_with_a_line(csv_lines, x, by, is_grouped=figure.by is not None)
    charts = []
    for column in columns:
        series = _line_series(table, _select(csv_lines, column=column.name), x, by, values)
        charts.append(Chart(x_title=x, y_title=column.heading, series=series))
    caption = f"{_headings(columns)} over {x}, {table.main_scope}; bars are a standard deviation over seeds."
    return _figure_of_charts("lines", caption, csv_lines, charts)


def _setting_lines(
    table: ResultTable, row: ExperimentRow, columns: Sequence[ExperimentColumn], x: str, by: str
) -> list[CsvLine]:
    """Return a row's number in each column, with its values of the settings `x` and `by`."""
    record = table.record(row)
    if record is None:
        return []
    settings = relevant(record.config)
    csv_lines: list[CsvLine] = []
    for column in columns:
        cell = table.cell(row, column, table.main_scope)
        if cell.value is None:
            continue
        line: CsvLine = {"row": row.name, "column": column.name, x: "", by: ""}
        if is_number(settings.get(x)):
            line[x] = settings[x]
        if settings.get(by) is not None:
            line[by] = format_setting(settings[by])
        csv_lines.append({**line, "value": cell.value, "deviation": cell.deviation})
    return csv_lines


def _values_with_a_line(csv_lines: Sequence[CsvLine], x: str, by: str, *, is_grouped: bool) -> list[str]:
    """Return the values of `by` for which a line is drawn; if rows are grouped by it, those that several rows share."""
    first_column = csv_lines[0]["column"]  # each row counts once, not once for each column
    values = []
    for line in _select(csv_lines, column=first_column):
        if line[x] != "":
            values.append(line[by])
    distinct = list(dict.fromkeys(values))
    if not is_grouped:
        return distinct
    return [value for value in distinct if values.count(value) > 1]


def _line_series(
    table: ResultTable, csv_lines: Sequence[CsvLine], x: str, by: str, values: Sequence[str]
) -> list[Series]:
    """Return a line for each value of `by`, then the levels."""
    styles = cycle(series_styles())
    series = []
    levels = []
    by_value: dict[str, list[CsvLine]] = {value: [] for value in values}
    for line in csv_lines:
        if line[x] == "" or line[by] not in by_value:
            levels.append(line)
        else:
            by_value[line[by]].append(line)
    for value, points in by_value.items():
        ordered = sorted(points, key=lambda line: float(line[x]))
        label = table.main_scope
        if value:
            label = f"{by} = {value}"
        series.append(
            Series(
                kind="line",
                style=next(styles),
                xs=_values(ordered, x),
                ys=_values(ordered, "value"),
                errors=[line["deviation"] or 0.0 for line in ordered],
                label=label,
            )
        )
    for line in levels:
        title = table.experiment.row(line["row"]).title
        series.append(Series(kind="level", style=next(styles), ys=[line["value"]], label=title))
    return series


# --- predictions --------------------------------------------------------------------------------------


def predictions_of(folder: SweepFolder, table: ResultTable, row: ExperimentRow, dataset: str) -> Iterator[Samples]:
    """Yield a row's predictions on a dataset, for each seed."""
    record = table.record(row)
    if record is None:
        return
    for path in prediction_files(folder.artifacts(record.name), SPLIT, dataset):
        yield read_predictions(path)
