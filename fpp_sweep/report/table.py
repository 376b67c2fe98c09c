"""The table model, and its four renderers: text for a terminal, HTML for a page, Markdown and LaTeX.

A caller describes columns and rows once; the renderers escape what their output would misread.

    table = Table(
        title="Results",
        columns=[Column("trial", is_text=True), Column("accuracy", group="test"), Column("minutes", drop_rank=1)],
        rows=[Row([Cell("trial-0001"), Cell("71.00", interval="[70.1, 71.9]", mark="*"), Cell("3.5")])],
        notes=["* p < 0.05"],
    )
    print(to_text(table, width=80))
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fpp_sweep.report.text_layout import TextBlock, TextCell, TextColumn, group_spans, text_width, wrap_words
from fpp_sweep.spec.errors import escaped

WIDTH = 100  # columns of a terminal, if the caller does not know
INTERVAL_LABEL = "95 %"
CellStyle = Literal["", "good", "bad", "faint"]
RowStyle = Literal["", "best", "baseline"]

_ANSI = {"": "", "good": "\x1b[32m", "bad": "\x1b[31m", "faint": "\x1b[2m"}
_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", "±": r"$\pm$"}


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with the alignment and the importance of its column.

    >>> Column("accuracy", group="test").heading
    'test: accuracy'
    """

    title: str
    group: str = ""  # heading above neighbouring columns of one group
    is_text: bool = False  # aligned to the left and wrapped between words; other columns hold numbers
    drop_rank: int = 0  # on a narrow terminal the columns with the highest rank go first; 0 always stays

    @property
    def heading(self) -> str:
        if self.group:
            return f"{self.group}: {self.title}"
        return self.title


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with what belongs to it.

    >>> Cell("+3.4", interval="[2.1, 4.7]", mark="*", style="good").line
    '+3.4* [2.1, 4.7]'
    """

    text: str = ""
    interval: str = ""  # 95 % interval of the value
    mark: str = ""  # follows the text, such as `*` for a significant difference
    style: CellStyle = ""
    below: Mapping[str, str] = field(default_factory=dict)  # further lines under the value, by label: {"p": "0.03"}
    sort_value: float | None = None  # a page sorts by this number instead of the text

    @property
    def line(self) -> str:
        return f"{self.text}{self.mark} {self.interval}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """A cell for each column.

    >>> Row([Cell("tpt less ctpt"), Cell("+0.4", below={"p": "0.21"})]).labels
    ['p']
    """

    cells: Sequence[Cell]
    style: RowStyle = ""  # on a page
    trial: str = ""  # name of a trial: pressing the row's first cell on a page shows the trial's details
    starts_group: bool = False  # separated from the row above

    @property
    def labels(self) -> list[str]:
        """Labels of the lines below the values, in the order in which the cells name them."""
        labels: dict[str, None] = {}
        for cell in self.cells:
            labels.update(dict.fromkeys(cell.below))
        return list(labels)

    @property
    def has_interval(self) -> bool:
        return any(cell.interval for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns and rows, with a title above and notes below them."""

    title: str = ""
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()
    name: str = ""  # identifies the table on a page, where a table with a name can be filtered

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"table {self.title!r}: {len(row.cells)} cells for {len(self.columns)} columns")

    @classmethod
    def of_strings(
        cls,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        notes: Sequence[str] = (),
        text_columns: Sequence[int] = (0,),
    ) -> Table:
        """Return a table of plain strings; the columns listed in `text_columns` hold text, the others numbers.

        >>> print(to_text(Table.of_strings(["dataset", "images"], [["dtd", "1692"], ["pets", "3669"]])))
        dataset  images
        dtd        1692
        pets       3669
        """
        columns = [Column(head, is_text=index in text_columns) for index, head in enumerate(heads)]
        table_rows = [Row([Cell(text) for text in row]) for row in rows]
        return cls(title=title, columns=columns, rows=table_rows, notes=notes)


# --- text for a terminal ------------------------------------------------------------------------------

