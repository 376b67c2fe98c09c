"""Tables of the front with the baselines beside it, and of all trials, for terminal, page, notebook and MLflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpp_sweep.records.front import Front, metrics_shown, splits_of
from fpp_sweep.records.records import IMPORTED, REQUESTED_ORIGINS, SweepInfo, TrialRecord
from fpp_sweep.records.texts import (
    format_result,
    format_setting,
    is_number,
    released_mark,
    released_notes,
    setting_text,
    values_by_setting,
)
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.report.table import Cell, Column, Row, RowStyle, Table, columns_of
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant

if TYPE_CHECKING:
    from fpp_sweep.records.answer import SweepStatistics

SETTING_DIGITS = 4  # the configs in best/ have all
REASON_LENGTH = 200  # characters
SETTING_LENGTH = 60  # characters of a setting's value


def front_table(
    info: SweepInfo,
    front: Front,
    statistics: SweepStatistics | None = None,
    *,
    metrics: Sequence[str] = (),
    settings: bool = True,
    title: str = "",
) -> Table:
    """Return a row for each record of `front.compared`: front members, other finalists and baselines.

    Columns are the metrics on each split (`metrics_shown` if none are named) with their intervals, the support for
    being on the front, remarks such as `knee`, and the searched settings, which a narrow terminal leaves out.
    """
    metrics = metrics or metrics_shown(info)
    splits = splits_of(info, front.compared)
    searched = values_by_setting(front.members) if settings else {}
    has_support = statistics is not None and bool(statistics.support)
    rows: list[Row] = []
    for record in front.compared:
        cells = [Cell(record.label, mark=released_mark(record))]
        for split in splits:
            for metric in metrics:
                cells.append(metric_cell(record, split, metric, statistics))
        if statistics is not None and has_support:
            cells.append(Cell(statistics.support.get(record.name, "")))
        cells += [Cell(remarks(front, record)), *setting_cells(record, searched)]
        rows.append(_row(front, record, cells, rows))
    columns = _columns(metrics, splits, searched, has_support=has_support)
    return Table(title=title, columns=columns, rows=rows, notes=released_notes(front.compared))


def front_heading(front: Front) -> str:
    """Return the heading of the section with the front's table, which has all trials if none was to be chosen."""
    if front.evaluate_only:
        return "Results"
    return "Front"


def _columns(
    metrics: Sequence[str], splits: Sequence[str], searched: Mapping[str, Sequence[Any]], *, has_support: bool
) -> list[Column]:
    columns = [Column("trial", is_text=True)]
    for split in splits:
        columns += columns_of(metrics, group=split)
    if has_support:
        columns.append(Column("support", is_text=True))
    columns.append(Column("remarks", is_text=True))
    for key, values in searched.items():
        # None: a condition of the space leaves the setting out
        has_text = any(value is not None and not is_number(value) for value in values)
        columns.append(Column(key, is_text=has_text, is_optional=True))
    return columns


def dataset_table(front: Front, statistics: SweepStatistics | None, split: str) -> Table:
    """Return accuracy and the objectives by dataset, of all records of `front.compared` with a result on a split."""
    records = [record for record in front.compared if split in record.results]
    measured: dict[str, set[str]] = {}  # metrics by dataset
    for record in records:
        for dataset, values in record.results[split].datasets.items():
            measured.setdefault(dataset, set()).update(values)
    wanted = [catalogue.parts_of(metric).of_average for metric in accuracy_and_objectives(front)]
    columns = [Column("trial", is_text=True)]
    shown = []
    for dataset, names in measured.items():
        metrics = [metric for metric in dict.fromkeys(wanted) if metric in names]
        columns += columns_of(metrics, group=dataset)
        shown += [f"{metric}/{dataset}" for metric in metrics]
    rows: list[Row] = []
    for record in records:
        cells = [Cell(record.label, mark=released_mark(record))]
        for metric in shown:
            cells.append(metric_cell(record, split, metric, statistics))
        rows.append(_row(front, record, cells, rows))
    return Table(title=f"{split} split", columns=columns, rows=rows, notes=released_notes(records))


