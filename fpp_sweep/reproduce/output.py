"""Tables of a reproduction for terminal, page, Markdown and LaTeX, and as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fpp_sweep.report import table as report_table
from fpp_sweep.report.document import Block, Document, Section, Text, document_to_latex, document_to_markdown
from fpp_sweep.report.document import document_to_text as to_text
from fpp_sweep.report.text_layout import DEFAULT_WIDTH
from fpp_sweep.reproduce.cells import PAPERS_MODEL, PAPERS_TAG, Cell, Table
from fpp_sweep.reproduce.experiments import AVERAGE, STAGES, Column
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.files import written_whole

PAPER = "paper"
OTHER_MODEL = f"paper ({PAPERS_MODEL}/{PAPERS_TAG}, other model)"
DIFFERS = "*"
NOTES = (
    f"ours: mean over seeds, ± their standard deviation. A difference beyond 2 sqrt 2 standard deviations plus the "
    f"rounding of the printed number is marked {DIFFERS}.",
    "[low, high]: 95 % over images of the first seed; not used for the mark, as both numbers see the same images.",
)
SHORT_NAMES = {"caltech101": "caltech", "flowers102": "flowers", "average without eurosat": "without eurosat"}
CLAIM_STYLES: dict[str, report_table.CellStyle] = {"holds": "good", "does not hold": "bad"}


def write_table(folder: Path, table: Table) -> None:
    """Write table.csv, table.md and table.tex."""
    document = table_document(table)
    texts = {"csv": as_csv(table), "md": document_to_markdown(document), "tex": document_to_latex(document)}
    for suffix, text in texts.items():
        with written_whole(folder / f"table.{suffix}") as partial:
            partial.write_text(text, encoding="utf-8")


def table_document(table: Table) -> Document:
    """Return what ran, a section for each column, and the paper's claims."""
    summary: list[Block] = [Text(table.experiment.question)]
    summary += [Text(sentence) for sentence in table.ran]
    summary += [Text(f"{name} has no numbers: {reason}") for name, reason in table.failed.items()]
    sections = [Section(f"{table.experiment.name}: {table.experiment.title}", summary), *column_sections(table)]
    if table.judged:
        sections.append(claims_section(table))
    sections.append(Section("How to read the numbers", [Text(note) for note in NOTES]))
    return Document(table.experiment.title, sections)


def as_text(table: Table, width: int = DEFAULT_WIDTH) -> str:
    return to_text(table_document(table), width)


def column_sections(table: Table) -> list[Section]:
    """Return a section for each column of the experiment: rows by dataset and average."""
    sections = []
    for column in table.experiment.columns:
        sections.append(Section(column.heading, [Text(meaning_of(column), "faint"), column_table(table, column)]))
    return sections


def column_table(table: Table, column: Column) -> report_table.Table:
    columns = [report_table.Column("row", is_text=True)]
    for place in table.places:
        group = "averages" if place.startswith(AVERAGE) else ""
        columns.append(report_table.Column(SHORT_NAMES.get(place, place), group=group))
    rows = []
    for row in table.rows:
        cells = [report_table.Cell(row.title)]
        cells += [_cell(table.of(row, column, place), column) for place in table.places]
        rows.append(report_table.Row(cells))
    return report_table.Table(columns=columns, rows=rows)


def _cell(cell: Cell, column: Column) -> report_table.Cell:
    """Return our number, and below it what the paper prints and how far off that is."""
    below = {}
    style: report_table.CellStyle = ""
    if cell.printed is not None:
        below[PAPER if cell.same_model else OTHER_MODEL] = number(cell.printed, column)
    if cell.difference is not None:
        mark = {"differs": DIFFERS, "agrees": "", "": " (one seed)"}[cell.verdict]
        below["difference"] = f"{cell.difference:+.{column.decimals}f}{mark}"
        if cell.verdict:
            style = "bad" if cell.verdict == "differs" else "good"
    interval = ""
    if cell.interval:
        low, high = cell.interval
        interval = f"[{low:.1f}, {high:.1f}]"
    sort_value = cell.printed if cell.value is None else cell.value
    return report_table.Cell(ours(cell, column), interval=interval, style=style, below=below, sort_value=sort_value)


def number(value: float | None, column: Column) -> str:
    if value is None:
        return ""
    return f"{round(value, column.decimals) + 0.0:.{column.decimals}f}"  # plus zero: no minus sign before zero


def ours(cell: Cell, column: Column) -> str:
    """Return our value with its standard deviation over seeds."""
    spread = "" if cell.deviation is None else f"±{cell.deviation:.{column.decimals}f}"
    return number(cell.value, column) + spread


def meaning_of(column: Column) -> str:
    """Return what a column's numbers are."""
    if column.metric in STAGES:
        return f"seconds of {STAGES[column.metric]}, when it was computed"
    title = catalogue.METRICS[column.metric].title
    if column.of == "mean":
        return title
    return f"standard deviation over seeds, averaged over datasets, of: {title}"


def claims_section(table: Table) -> Section:
    """Return the paper's claims with the verdicts that our numbers give."""
    columns = [
        report_table.Column("claim", is_text=True),
        report_table.Column("verdict", is_text=True),
        report_table.Column("how much better, in the column's unit", is_text=True),
    ]
    rows = []
    for claim in table.judged:
        style = CLAIM_STYLES.get(claim.verdict.partition(";")[0], "")
        cells = [
            report_table.Cell(claim.says),
            report_table.Cell(claim.verdict, style=style),
            report_table.Cell(claim.numbers),
        ]
        rows.append(report_table.Row(cells))
    return Section("The paper's claims on our numbers", [report_table.Table(columns=columns, rows=rows)])


def as_csv(table: Table) -> str:
    """Return a line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ("row", "column", "dataset", "ours", "deviation_over_seeds", "low", "high", "printed", "difference")
    writer.writerow([*heads, "verdict", "model"])
    for row in table.rows:
        for column in table.experiment.columns:
            for place in table.places:
                cell = table.of(row, column, place)
                verdict = cell.verdict if table.same_model else "other model"
                writer.writerow([row.name, column.name, place, *_csv_numbers(cell), verdict, table.model])
    return text.getvalue()


def _csv_numbers(cell: Cell) -> list[str]:
    low, high = cell.interval or (None, None)
    numbers = []
    for value in (cell.value, cell.deviation, low, high, cell.printed, cell.difference):
        numbers.append("" if value is None else f"{value:.6g}")
    return numbers
