"""Figures of an experiment, from its table and its samples: as PNG and PDF, as SVG for the page, their data as CSV.

    scatter      a column against another: a point for each row and dataset, a large one for the row's mean
    groups       the samples of each dataset by sharpness, in three groups of equal size: means over the datasets
    reliability  a panel for each row: accuracy and confidence of each bin, over the samples of all datasets
    lines        columns over a setting, with a line for each value of another; a row that is on no line is a level

What is drawn is computed first, as the lines of the CSV.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.core.metrics import BINS, EDGES, Confidences, accuracy, expected_calibration_error
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_setting, is_number
from fpp_sweep.report.figures import StaticFigure
from fpp_sweep.reproduce.cells import Table, averages
from fpp_sweep.reproduce.experiments import AVERAGE, Figure, Row
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.palette import DASHES, INK, MARKERS, PALETTE, PAPER
from fpp_sweep.trial.artifacts import read_predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

GROUPS = ("low", "medium", "high")
SHARPNESS = "sharpness"  # the column of the samples, and its metric
WIDE = 20.0  # a setting whose largest value is so many times its smallest has a logarithmic axis
ACROSS = 5  # panels of a reliability diagram
Line = dict[str, Any]


def write_figure(folder: SweepFolder, table: Table) -> None:
    """The experiment's figure, where it has one and there is something to draw."""
    if table.experiment.figure and (drawing := drawn(folder, table, table.experiment.figure)):
        write_drawing(folder.report, drawing)


def write_drawing(folder: Path, drawing: StaticFigure) -> None:
    """figure.png, figure.pdf and figure.csv."""
    for kind in ("png", "pdf"):
        with written_whole(folder / f"figure.{kind}") as partial:
            partial.write_bytes(drawing.to_bytes(kind))
    with written_whole(folder / "figure.csv") as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(drawing.data[0]), lineterminator="\n")
        writer.writeheader()
        for line in drawing.data:
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in line.items()})


def drawings(folder: SweepFolder, table: Table) -> Iterator[StaticFigure]:
    """For the page: the experiment's figure, and those that its samples allow."""
    wanted = [table.experiment.figure] if table.experiment.figure else []
    metrics = {column.metric: column.name for column in table.experiment.columns if column.of == "mean"}
    if catalogue.ECE in metrics:
        wanted.append(Figure(kind="reliability"))
    if {catalogue.ECE, SHARPNESS} <= metrics.keys():
        wanted.append(Figure(kind="groups", y=(metrics[catalogue.ECE], metrics[SHARPNESS])))
    kinds = [figure.kind for figure in wanted]
    for index, figure in enumerate(wanted):
        if figure.kind not in kinds[:index] and (drawing := drawn(folder, table, figure)):
            yield drawing


def drawn(folder: SweepFolder, table: Table, figure: Figure) -> StaticFigure | None:
    """None where no row has what the figure needs."""
    return {"scatter": scatter, "groups": groups, "reliability": reliability, "lines": lines}[figure.kind](
        folder, table, figure
    )


def scatter(folder: SweepFolder, table: Table, figure: Figure) -> StaticFigure | None:
    columns = {column.name: column for column in table.experiment.columns}
    x, ys = columns[figure.x or ""], [columns[name] for name in figure.y]
    found: list[Line] = []
    for row in table.rows:
        values: dict[str, list[Any]] = {
            name: [table.of(row, column, name).value for column in (x, *ys)] for name in table.datasets
        }
        points = {name: point for name, point in values.items() if None not in point}
        if points:
            points["mean"] = [statistics.fmean(axis) for axis in zip(*points.values(), strict=True)]
        for name, point in points.items():
            found.append({"row": row.name, "dataset": name, **dict(zip((x.name, *figure.y), point, strict=True))})
    if not found:
        return None

    def draw(canvas: Canvas) -> None:
        for axes, y in zip(_panels(canvas, len(ys)), ys, strict=True):
            for row, style in _styles(table, found):
                own = [line for line in found if line["row"] == row.name]
                *points, mean = [(line[x.name], line[y.name]) for line in own]
                axes.plot(*zip(*points, strict=True), style["shape"], color=style["color"], alpha=0.75, ms=4, mew=0)
                axes.plot(*mean, style["shape"], color=style["color"], ms=8, mec=INK, label=row.title)
            axes.set(xlabel=x.heading, ylabel=y.heading)

    single = [line for line in found if line["dataset"] != "mean"]
    said = [f"{y.heading}: {correlations(single, x.name, y.name)}" for y in ys]
    caption = (
        f"{x.heading} against {', '.join(y.heading for y in ys)}: a point for each row and dataset, a large one for a "
        f"row's mean. Over all {len(single)} points, {'; '.join(said)}."
    )
    return StaticFigure(kind="scatter", caption=caption, data=found, draw=draw)


