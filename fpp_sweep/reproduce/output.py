"""Tables of a reproduction as text: in the terminal, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from fpp_sweep.report.document import markdown_table, tex, tex_line
from fpp_sweep.report.tables import aligned
from fpp_sweep.reproduce.cells import PAPERS_MODEL, PAPERS_TAG, Cell, Table
from fpp_sweep.reproduce.experiments import Column
from fpp_sweep.spec.files import written_whole

OTHER = f"paper ({PAPERS_MODEL}/{PAPERS_TAG}, other model)"
NOTES = (
    "ours: mean over seeds, ± their standard deviation. A difference beyond 2 sqrt 2 standard deviations plus the "
    "rounding of the printed number is marked *.",
    "[low, high]: 95 % over images of the first seed; not used for the mark, as both numbers see the same images.",
)
SHORT = {"caltech101": "caltech", "flowers102": "flowers", "average without eurosat": "without eurosat"}


def write_table(folder: Path, table: Table) -> None:
    """table.csv, table.md and table.tex."""
    for name, text in (("csv", as_csv(table)), ("md", as_markdown(table)), ("tex", as_latex(table))):
        with written_whole(folder / f"table.{name}") as partial:
            partial.write_text(text, encoding="utf-8")


def number(value: float | None, column: Column) -> str:
    return "" if value is None else f"{round(value, column.decimals) + 0.0:.{column.decimals}f}"


def ours(cell: Cell, column: Column) -> str:
    """A value with its spread over seeds."""
    spread = "" if cell.deviation is None else f"±{cell.deviation:.{column.decimals}f}"
    return number(cell.value, column) + spread


def lines_of(table: Table, column: Column) -> Iterator[list[str]]:
    """A column's numbers: a line for each row, and below it what the paper prints and how far off that is."""
    cells = {(row.name, place): table.of(row, column, place) for row in table.rows for place in table.places}
    yield [column.heading, *(SHORT.get(place, place) for place in table.places)]
    for row in table.rows:
        own = [cells[row.name, place] for place in table.places]
        if any(cell.value is not None for cell in own):
            yield [row.title, *(ours(cell, column) for cell in own)]
        else:
            yield [row.title, *("" for _ in own)]
        if any(cell.interval for cell in own):
            yield ["  over images", *(_interval(cell) for cell in own)]
        if any(cell.printed is not None for cell in own):
            yield [f"  {'paper' if table.same_model else OTHER}", *(number(cell.printed, column) for cell in own)]
        if any(cell.difference is not None for cell in own):
            yield ["  difference", *(_difference(cell, column) for cell in own)]


def _interval(cell: Cell) -> str:
    return f"[{cell.interval[0]:.1f}, {cell.interval[1]:.1f}]" if cell.interval else ""


def _difference(cell: Cell, column: Column) -> str:
    if cell.difference is None:
        return ""
    mark = {"differs": "*", "agrees": "", "": " (one seed)"}[cell.verdict]
    return f"{cell.difference:+.{column.decimals}f}{mark}"


def as_text(table: Table) -> str:
    """For the terminal."""
    experiment = table.experiment
    lines = [f"\n{experiment.name}: {experiment.title}", experiment.question, *(f"  {said}" for said in table.ran)]
    for column in experiment.columns:
        lines += ["", *aligned(list(lines_of(table, column)))]
    lines += [f"  {name} has no numbers: {reason}" for name, reason in table.failed.items()]
    if table.judged:
        lines += ["", "what the paper says, on our numbers (how much better, in the column's unit):"]
        lines += [f"  {line}" for line in aligned(_claims(table), words=(0, 1, 2))]
    return "\n".join(lines)


def _claims(table: Table) -> list[list[str]]:
    return [[judged.says, judged.verdict, judged.numbers] for judged in table.judged]


def as_csv(table: Table) -> str:
    """A line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ("row", "column", "dataset", "ours", "deviation_over_seeds", "low", "high", "printed", "difference")
    writer.writerow([*heads, "verdict", "model"])
    for row in table.rows:
        for column in table.experiment.columns:
            for place in table.places:
                cell = table.of(row, column, place)
                low, high = cell.interval or (None, None)
                values = (cell.value, cell.deviation, low, high, cell.printed, cell.difference)
                said = cell.verdict if table.same_model else "other model"
                plain = ("" if value is None else f"{value:.6g}" for value in values)
                writer.writerow([row.name, column.name, place, *plain, said, table.model])
    return text.getvalue()


def as_markdown(table: Table) -> str:
    experiment = table.experiment
    lines = [f"# {experiment.title}", "", experiment.question, "", *(f"- {said}" for said in table.ran), ""]
    for column in experiment.columns:
        head, *rows = lines_of(table, column)
        lines += markdown_table(head, rows)
    lines += [f"- {name} has no numbers: {reason}" for name, reason in table.failed.items()]
    if table.judged:
        lines += ["## What the paper says, on our numbers", ""]
        lines += markdown_table(["claim", "verdict", "how much better"], _claims(table))
    return "\n".join([*lines, *(f"{note}\n" for note in NOTES)])


def as_latex(table: Table) -> str:
    """Booktabs; a table for each column."""
    lines = [r"% \usepackage{booktabs}", *(f"% {said}" for said in table.ran)]
    for column in table.experiment.columns:
        head, *rows = lines_of(table, column)
        heading = f"{tex(table.experiment.title)}: {tex(column.heading)}"
        lines += [r"\begin{table}", rf"\caption{{{heading}.}}", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"]
        lines += [r"\toprule", tex_line(["", *head[1:]]), r"\midrule", *map(tex_line, rows), r"\bottomrule"]
        lines += [r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*lines, *(f"% {note}" for note in NOTES), ""])
