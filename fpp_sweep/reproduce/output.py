"""Tables of a reproduction for terminal, page, Markdown and LaTeX, and as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import orders_remark
from fpp_sweep.records.texts import format_time, released_mark, released_notes
from fpp_sweep.report.document import Section, Text, blocks_to_latex, blocks_to_markdown, blocks_to_text, paragraphs
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.report.html import write_page
from fpp_sweep.report.table import Cell, CellStyle, Column, Row, Table, cells_of, columns_of
from fpp_sweep.reproduce.claims import DOES_NOT_HOLD, HOLDS, judge_claims
from fpp_sweep.reproduce.experiments import (
    PAPERS_MODEL,
    PAPERS_TAG,
    STAGES,
    Experiment,
    ExperimentColumn,
    line_name,
    shipped,
)
from fpp_sweep.reproduce.figures import figure_of, write_figure
from fpp_sweep.reproduce.tables import (
    EXPERIMENT_FILE,
    SPLIT,
    ResultCell,
    ResultTable,
    is_average,
    load_table,
    save_experiment,
    table_of,
)
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole

PAGE = "reproduction.html"
NOT_JUDGED = "not judged"
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
    sections = table_sections(table)
    markdown = blocks_to_markdown(table.experiment.title, sections)
    texts = {"csv": as_csv(table), "md": markdown, "tex": blocks_to_latex(sections)}
    for suffix, text in texts.items():
        with written_whole(folder / f"table.{suffix}") as partial:
            partial.write_text(text, encoding="utf-8")


def table_sections(table: ResultTable) -> list[Section]:
    """Return what ran, a section for each column, and the paper's claims."""
    sentences = [table.experiment.question, *table.run_notes, *order_sentences(table), *failures_of(table)]
    notes = [*NOTES, *released_notes(table.records.values())]
    return [
        Section(f"{table.experiment.name}: {table.experiment.title}", paragraphs(sentences)),
        *column_sections(table),
        *claims_sections(table),
        Section("How to read the numbers", paragraphs(notes)),
    ]


def failures_of(table: ResultTable) -> list[str]:
    return [f"{line_name(key)} has no numbers in {reason}" for key, reason in table.failed.items()]


def order_sentences(table: ResultTable) -> list[str]:
    """Return a sentence for each line whose result depends on the order of the stream."""
    sentences: dict[str, None] = {}
    for (line, _), record in table.records.items():
        for remark in orders_remark(record, SPLIT):
            sentences[f"{line_name(line)}: {remark}"] = None
    return list(sentences)


def as_text(table: ResultTable) -> str:
    return blocks_to_text(table_sections(table))


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
    for line in table.lines:
        record = table.record(line.key)
        cells = [Cell(line.title, mark=released_mark(record) if record else "")]
        for scope in table.scopes:
            cells.append(_printed_below_ours(table.cell(line.key, column.name, scope), column))
        rows.append(Row(cells))
    return Table(columns=columns, rows=rows)


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
        below["difference"] = f"{cell.difference:+.{column.decimals}f}{_mark_of(cell, column)}"
    if cell.verdict == "differs":
        style = "bad"
    elif cell.verdict == "agrees":
        style = "good"
    interval = ""
    if cell.interval:
        interval = format_interval(column.metric, cell.interval)
    return Cell(ours(cell, column), interval=interval, style=style, below=below, sort_value=sort_value)


def _mark_of(cell: ResultCell, column: ExperimentColumn) -> str:
    """Return the mark of a difference to the printed number."""
    if not cell.has_all_images:
        return FEWER_IMAGES
    if column.of == "deviation" or column.metric in STAGES:
        return ""  # such numbers are not tested, however many seeds there are
    return MARKS[cell.verdict]


def ours(cell: ResultCell, column: ExperimentColumn) -> str:
    """Return our value with its standard deviation over seeds."""
    if cell.value is None:
        return ""
    text = f"{cell.value:z.{column.decimals}f}"  # z: no minus before zero
    if cell.deviation is not None:
        text += f"±{cell.deviation:.{column.decimals}f}"
    return text


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