IntervalPlacement = Literal["beside", "below", "hidden"]
PLACEMENTS: tuple[IntervalPlacement, ...] = ("beside", "below", "hidden")  # from the widest layout to the narrowest


def to_text(table: Table, width: int = WIDTH, *, color: bool = False) -> str:
    """Return the table as lines of at most `width` terminal columns.

    Intervals stand beside the values, below them if the table is too wide, and are left out if it still is. Then the
    columns with a `drop_rank` are left out. A table that is still too wide is continued in further blocks, each with
    the first column. Words and numbers are never broken, and a note names what is left out.

    >>> table = Table(
    ...     columns=[Column("trial", is_text=True), Column("accuracy"), Column("minutes", drop_rank=1)],
    ...     rows=[Row([Cell("trial-0001"), Cell("71.00", interval="[70.1, 71.9]", mark="*"), Cell("3.5")])],
    ... )
    >>> print(to_text(table))
    trial                  accuracy  minutes
    trial-0001  71.00* [70.1, 71.9]      3.5
    >>> print(to_text(table, width=24))
    trial       accuracy
    trial-0001    71.00*
    not shown: intervals,
      minutes
    """
    lines = []
    if table.title:
        lines += wrap_words(escaped(table.title), width)
    if table.rows:
        block, left_out = _fitting_block(table, width, color=color)
        for index, part in enumerate(block.split(width)):
            if index > 0:
                lines.append("")
            lines += part.lines(width)
        if left_out:
            lines += wrap_words(f"not shown: {', '.join(left_out)}", width, indent=2)
    for note in table.notes:
        lines += wrap_words(escaped(note), width, indent=2)
    return "\n".join(lines)


def _fitting_block(table: Table, width: int, *, color: bool) -> tuple[TextBlock, list[str]]:
    """Return the widest layout that fits, or else the narrowest one, and the headings of what it leaves out."""
    columns = list(range(len(table.columns)))
    for placement in PLACEMENTS:
        block = _text_block(table, columns, placement, color=color)
        if block.fits(width):
            break
    left_out = []
    if placement == "hidden" and any(row.has_interval for row in table.rows):
        left_out.append("intervals")
    while not block.fits(width):
        least_important = max(columns, key=lambda index: (table.columns[index].drop_rank, index))
        if table.columns[least_important].drop_rank == 0:
            break
        columns.remove(least_important)
        block = _text_block(table, columns, placement, color=color)
    for index, column in enumerate(table.columns):
        if index not in columns:
            left_out.append(column.heading)
    return block, left_out


def _text_block(table: Table, columns: Sequence[int], placement: IntervalPlacement, *, color: bool) -> TextBlock:
    text_columns = []
    for index in columns:
        column = table.columns[index]
        cells = [row.cells[index] for row in table.rows]
        if column.is_text:
            values = [escaped(cell.line if placement == "beside" else cell.text + cell.mark) for cell in cells]
        else:
            values = _aligned_values(cells, placement)
        text_cells = []
        for row, cell, value in zip(table.rows, cells, values, strict=True):
            below = _lines_below(row, index, placement)
            text_cells.append(TextCell(value, below, _ANSI[cell.style] if color else ""))
        text_columns.append(TextColumn(escaped(column.title), escaped(column.group), column.is_text, text_cells))
    separated = frozenset(index for index, row in enumerate(table.rows) if row.starts_group)
    return TextBlock(text_columns, separated)


def _aligned_values(cells: Sequence[Cell], placement: IntervalPlacement) -> list[str]:
    """Return the values of a column of numbers, padded so that digits, marks and intervals stand below each other."""
    text_size = max(text_width(escaped(cell.text)) for cell in cells)
    mark_size = max(text_width(escaped(cell.mark)) for cell in cells)
    interval_size = max(text_width(escaped(cell.interval)) for cell in cells)
    values = []
    for cell in cells:
        value = escaped(cell.text).rjust(text_size) + escaped(cell.mark).ljust(mark_size)
        if placement == "beside" and interval_size:
            value += " " + escaped(cell.interval).rjust(interval_size)
        values.append(value)
    return values


