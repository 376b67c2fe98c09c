"""The table model, and its renderers: text for a terminal, Markdown and LaTeX; blocks.html.j2 has that for pages.

A caller describes columns and rows once; the renderers escape what their output would misread.

    table = Table(
        title="Results",
        columns=[Column("trial", is_text=True), Column("accuracy", group="test"), Column("minutes", is_optional=True)],
        rows=[Row([Cell("trial-0001"), Cell("71.00", interval="[70.1, 71.9]", mark="*"), Cell("3.5")])],
        notes=["* p < 0.05"],
    )
    print(to_text(table, width=80))
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fpp_sweep.report.formatting import DEFAULT_WIDTH, wrap_words
from fpp_sweep.spec.errors import escaped

INTERVAL_LABEL = "95 %"
GAP = 2  # spaces between two columns of text
WRAPPED_WIDTH = 20  # columns of sentences shrink to this width before anything is left out
LONGEST_WORD = 36  # characters of a word that is not broken; two of these fit into 80 columns
CellStyle = Literal["", "good", "bad", "faint"]
RowStyle = Literal["", "best", "baseline"]

_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",  # LaTeX's usual fonts print other characters for these three
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with the alignment and the importance of its column.

    >>> Column("accuracy", group="test").heading
    'test: accuracy'
    """

    title: str
    group: str = ""  # heading above neighbouring columns of one group
    is_text: bool = False  # aligned to the left and wrapped between words; other columns hold numbers
    is_optional: bool = False  # left out if a terminal is too narrow, the last one first

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
    trial: str = ""  # name of a trial: on a page with its details, pressing the row's first cell shows them
    anchor: str = ""  # a section of the same page, to which the row's first cell links
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
    sortable: bool = True  # by the reader of a page

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
        columns = []
        for index, head in enumerate(heads):
            columns.append(Column(head, is_text=index in text_columns))
        table_rows = []
        for texts in rows:
            table_rows.append(Row(cells_of(texts)))
        return cls(title=title, columns=columns, rows=table_rows, notes=notes)

    @property
    def groups(self) -> list[str]:
        """The group of each column."""
        return [column.group for column in self.columns]


