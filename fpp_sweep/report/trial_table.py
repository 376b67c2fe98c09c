"""All trials and baselines of a sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import Front, metric_of, metrics_shown, splits_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.released_marks import released_mark, released_notes
from fpp_sweep.records.texts import format_result, format_setting, values_by_setting
from fpp_sweep.report.front_table import drift_text, remarks, row_style, setting_cells, support_text
from fpp_sweep.report.table import Cell, Column, Row, Table, cells_of, columns_of

REASON_LENGTH = 200  # characters
USAGE_NOTE = (  # above the table
    "Best trials first. The filter takes words, and comparisons such as ece<5 or state=failed; the charts show the "
    "trials that it leaves, and the table those that you mark in a chart. A name leads to all about the trial."
)


def trial_table(info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics) -> Table:
    """Return a row for each trial and baseline, in whatever state it is: the best first, its settings beside it."""
    front = statistics.front
    keys = list(values_by_setting(records))
    shown = _measured_columns(info, records)
    columns = [Column("trial", is_text=True), *columns_of(keys)]
    for split, metric in shown:
        columns.append(Column(metric if split == info.search_split else f"{split}/{metric}"))
    columns += columns_of(["remarks", "support"], is_text=True)
    columns += columns_of(["drift", "state", "minutes"])
    columns.append(Column("reason", is_text=True))
    rows = []
    for record in by_merit(front, records):
        cells = [Cell(record.label, mark=released_mark(record)), *setting_cells(record, keys)]
        for split, metric in shown:
            cells.append(Cell(format_result(metric, record.results.get(split), deviation=False)))
        cells += cells_of([remarks(front, record), support_text(statistics, record.name)])
        cells += cells_of(
            [drift_text(record), record.state, _minutes(record), format_setting(record.reason or "")[:REASON_LENGTH]]
        )
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


def _measured_columns(info: SweepInfo, records: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    """Return (split, metric) of the columns in which any record has a value."""
    columns = []
    for split in splits_of(info, records):
        for metric in metrics_shown(info):
            if any(metric_of(record.results.get(split), metric) is not None for record in records):
                columns.append((split, metric))
    return columns


def _minutes(record: TrialRecord) -> str:
    if record.duration is None:
        return ""
    return f"{record.duration / 60:.1f}"
