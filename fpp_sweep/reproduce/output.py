"""Tables of a reproduction for terminal, page, Markdown and LaTeX, and as CSV."""

from __future__ import annotations

from pathlib import Path

from fpp_sweep.records.front import orders_remark
from fpp_sweep.records.released_marks import released_mark, released_notes
from fpp_sweep.report.document import (
    Document,
    Section,
    Text,
    document_to_latex,
    document_to_markdown,
    document_to_text,
    paragraphs,
)
from fpp_sweep.report.table import Cell, CellStyle, Column, Row, Table, columns_of
from fpp_sweep.report.text import DEFAULT_WIDTH
from fpp_sweep.reproduce.cells import ResultCell
from fpp_sweep.reproduce.claims import DOES_NOT_HOLD, HOLDS, judge_claims
from fpp_sweep.reproduce.experiments import STAGES, ExperimentColumn, ExperimentRow
from fpp_sweep.reproduce.printed import PAPERS_MODEL, PAPERS_TAG
from fpp_sweep.reproduce.tables import SPLIT, ResultTable, is_average
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.files import written_whole

PAPER = "paper"
OTHER_MODEL = f"paper ({PAPERS_MODEL}/{PAPERS_TAG}, other model)"
DIFFERS = "*"
FEWER_IMAGES = " (fewer images)"
MARKS = {"differs": DIFFERS, "agrees": "", "": " (one seed)"}
NOTES = (
    "ours: mean over seeds, ± their standard deviation; [low, high]: 95 % interval over images and seeds.",
    f"{DIFFERS} at a difference: a t test over seeds (5 %), with half a unit of the printed number's last digit as "
    "tolerance. The printed number counts as one run of the same spread.",
    f"{DIFFERS} at a claim's number: significant after Holm's correction over all numbers of this table's claims.",
)
SHORT_NAMES = {"caltech101": "caltech", "flowers102": "flowers", "average without eurosat": "without eurosat"}
CLAIM_STYLES: dict[str, CellStyle] = {HOLDS: "good", DOES_NOT_HOLD: "bad"}


def write_table(folder: Path, table: ResultTable) -> None:
    """Write table.csv, table.md and table.tex."""
    document = table_document(table)
    texts = {"csv": as_csv(table), "md": document_to_markdown(document), "tex": document_to_latex(document)}
    for suffix, text in texts.items():
        with written_whole(folder / f"table.{suffix}") as partial:
            partial.write_text(text, encoding="utf-8")


def table_document(table: ResultTable) -> Document:
    """Return what ran, a section for each column, and the paper's claims."""
    sentences = [table.experiment.question, *table.run_notes, *order_sentences(table)]
    for name, reason in table.failed.items():
        sentences.append(f"{name} has no numbers: {reason}")
    sections = [
        Section(f"{table.experiment.name}: {table.experiment.title}", paragraphs(sentences)),
        *column_sections(table),
    ]
    if table.experiment.claims:
        sections.append(claims_section(table))
    notes = [*NOTES, *released_notes(table.records.values())]
    sections.append(Section("How to read the numbers", paragraphs(notes)))
    return Document(table.experiment.title, sections)


def order_sentences(table: ResultTable) -> list[str]:
    """Return a sentence for each row whose result depends on the order of the stream."""
    sentences: dict[str, None] = {}
    for (row, _), record in table.records.items():
        for remark in orders_remark(record, SPLIT):
            sentences[f"{row}: {remark}"] = None
    return list(sentences)


def as_text(table: ResultTable, width: int = DEFAULT_WIDTH) -> str:
    return document_to_text(table_document(table), width)


def column_sections(table: ResultTable) -> list[Section]:
    """Return a section for each column of the experiment: rows by dataset and average."""
    sections = []
    for column in table.experiment.columns:
        sections.append(Section(column.heading, [Text(meaning_of(column), "faint"), column_table(table, column)]))
    return sections


def column_table(table: ResultTable, column: ExperimentColumn) -> Table:
    columns = [Column("row", is_text=True)]
    for scope in table.scopes:
        group = "averages" if is_average(scope) else ""
        columns.append(Column(SHORT_NAMES.get(scope, scope), group=group))
    rows = []
    for row in table.rows:
        cells = [Cell(row.title, mark=_mark_of(table, row))]
        for scope in table.scopes:
            cells.append(_printed_below_ours(table.cell(row, column, scope), column))
        rows.append(Row(cells))
    return Table(columns=columns, rows=rows)


def _mark_of(table: ResultTable, row: ExperimentRow) -> str:
    """Return the mark of a row whose settings are those of a released program."""
    for (name, _), record in table.records.items():
        if name == row.name:
            return released_mark(record)
    return ""


def _printed_below_ours(cell: ResultCell, column: ExperimentColumn) -> Cell:
    """Return our number, and below it the printed number with the difference."""
    below = {}
    style: CellStyle = ""
    sort_value = cell.value
    if cell.printed is not None:
        label = PAPER if cell.is_papers_model else OTHER_MODEL
        below[label] = cell.printed.text
        if cell.value is None:
            sort_value = cell.printed.value
    if cell.difference is not None:
        mark = MARKS[cell.verdict] if cell.has_all_images else FEWER_IMAGES
        below["difference"] = f"{cell.difference:+.{column.decimals}f}{mark}"
    if cell.verdict == "differs":
        style = "bad"
    elif cell.verdict == "agrees":
        style = "good"
    interval = ""
    if cell.interval:
        interval = f"[{cell.interval.low:.1f}, {cell.interval.high:.1f}]"
    return Cell(ours(cell, column), interval=interval, style=style, below=below, sort_value=sort_value)


def number(value: float | None, column: ExperimentColumn) -> str:
    if value is None:
        return ""
    return f"{value:z.{column.decimals}f}"  # z: no minus before zero


def ours(cell: ResultCell, column: ExperimentColumn) -> str:
    """Return our value with its standard deviation over seeds."""
    if cell.deviation is None:
        return number(cell.value, column)
    return f"{number(cell.value, column)}±{cell.deviation:.{column.decimals}f}"


def meaning_of(column: ExperimentColumn) -> str:
    """Return what a column's numbers are."""
    if column.metric in STAGES:
        return f"seconds of {STAGES[column.metric]}, when it was computed"
    title = catalogue.metric(column.metric).title
    posthoc = catalogue.parts_of(column.metric).posthoc
    if posthoc:
        title += f", after {posthoc}"
    if column.of == "mean":
        return title
    return f"standard deviation over seeds, averaged over datasets, of: {title}"


def claims_section(table: ResultTable) -> Section:
    """Return the paper's claims with the verdicts that our numbers give."""
    columns = columns_of(["claim", "verdict", "gain in the column's unit"], is_text=True)
    rows = []
    for claim in judge_claims(table):
        style = CLAIM_STYLES.get(claim.verdict.partition(";")[0], "")
        verdict = Cell(claim.verdict, style=style)
        rows.append(Row([Cell(claim.says), verdict, Cell(claim.numbers)]))
    return Section("The paper's claims on our numbers", [Table(columns=columns, rows=rows)])


def as_csv(table: ResultTable) -> str:
    """Return a line for each cell."""
    text: str = table.tidy.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text