def correlations(points: Sequence[Line], x: str, y: str) -> str:
    """Pearson's and Spearman's coefficients, in words.

    >>> correlations([{"h": 1, "ece": 2.0}, {"h": 2, "ece": 3.0}, {"h": 3, "ece": 9.0}], "h", "ece")
    'Pearson r 0.92, Spearman rho 1.00'
    """
    xs, ys = ([line[key] for line in points] for key in (x, y))
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return "no correlation, as one of them is constant"
    pearson, spearman = statistics.correlation(xs, ys), statistics.correlation(_ranks(xs), _ranks(ys))
    return f"Pearson r {pearson:.2f}, Spearman rho {spearman:.2f}"


def _ranks(values: Sequence[float]) -> list[float]:
    """Equal values share the mean of their ranks."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def groups(folder: SweepFolder, table: Table, figure: Figure) -> StaticFigure | None:
    measures = {catalogue.ECE: "ece", catalogue.ACCURACY: "accuracy", SHARPNESS: SHARPNESS}
    columns = [column for column in table.experiment.columns if column.name in figure.y and column.metric in measures]
    found = []
    for row in table.rows:
        places: dict[str, list[Line]] = {}
        for name in averaged(table):
            by_seed = [group_of(one) for one in _samples(folder, table, row, name) if SHARPNESS in one]
            if by_seed:
                places[name] = [_mean(same) for same in zip(*by_seed, strict=True)]
        if places:
            places[AVERAGE] = [_mean(same) for same in zip(*places.values(), strict=True)]
        for name, own in places.items():
            found += [{"row": row.name, "dataset": name, "group": group, **line}
                      for group, line in zip(GROUPS, own, strict=True)]  # fmt: skip
    if not found:
        return None

    def draw(canvas: Canvas) -> None:
        for axes, column in zip(_panels(canvas, len(columns)), columns, strict=True):
            for row, style in _styles(table, found):
                own = [line for line in found if (line["row"], line["dataset"]) == (row.name, AVERAGE)]
                values = [line[measures[column.metric]] for line in own]
                axes.plot(
                    GROUPS, values, marker=style["shape"], color=style["color"], ls=style["dash"], label=row.title
                )
            axes.set(xlabel="sharpness of the samples", ylabel=f"{column.heading} of the group")
            axes.axhline(0, color=INK, lw=0.6)

    caption = (
        f"Samples of each dataset and seed by the sharpness at their prompt, in three groups of equal size; ECE "
        f"({BINS} bins) and mean sharpness inside each, averaged over seeds, then over datasets."
    )
    return StaticFigure(kind="groups", caption=caption, data=found, draw=draw)


def group_of(samples: Line) -> list[Line]:
    """What a dataset's flattest, middle and sharpest third are like."""
    order = np.argsort(samples[SHARPNESS], kind="stable")
    parts = [_taken(samples, chosen) for chosen in np.array_split(order, len(GROUPS))]
    return [
        {
            "samples": len(part["label"]),
            SHARPNESS: float(np.mean(part[SHARPNESS], dtype=np.float64)) if len(part["label"]) else math.nan,
            "accuracy": accuracy(Confidences.of(part)) if len(part["label"]) else math.nan,
            "ece": expected_calibration_error(Confidences.of(part)) if len(part["label"]) else math.nan,
        }
        for part in parts
    ]