def group_spans(groups: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield (group, start, stop) of neighbours in one group; an index without a group is alone.

    >>> list(group_spans(["", "test", "test"]))
    [('', 0, 1), ('test', 1, 3)]
    """
    start = 0
    for stop in range(1, len(groups) + 1):
        group = groups[start]
        if stop == len(groups) or not group or groups[stop] != group:
            yield group, start, stop
            start = stop


def columns_of(titles: Iterable[str], *, group: str = "", is_text: bool = False) -> list[Column]:
    """Return columns that differ in their titles only.

    >>> columns_of(["accuracy", "ece"], group="test")[1].heading
    'test: ece'
    """
    return [Column(title, group=group, is_text=is_text) for title in titles]


def cells_of(texts: Iterable[str]) -> list[Cell]:
    """Return cells that hold a text only.

    >>> cells_of(["dtd", "1692"])[1].text
    '1692'
    """
    return [Cell(text) for text in texts]


# --- text for a terminal ------------------------------------------------------------------------------

IntervalPlacement = Literal["beside", "below", "hidden"]
PLACEMENTS: tuple[IntervalPlacement, ...] = ("beside", "below", "hidden")  # from the widest layout to the narrowest


def to_text(table: Table, width: int = DEFAULT_WIDTH) -> str:
    """Return the table as lines of at most `width` terminal columns.

    Intervals stand beside the values, below them if the table is too wide, and are left out if it still is. Then the
    optional columns are left out. A table that is still too wide is continued below itself, with the first
    column again. A note names what is left out.

    >>> table = Table(
    ...     columns=[Column("trial", is_text=True), Column("accuracy"), Column("minutes", is_optional=True)],
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
        lines += _fitting_lines(table, width)
    for note in table.notes:
        lines += wrap_words(escaped(note), width, indent=2)
    return "\n".join(lines)


def _fitting_lines(table: Table, width: int) -> Iterator[str]:
    """Yield the lines of the widest layout that fits, or else of the narrowest one, and what it leaves out."""
    placements = PLACEMENTS
    if not any(row.has_interval for row in table.rows):
        placements = PLACEMENTS[:1]
    for placement in placements:
        columns = _text_columns(table, placement)
        if _least_width(columns) <= width:
            break
    left_out = []
    if placement == "hidden":
        left_out.append("intervals")
    optional = [text_column for text_column in columns if text_column.column.is_optional]
    while optional and _least_width(columns) > width:
        columns.remove(optional[-1])
        left_out.append(optional.pop().column.heading)
    shown: list[_TextColumn] = []
    for column in columns:
        if len(shown) > 1 and _least_width([*shown, column]) > width:
            yield from _grid_lines(shown, width)
            yield ""
            shown = columns[:1]
        shown.append(column)
    yield from _grid_lines(shown, width)
    if left_out:
        yield from wrap_words(escaped(f"not shown: {', '.join(left_out)}"), width, indent=2)


@dataclass(frozen=True, eq=False)
class _TextColumn:
    """A column of a table as it is printed."""

    column: Column
    texts: Sequence[str]  # the headings of group and column, values, and lines below these

    @cached_property
    def natural_width(self) -> int:
        return max(cell_len(text) for text in self.texts)

    @property
    def aligned(self) -> Iterator[str]:
        """The texts; numbers keep the room of the marks behind them, which rich would strip."""
        for text in self.texts:
            if self.column.is_text:
                yield text.rstrip()
            else:
                yield " " * (self.natural_width - cell_len(text)) + text

    @cached_property
    def least_width(self) -> int:
        """The width below which a number or a word would be broken."""
        if not self.column.is_text:
            return self.natural_width
        words = " ".join(self.texts).split()
        longest = max([cell_len(word) for word in words], default=0)
        return max(min(self.natural_width, WRAPPED_WIDTH), min(longest, LONGEST_WORD))


def _text_columns(table: Table, placement: IntervalPlacement) -> list[_TextColumn]:
    rows: list[list[str]] = []
    sizes = _sizes(table)
    for row in table.rows:
        if row.starts_group:
            rows.append([""] * len(table.columns))
        values = []
        for cell, (mark, interval) in zip(row.cells, sizes, strict=True):
            value = escaped(cell.text) + escaped(cell.mark).ljust(mark)  # values stand below each other
            if placement == "beside" and interval:
                value += " " + escaped(cell.interval).rjust(interval)
            values.append(value)
        rows.append(values)
        if placement == "below" and row.has_interval:
            rows.append([f"  {INTERVAL_LABEL}", *[escaped(cell.interval) for cell in row.cells[1:]]])
        for line in islice(_plain_lines(row), 1, None):  # the lines below the values
            rows.append([escaped(text) for text in line])
    columns = []
    for index, column in enumerate(table.columns):
        texts = [text_row[index] for text_row in rows]
        columns.append(_TextColumn(column, [escaped(column.group), escaped(column.title), *texts]))
    return columns


def _sizes(table: Table) -> list[tuple[int, int]]:
    """Return the longest mark and interval of each column."""
    sizes = []
    for index in range(len(table.columns)):
        cells = [row.cells[index] for row in table.rows]
        marks = [len(escaped(cell.mark)) for cell in cells]
        sizes.append((max(marks), max(len(escaped(cell.interval)) for cell in cells)))
    return sizes


def _least_width(columns: Sequence[_TextColumn]) -> int:
    return sum(column.least_width + GAP for column in columns) - GAP


def _grid_lines(columns: Sequence[_TextColumn], width: int) -> Iterator[str]:
    """Yield the lines of columns beside each other; text columns grow as far as there is room."""
    widths = [column.least_width for column in columns]
    room = width - _least_width(columns)
    for index, column in enumerate(columns):
        growth = max(0, min(room, column.natural_width - widths[index]))
        widths[index] += growth
        room -= growth
    while room < 0 and max(widths) > 1:  # even the narrowest layout is too wide: words are broken
        widths[widths.index(max(widths))] -= 1
        room += 1
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    for column_width in widths:
        grid.add_column(width=column_width, overflow="fold")
    for texts in zip(*[column.aligned for column in columns], strict=True):
        grid.add_row(*map(Text, texts))
    console = Console(file=io.StringIO(), width=max(width, sum(widths)), color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(grid)
    groups, *lines = [line.rstrip() for line in capture.get().splitlines()]
    if groups:
        yield groups
    yield from lines


# --- Markdown and LaTeX -------------------------------------------------------------------------------


def to_markdown(table: Table, level: int = 2) -> str:
    """Return the table as Markdown, below its title as a heading of this level.

    Intervals stand beside the values, and other lines below them in rows of their own.

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
        lines += [f"{'#' * level} {escaped(table.title)}", ""]
    if table.rows:
        lines.append(_markdown_line([column.heading for column in table.columns]))
        lines.append(f"|{'---|' * len(table.columns)}")
        for row in table.rows:
            for cells in _plain_lines(row):
                lines.append(_markdown_line(cells))
        lines.append("")
    for note in table.notes:
        text = escaped(note)
        if text.startswith("*"):
            text = f"\\{text}"  # "- * x" would be a list in a list
        lines.append(f"- {text}")
    return "\n".join(lines).rstrip("\n")


def _markdown_line(cells: Iterable[str]) -> str:
    texts = []
    for cell in cells:
        texts.append(escaped(cell).strip().replace("|", "/"))
    return f"| {' | '.join(texts)} |"


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
    sentences = []
    for text in (table.title, *table.notes):
        if text:
            sentences.append(f"{text[:1].upper()}{text[1:]}.")
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
    if not any(table.groups):
        return []
    cells = []
    rules = []
    for group, start, stop in group_spans(table.groups):
        if group:
            cells.append(rf"\multicolumn{{{stop - start}}}{{c}}{{{tex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{start + 1}-{stop}}}")
        else:
            cells.append("")
    return [rf"{' & '.join(cells)} \\", " ".join(rules)]


def _latex_line(cells: Sequence[str]) -> str:
    texts = []
    for cell in cells:
        texts.append(tex(cell.strip()))
    if cells[0].startswith(" "):
        texts[0] = rf"\quad {texts[0]}"
    return rf"{' & '.join(texts)} \\"


def tex(text: str) -> str:
    """Return a text with the characters that LaTeX interprets escaped, and with real minus signs.

    >>> print(tex("50 % of a_b: -1.5"))
    50 \\% of a\\_b: $-$1.5
    """

    def replacement(match: re.Match[str]) -> str:
        return _TEX.get(match[0], f"\\{match[0]}")

    literal = re.sub(r"[\\~^<>|±†‡§]|[&%$#_{}]", replacement, escaped(text))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", literal)


def _plain_lines(row: Row) -> Iterator[list[str]]:
    """Yield a row as lines of cells: the values, then a line for each label."""
    yield [cell.line for cell in row.cells]
    for label in row.labels:
        texts = [f"  {label}"]
        for cell in row.cells[1:]:
            texts.append(cell.below.get(label, ""))
        yield texts