def accuracy_and_objectives(front: Front) -> list[str]:
    return list(dict.fromkeys([catalogue.ACCURACY, *metrics_of(front.objectives)]))


def metric_cell(record: TrialRecord, split: str, metric: str, statistics: SweepStatistics | None) -> Cell:
    """Return a record's value of a metric on a split, or on a dataset (`ece/dtd`), with its interval if it has one."""
    interval = statistics.interval(record, split, metric) if statistics else None
    text = format_result(metric, record.results.get(split))
    return Cell(text, interval=format_interval(metric, interval) if interval else "")


def remarks(front: Front, record: TrialRecord) -> str:
    texts = front.remarks(record)
    if record.origin in (*REQUESTED_ORIGINS, IMPORTED):
        texts.append(record.origin)
    return ", ".join(texts)


def setting_cells(record: TrialRecord, keys: Collection[str]) -> list[Cell]:
    """Return a record's settings; those of a baseline come from its config, and settings that it ignores are empty."""
    values = record.params
    if any(key not in values for key in keys):
        values = {**relevant(record.config), **record.params}
    cells = []
    for key in keys:
        value = values.get(key)
        text = setting_text(key, value, SETTING_DIGITS)[:SETTING_LENGTH] if key in values else ""
        cells.append(Cell(text, sort_value=float(value) if is_number(value) else None))
    return cells


def _row(front: Front, record: TrialRecord, cells: Sequence[Cell], rows_above: Sequence[Row]) -> Row:
    """Return a row that stands out if its record does; the first baseline is separated from the trials above."""
    style = row_style(front, record)
    is_first_baseline = style == "baseline" and bool(rows_above) and rows_above[-1].style != "baseline"
    return Row(cells, style=style, trial=record.name, starts_group=is_first_baseline)


def row_style(front: Front, record: TrialRecord) -> RowStyle:
    if record.kind == "baseline":
        return "baseline"
    if front.marks.get(record.name):
        return "best"
    return ""


# --- all trials ------------------------------------------------------------------------------------------


def trial_table(info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics) -> Table:
    """Return a row for each trial and baseline, in whatever state it is: the best first, its settings beside it."""
    front = statistics.front
    keys = list(values_by_setting(records))
    metrics = accuracy_and_objectives(front)
    drifts = ["drift"] if any(record.drift for record in records) else []
    columns = columns_of(["trial", "remarks"], is_text=True) + columns_of([*metrics, *keys, *drifts])
    rows = []
    for record in by_merit(front, records):
        cells = [Cell(record.label, mark=released_mark(record)), Cell(_all_remarks(front, record))]
        for metric in metrics:
            cells.append(Cell(format_result(metric, record.results.get(info.search_split))))
        cells += setting_cells(record, keys)
        if drifts:
            cells.append(Cell("" if record.drift is None else f"{record.drift:.2f}"))
        rows.append(Row(cells, style=row_style(front, record), trial=record.name))
    return Table(columns=columns, rows=rows, name="all-trials", notes=released_notes(records))


def by_merit(front: Front, records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the front, the front of the other trials and so on, the knee of each first.

    Then come trials that break a constraint, the baselines, and what has not finished or has failed.
    """
    ranked: list[TrialRecord] = []
    for layer in front.layers(front.trials):
        ranked += front.by_trade_off(layer)
    ranked += [*front.infeasible, *front.baselines]
    names = {record.name for record in ranked}
    return [*ranked, *(record for record in records if record.name not in names)]


def _all_remarks(front: Front, record: TrialRecord) -> str:
    """Return a record's remarks, its state unless it is complete, and the reason of a failure."""
    parts: list[str] = []
    if record.state != "complete":
        parts.append(record.state)
    parts += [remarks(front, record), format_setting(record.reason or "")[:REASON_LENGTH]]
    return ", ".join(part for part in parts if part)
