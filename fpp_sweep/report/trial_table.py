"""All trials and baselines of a sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import Front
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.released_marks import released_mark, released_notes
from fpp_sweep.records.texts import format_result, format_setting, values_by_setting
from fpp_sweep.report.front_table import accuracy_and_objectives, drift_text, remarks, row_style, setting_cells
from fpp_sweep.report.table import Cell, Row, Table, columns_of

REASON_LENGTH = 200  # characters


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
            cells.append(Cell(drift_text(record)))
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