def _lines_below(row: Row, index: int, placement: IntervalPlacement) -> list[str]:
    """Return what a row's cell has below its value; the first cell holds the labels."""
    lines = []
    cell = row.cells[index]
    if placement == "below" and row.has_interval:
        lines.append(f"  {INTERVAL_LABEL}" if index == 0 else cell.interval)
    for label in row.labels:
        lines.append(f"  {label}" if index == 0 else cell.below.get(label, ""))
    if not any(lines):
        return []
    return [escaped(line) for line in lines]


# --- HTML ---------------------------------------------------------------------------------------------


def to_html(table: Table) -> str:
    """Return the table for a page, whose script lets the reader sort it and filter it if it has a name.

    >>> print(to_html(Table.of_strings(["dataset", "images"], [["dtd", "1692"]])))
    <div class="wide" tabindex="0" role="region" aria-label="table"><table>
    <thead><tr><th class="words">dataset</th><th>images</th></tr></thead>
    <tbody>
    <tr><th class="words" scope="row">dtd</th><td>1692</td></tr>
    </tbody>
    </table></div>
    """
    parts = []
    if table.title:
        parts.append(f"<h3>{html.escape(table.title)}</h3>")
    if table.rows:
        parts += _html_table(table)
    for note in table.notes:
        parts.append(f'<p class="faint">{html.escape(note)}</p>')
    return "\n".join(parts)


def _html_table(table: Table) -> Iterator[str]:
    identity = ""
    region = "wide"
    if table.name:
        identity = f' id="{html.escape(table.name)}"'
        region = "wide long"
        yield (
            f'<p class="tools screen"><label>filter <input type="search" data-filter="{html.escape(table.name)}" '
            f'size="32"></label> <output for="{html.escape(table.name)}"></output></p>'
        )
    label = html.escape(table.title or table.name or "table")
    yield f'<div class="{region}" tabindex="0" role="region" aria-label="{label}"><table{identity}>'
    yield f"<thead>{_html_group_line(table)}{_html_heads(table)}</thead>"
    yield "<tbody>"
    for row in table.rows:
        yield _html_row(table, row)
    yield "</tbody>"
    yield "</table></div>"


def _html_group_line(table: Table) -> str:
    if not any(column.group for column in table.columns):
        return ""
    cells = []
    for group, start, stop in group_spans([column.group for column in table.columns]):
        if group:
            cells.append(f'<th class="group" colspan="{stop - start}">{html.escape(group)}</th>')
        else:
            cells.append("<th></th>")
    return f"<tr>{''.join(cells)}</tr>"


def _html_heads(table: Table) -> str:
    cells = []
    for index, column in enumerate(table.columns):
        classes = _html_classes(table, index)
        cells.append(f"<th{classes}>{html.escape(column.title)}</th>")
    return f"<tr>{''.join(cells)}</tr>"


def _html_row(table: Table, row: Row) -> str:
    cells = []
    for index, cell in enumerate(row.cells):
        classes = _html_classes(table, index, cell.style)
        content = _html_cell(cell)
        if index == 0:
            if row.trial:
                content = f'<button type="button" data-trial="{html.escape(row.trial)}">{content}</button>'
            cells.append(f'<th{classes} scope="row">{content}</th>')
        else:
            value = "" if cell.sort_value is None else f' data-value="{cell.sort_value!r}"'
            cells.append(f"<td{classes}{value}>{content}</td>")
    classes = " ".join(filter(None, [row.style, "apart" if row.starts_group else ""]))
    return f"<tr{_class_attribute(classes)}>{''.join(cells)}</tr>"


def _html_cell(cell: Cell) -> str:
    content = html.escape(cell.text + cell.mark)
    if cell.interval:
        content += f"<small>{html.escape(cell.interval)}</small>"
    for label, text in cell.below.items():
        content += f"<small>{html.escape(f'{label} {text}')}</small>"
    return content


