"""The answer of a sweep: one sentence, the differences of the champion to baselines, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fpp_sweep.records.answer import SweepStatistics, sentence_of
from fpp_sweep.records.recommendation import Answer
from fpp_sweep.records.records import TrialRecord, label_of
from fpp_sweep.records.texts import setting_text
from fpp_sweep.report.document import Block, Section, Text
from fpp_sweep.report.formatting import decimals_of, format_difference
from fpp_sweep.report.table import Cell, CellStyle, Column, Row, Table, columns_of
from fpp_sweep.statistics.bootstrap import is_biased
from fpp_sweep.statistics.paired import Difference, goal_of

SIGNIFICANT = "*"
STYLES: Mapping[str, CellStyle] = {"+": "good", "-": "bad", "": ""}  # by Difference.mark


def answer_sections(statistics: SweepStatistics) -> list[Section]:
    """Return the section that stands on top of a page; none if no trial was to be chosen."""
    if statistics.front.evaluate_only:
        return []
    blocks: list[Block] = [Text(sentence_of(statistics), "lead")]
    answer = statistics.answer
    if answer.differences:
        settings = settings_table([trial for trial in statistics.front.trials if trial.name == answer.champion])
        blocks.append(difference_table(answer))
        if len(settings.columns) > 1:
            blocks.append(settings)
    return [Section("Answer", blocks)]


def difference_table(answer: Answer) -> Table:
    """Return the champion minus baselines: a row for each metric, a column for each baseline.

    The column behind the first baseline, which is zero-shot where there is one, holds the half width of that
    difference's interval.
    """
    columns = columns_of(["finalist", "metric"], is_text=True)
    for index, baseline in enumerate(answer.baselines):
        columns.append(Column(label_of(baseline)))
        if index == 0:
            columns.append(Column("±", is_optional=True))
    rows: list[Row] = []
    for metric in answer.metrics:
        name = "" if rows else answer.champion  # in the first row
        label = f"{metric} ({goal_of(metric)})"
        rows.append(Row([Cell(name), Cell(label), *_difference_cells(answer, metric)], trial=name))
    title = f"{answer.champion} minus baselines, on {answer.design}"
    return Table(title=title, columns=columns, rows=rows, notes=_difference_notes(answer), sortable=False)


def _difference_notes(answer: Answer) -> list[str]:
    notes = [_significance_note(answer)]
    if answer.baselines:
        reference = label_of(answer.baselines[0])
        notes.append(f"±: half width of the 95 % interval of the difference to {reference}, for a single comparison")
    biased = [metric for metric in answer.metrics if is_biased(metric)]
    if biased:
        notes.append(f"differences in {' and '.join(biased)} leave out the estimated bias of few images")
    if answer.untested:
        notes.append(f"without a valid test: {', '.join(answer.untested)}")
    return notes


def _significance_note(answer: Answer) -> str:
    references = " and ".join(f"to {label_of(name)}" for name in answer.references)
    correction = f"significant at 5 % after Holm's correction: differences {references} apart, then all others"
    if any(difference.mark for difference in answer.differences.values()):
        return f"{SIGNIFICANT} {correction}"
    return f"no difference is {correction}"


def _difference_cells(answer: Answer, metric: str) -> list[Cell]:
    """Return a cell for each baseline; behind the first one, the half width of its interval."""
    cells = []
    for index, baseline in enumerate(answer.baselines):
        difference = answer.differences.get((baseline, metric))
        half_width = ""
        if difference is None:
            cells.append(Cell("-"))
        else:
            cells.append(difference_cell(metric, difference))
            half_width = f"{difference.half_width:.{decimals_of(metric)}f}"
        if index == 0:
            cells.append(Cell(half_width))
    return cells


def difference_cell(metric: str, difference: Difference) -> Cell:
    """Return a difference, marked and coloured if it is significant."""
    mark = SIGNIFICANT if difference.mark else ""
    return Cell(format_difference(metric, difference), mark=mark, style=STYLES[difference.mark])


def settings_table(trials: Sequence[TrialRecord], title: str = "Settings of these finalists") -> Table:
    """Return the searched settings of each trial."""
    keys: dict[str, None] = {}
    for record in trials:
        keys.update(dict.fromkeys(record.params))
    columns = [Column("trial", is_text=True), *columns_of(keys)]
    rows = []
    for record in trials:
        cells = [Cell(record.name)]
        for key in keys:
            cells.append(Cell(setting_text(key, record.params[key], 4) if key in record.params else ""))
        rows.append(Row(cells, trial=record.name))
    return Table(title=title, columns=columns, rows=rows)