def claims_sections(table: ResultTable) -> list[Section]:
    """Return a section of the paper's claims with the verdicts that our numbers give; none without claims."""
    if not table.experiment.claims:
        return []
    columns = columns_of(["claim", "verdict", "gain in the column's unit"], is_text=True)
    rows = []
    for claim in judge_claims(table):
        style = CLAIM_STYLES.get(claim.verdict.partition(";")[0], "")
        verdict = Cell(claim.verdict, style=style)
        rows.append(Row([Cell(claim.says), verdict, Cell(claim.numbers)]))
    heading = line_name(("The paper's claims on our numbers", table.experiment.precisions[0]))
    return [Section(heading, [Table(columns=columns, rows=rows)])]


def as_csv(table: ResultTable) -> str:
    """Return a line for each cell."""
    text: str = table.tidy.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text


# --- the page of all tables ------------------------------------------------------------------------------


def write_results(
    folder: SweepFolder, experiment: Experiment, checkpoints: Mapping[str, str], run_notes: Sequence[str]
) -> ResultTable:
    """Write the table and the figure of an experiment that has ended, and return the table."""
    save_experiment(folder.path, experiment, checkpoints, run_notes)
    table = table_of(experiment, folder, checkpoints, run_notes)
    write_table(folder.report, table)
    write_figure(table)
    return table


def write_reproduction(folder: Path, tables: Mapping[str, ResultTable] | None = None) -> Path:
    """Write the page of a reproduction's folder; tables that are passed, by name, are not made again."""
    made = tables or {}
    shown = []
    for sweep in sweeps(folder):
        shown.append(made.get(sweep.path.name) or load_table(sweep))
    if not shown:
        raise InputError(f"{folder} has no table yet")
    infos = [table.info for table in shown]
    start = min(info.created for info in infos)
    end = max(info.finished or info.created for info in infos)
    is_papers_model = all(table.is_papers_model for table in shown)
    write_page(
        folder / PAGE,
        "reproduction.html.j2",
        title=f"Reproduction {folder.resolve().name}",
        models=dict.fromkeys(info.model for info in infos),
        period=f"{format_time(start)} to {format_time(end)}",
        papers_model="" if is_papers_model else f"{PAPERS_MODEL}/{PAPERS_TAG}",
        overview=_overview(shown),
        experiments=[_experiment(table) for table in shown],
        rules=NOTES,
        commands=dict.fromkeys(info.command for info in infos if info.command),
    )
    return folder / PAGE


def sweeps(folder: Path) -> list[SweepFolder]:
    """Return the experiments' sweeps in the order of `--list`; the user's own come last, once they have ended."""
    order = shipped()
    own = []
    for path in sorted(folder.iterdir()):
        if path.name not in order and (path / EXPERIMENT_FILE).is_file():
            own.append(path.name)
    begun = [SweepFolder(folder / name) for name in (*order, *own) if (folder / name / "sweep.json").is_file()]
    return [sweep for sweep in begun if sweep.info().model]  # others have not opened their model yet


def _overview(tables: Sequence[ResultTable]) -> Table:
    """Return a table of the experiments, with links to their sections."""
    titles = ["table", "question", "cells against the paper", "claims", "state"]
    rows = []
    for table in tables:
        state: str = table.info.state
        if table.failed:
            state += f", {len(table.failed)} rows failed"
        claims = _counts([claim.verdict.partition(";")[0] for claim in judge_claims(table)])
        texts = [table.name, table.experiment.question, _cell_counts(table), claims, state]
        rows.append(Row(cells_of(texts), anchor=table.name))
    return Table(columns=columns_of(titles, is_text=True), rows=rows)


def _cell_counts(table: ResultTable) -> str:
    if not table.is_papers_model:
        return "other model"
    verdicts = []
    for cell in table.cells:
        if cell.difference is not None:
            verdicts.append(cell.verdict or NOT_JUDGED)
    return _counts(verdicts)


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in Counter(words).most_common())


def _experiment(table: ResultTable) -> dict[str, Any]:
    """Return what the template shows of a table."""
    warnings = [text for text in table.run_notes if text.startswith("PARTIAL")]
    notes = [text for text in table.run_notes if text not in warnings]
    if table.info.state != "finished":
        warnings.append(f"The sweep is {table.info.state}: rows may be missing.")
    return {
        "name": table.name,
        "title": table.experiment.title,
        "question": table.experiment.question,
        "warnings": [*warnings, *failures_of(table)],
        "notes": notes,
        "sections": [*claims_sections(table), *column_sections(table)],
        "figure": figure_of(table),
    }
