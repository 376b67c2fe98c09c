"""All trials and baselines of a sweep as a table, and the details of each."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import (
    Front,
    format_result,
    format_setting,
    metric_of,
    metrics_shown,
    splits_of,
    values_by_setting,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.front_table import setting_cells, support_text
from fpp_sweep.report.table import Cell, Column, Row, RowStyle, Table, cells_of, columns_of
from fpp_sweep.spec.progress import duration

REASON_LENGTH = 200  # characters
NOTE = "The filter takes words, and comparisons such as ece<5 or state=failed. Click a name to see the whole trial."


def trial_table(info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics) -> Table:
    """Return a row for each trial and baseline, in whatever state it is."""
    front = statistics.front
    keys = list(values_by_setting(records))
    shown = _measured_columns(info, records)
    columns = [Column("trial", is_text=True)]
    for split, metric in shown:
        columns.append(Column(metric if split == info.search_split else f"{split}/{metric}"))
    columns += columns_of(["support", "remarks"], is_text=True)
    columns += columns_of([*keys, "state", "minutes"])
    columns.append(Column("reason", is_text=True))
    rows = []
    for record in records:
        cells = [Cell(record.label)]
        for split, metric in shown:
            cells.append(Cell(format_result(metric, record.results.get(split), deviation=False)))
        cells += cells_of([support_text(statistics, record.name), ", ".join(front.remarks(record))])
        cells += setting_cells(record, keys)
        cells += cells_of([record.state, _minutes(record), format_setting(record.reason or "")[:REASON_LENGTH]])
        rows.append(Row(cells, style=_style(front, record), trial=record.name))
    return Table(columns=columns, rows=rows, name="trials")


def _measured_columns(info: SweepInfo, records: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    """Return (split, metric) of the columns in which any record has a value."""
    columns = []
    for split in splits_of(info, records):
        for metric in metrics_shown(info):
            if any(metric_of(record.results.get(split), metric) is not None for record in records):
                columns.append((split, metric))
    return columns


def _minutes(record: TrialRecord) -> str:
    if not record.finished:
        return ""
    return f"{(record.finished - record.started) / 60:.1f}"


def _style(front: Front, record: TrialRecord) -> RowStyle:
    if record.kind == "baseline":
        return "baseline"
    if record.name in front.marks:
        return "best"
    return ""


def trial_details(record: TrialRecord) -> dict[str, str]:
    """Return what a click on a trial shows: its state, all metrics, and its whole config."""
    details: dict[str, str] = {"state": record.state}
    if record.reason:
        details["reason"] = format_setting(record.reason)
    if record.finished:
        details["duration"] = duration(record.finished - record.started)
    for split, result in record.results.items():
        for metric in result.average:
            details[f"{metric} ({split})"] = format_result(metric, result)
    for key, value in {**record.config, **record.params}.items():
        details[key] = format_setting(value)
    return details