def _taken(samples: Line, chosen: NDArray[np.int64]) -> Line:
    return {name: samples[name][chosen] for name in ("label", "predicted", "confidence", SHARPNESS)}


def _mean(lines: Sequence[Line]) -> Line:
    return {key: statistics.fmean(line[key] for line in lines) for key in lines[0]}


def reliability(folder: SweepFolder, table: Table, figure: Figure) -> StaticFigure | None:
    found: list[Line] = []
    heads = {}
    for row in table.rows:
        parts = [Confidences.of(one) for name in averaged(table) for one in _samples(folder, table, row, name)]
        if not parts:
            continue
        whole = Confidences(
            *(np.concatenate([getattr(part, key) for part in parts]) for key in ("confidence", "correct"))
        )
        heads[row.name] = (
            f"{row.title}\naccuracy {accuracy(whole):.2f} %, ECE {expected_calibration_error(whole):.2f} %"
        )
        bins = whole.bins
        for index, (count, hits, sure) in enumerate(zip(bins.counts[0], bins.hits[0], bins.confidence[0], strict=True)):
            means = {"accuracy": hits / count, "confidence": sure / count} if count else {}
            edges = {"row": row.name, "low": float(EDGES[index]), "high": float(EDGES[index + 1])}
            found.append({**edges, "samples": int(count), "accuracy": "", "confidence": "", **means})
    if not found:
        return None

    def draw(canvas: Canvas) -> None:
        rows = [row for row in table.rows if row.name in heads]
        across, down = min(ACROSS, len(rows)), -(-len(rows) // ACROSS)
        canvas.set_size_inches(max(4.0, 2.1 * across), 3.0 * down + 0.3)
        panels = canvas.subplots(2 * down, across, squeeze=False, sharex=True, height_ratios=[3, 1] * down)
        for axes in panels.flat:
            axes.set_visible(False)
        for index, row in enumerate(rows):
            upper, lower = (panels[2 * (index // across) + half, index % across] for half in (0, 1))
            _draw_bins(upper, lower, [line for line in found if line["row"] == row.name])
            upper.set_title(heads[row.name], fontsize="small")
            if index % across == 0:
                upper.set_ylabel("accuracy")
                lower.set_ylabel("samples")

    caption = (
        f"Reliability in {BINS} bins over the samples of all datasets and seeds; below, how many a bin has. ECE is of "
    )
    return StaticFigure(kind="reliability", caption=f"{caption}all of them together, not the mean over datasets.",
                   data=found, draw=draw)  # fmt: skip


def _draw_bins(upper: Axes, lower: Axes, lines: Sequence[Line]) -> None:
    full = [line for line in lines if line["samples"]]
    low, right, sure = ([line[key] for line in full] for key in ("low", "accuracy", "confidence"))
    gap = [there - here for here, there in zip(right, sure, strict=True)]
    upper.bar(low, right, 1 / BINS, align="edge", color=PALETTE[0], ec=PAPER, lw=0.4, label="accuracy")
    upper.bar(
        low, gap, 1 / BINS, bottom=right, align="edge", fc="none", ec=PALETTE[1], lw=0.9, label="gap to confidence"
    )
    upper.plot([0, 1], [0, 1], "--", color=INK, lw=0.8, label="perfect calibration")
    upper.set(xlim=(0, 1), ylim=(0, 1), visible=True)
    lower.bar(low, [line["samples"] for line in full], 1 / BINS, align="edge", color=PALETTE[-1], ec=PAPER, lw=0.4)
    lower.set(xlabel="confidence", visible=True)


def lines(folder: SweepFolder, table: Table, figure: Figure) -> StaticFigure | None:
    """A row whose `by` no other row has, or whose setting is no number or is not read, is a level."""
    ys = [column for column in table.experiment.columns if column.name in figure.y]
    where = AVERAGE if AVERAGE in table.places else table.places[0]
    found: list[Line] = []
    for row in table.rows:
        record = table.record(row)
        if record is None:
            continue
        settings = relevant(record.config)
        x, by = settings.get(figure.x or ""), settings.get(figure.by or "")
        for column in ys:
            cell = table.of(row, column, where)
            if cell.value is not None:
                found.append({"row": row.name, "column": column.name, figure.x or "x": x if is_number(x) else "",
                              figure.by or "by": "" if by is None else format_setting(by),
                              "value": cell.value, "deviation": cell.deviation})  # fmt: skip
    if not found:
        return None
    x_name, by_name = figure.x or "x", figure.by or "by"
    shared = [line[by_name] for line in found if line["column"] == found[0]["column"] and line[x_name] != ""]
    on_lines = list(dict.fromkeys(value for value in shared if not figure.by or shared.count(value) > 1))

    def draw(canvas: Canvas) -> None:
        titles = {row.name: row.title for row in table.rows}
        for axes, column in zip(_panels(canvas, len(ys)), ys, strict=True):
            styles = cycle(_all_styles())
            own = [line for line in found if line["column"] == column.name]
            for value, style in zip(on_lines, styles, strict=False):
                line = sorted(
                    (one for one in own if one[by_name] == value and one[x_name] != ""), key=lambda one: one[x_name]
                )
                axes.errorbar(
                    [one[x_name] for one in line],
                    [one["value"] for one in line],
                    yerr=[one["deviation"] or 0.0 for one in line],
                    label=f"{figure.by} = {value}" if figure.by else where,
                    marker=style["shape"], color=style["color"], ls=style["dash"], capsize=2,
                )  # fmt: skip
            levels = [one for one in own if one[by_name] not in on_lines or one[x_name] == ""]
            for one, style in zip(levels, styles, strict=False):
                axes.axhline(one["value"], color=style["color"], ls=style["dash"], label=titles[one["row"]])
            points = [one[x_name] for one in own if one[x_name] != ""]
            if points and min(points) > 0 and max(points) / min(points) > WIDE:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:g}")
            axes.set(xlabel=x_name, ylabel=column.heading)

    caption = f"{', '.join(y.heading for y in ys)} over {x_name}, {where}; bars are a standard deviation over seeds."
    return StaticFigure(kind="lines", caption=caption, data=found, draw=draw)


def averaged(table: Table) -> list[str]:
    """The datasets that the average is of."""
    return averages(table.experiment, table.datasets).get(AVERAGE, list(table.datasets))


def _samples(folder: SweepFolder, table: Table, row: Row, dataset: str) -> Iterator[Line]:
    """A row's predictions on a dataset, for each seed."""
    if record := table.record(row):
        for path in sorted((folder.artifacts(record.name) / "test").glob(f"{dataset}.seed*.predictions.parquet")):
            yield read_predictions(path)


def _panels(canvas: Canvas, count: int) -> Sequence[Axes]:
    canvas.set_size_inches(3.6 * count + 0.4, 3.3)
    panels: Sequence[Axes] = canvas.subplots(1, count, squeeze=False)[0]
    return panels


def _all_styles() -> Iterator[dict[str, str]]:
    for color, marker, dash in zip(cycle(PALETTE[:-1]), MARKERS, cycle(DASHES), strict=False):
        yield {"color": color, "shape": marker.matplotlib, "dash": dash}


def _styles(table: Table, found: Sequence[Line]) -> Iterator[tuple[Row, dict[str, str]]]:
    """The rows that are drawn, each with its own colour, shape and dashes."""
    named = {line["row"] for line in found}
    return zip([row for row in table.rows if row.name in named], cycle(_all_styles()), strict=False)