def _html_classes(table: Table, index: int, style: CellStyle = "") -> str:
    column = table.columns[index]
    classes = []
    if column.is_text:
        classes.append("words")
    if column.group and (index == 0 or table.columns[index - 1].group != column.group):
        classes.append("first")
    if style:
        classes.append(style)
    return _class_attribute(" ".join(classes))


def _class_attribute(classes: str) -> str:
    if not classes:
        return ""
    return f' class="{classes}"'


# --- Markdown and LaTeX -------------------------------------------------------------------------------


def to_markdown(table: Table) -> str:
    """Return the table as Markdown; intervals stand beside the values, other lines below them in rows of their own.

    >>> print(to_markdown(Table.of_strings(["dataset", "images"], [["dtd", "1692"]], title="Sizes", notes=["of test"])))
    ## Sizes
    <BLANKLINE>
    | dataset | images |
    |---|---|
    | dtd | 1692 |
    <BLANKLINE>
    - of test
    """
    lines = []
    if table.title:
        lines += [f"## {escaped(table.title)}", ""]
    if table.rows:
        lines.append(_markdown_line([column.heading for column in table.columns]))
        lines.append(f"|{'---|' * len(table.columns)}")
        for row in table.rows:
            for cells in _plain_lines(row):
                lines.append(_markdown_line(cells))
        lines.append("")
    for note in table.notes:
        lines.append(f"- {escaped(note)}")
    return "\n".join(lines).rstrip("\n")


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(escaped(cell).strip().replace('|', '/') for cell in cells)} |"


def to_latex(table: Table) -> str:
    r"""Return the table as LaTeX that needs the package booktabs; title and notes become the caption.

    >>> print(to_latex(Table.of_strings(["dataset", "images"], [["my_set", "90"]], title="sizes")))
    \begin{table}
    \caption{Sizes.}
    \begin{tabular}{lr}
    \toprule
    dataset & images \\
    \midrule
    my\_set & 90 \\
    \bottomrule
    \end{tabular}
    \end{table}
    """
    sentences = [f"{text[:1].upper()}{text[1:]}." for text in (table.title, *table.notes) if text]
    caption = " ".join(sentences)
    if not table.rows:
        return f"% {escaped(caption)}"
    alignment = "".join("l" if column.is_text else "r" for column in table.columns)
    lines = [r"\begin{table}", rf"\caption{{{tex(caption)}}}", rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
    lines += _latex_group_lines(table)
    lines += [_latex_line([column.title for column in table.columns]), r"\midrule"]
    for row in table.rows:
        if row.starts_group:
            lines.append(r"\midrule")
        for cells in _plain_lines(row):
            lines.append(_latex_line(cells))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines)


def _latex_group_lines(table: Table) -> list[str]:
    """Return the line with the groups' headings and the rules under them."""
    if not any(column.group for column in table.columns):
        return []
    cells = []
    rules = []
    for group, start, stop in group_spans([column.group for column in table.columns]):
        if group:
            cells.append(rf"\multicolumn{{{stop - start}}}{{c}}{{{tex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{start + 1}-{stop}}}")
        else:
            cells.append("")
    return [rf"{' & '.join(cells)} \\", " ".join(rules)]


def _latex_line(cells: Sequence[str]) -> str:
    indent = r"\quad " if cells[0].startswith(" ") else ""
    return rf"{indent}{' & '.join(tex(cell.strip()) for cell in cells)} \\"


def tex(text: str) -> str:
    """Return a text with the characters that LaTeX interprets escaped, and with real minus signs.

    >>> print(tex("50 % of a_b: -1.5"))
    50 \\% of a\\_b: $-$1.5
    """

    def replacement(match: re.Match[str]) -> str:
        return _TEX.get(match[0], f"\\{match[0]}")

    literal = re.sub(r"[\\~^<±]|[&%$#_{}]", replacement, escaped(text))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", literal)


def _plain_lines(row: Row) -> Iterator[list[str]]:
    """Yield a row as lines of cells: the values, then a line for each label."""
    yield [cell.line for cell in row.cells]
    for label in row.labels:
        yield [f"  {label}", *(cell.below.get(label, "") for cell in row.cells[1:])]
