"""Columns of text within the width of a terminal: padded, wrapped between words, and split into blocks."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from rich.cells import cell_len

DEFAULT_WIDTH = 100  # columns of an output that is not a terminal
GAP = 2  # spaces between two columns
WRAPPED_WIDTH = 20  # text columns shrink to this width before anything is left out
LONGEST_WORD = 36  # longer words lose their middle; two of these fit into 80 columns


@dataclass(frozen=True, slots=True)
class TextCell:
    """A value and the lines below it."""

    value: str
    below: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column; text is aligned to the left and wrapped, numbers are aligned to the right."""

    title: str
    group: str  # heading above neighbouring columns
    is_text: bool
    cells: Sequence[TextCell]

    @property
    def natural_width(self) -> int:
        width = text_width(self.title)
        for cell in self.cells:
            for line in (cell.value, *cell.below):
                width = max(width, text_width(line))
        return width

    @property
    def minimal_width(self) -> int:
        """The width below which a word or number would be broken."""
        if not self.is_text:
            return self.natural_width
        words = self.title.split()
        for cell in self.cells:
            words += cell.value.split()
        width = min(self.natural_width, WRAPPED_WIDTH)
        for word in words:
            width = max(width, min(text_width(word), LONGEST_WORD))
        return width

    def aligned(self, text: str, width: int) -> str:
        padding = " " * (width - text_width(text))
        if self.is_text:
            return text + padding
        return padding + text


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Columns beside each other."""

    columns: Sequence[TextColumn]
    separated_rows: frozenset[int] = frozenset()  # rows with an empty line above them

    @property
    def minimal_widths(self) -> list[int]:
        widths = [column.minimal_width for column in self.columns]
        for group, start, stop in self._group_spans():
            lacking = text_width(group) - _total(widths[start:stop])
            widths[stop - 1] += max(0, lacking)
        return widths

    def fits(self, width: int) -> bool:
        return _total(self.minimal_widths) <= width

    def split(self, width: int) -> Iterator[TextBlock]:
        """Yield blocks that fit, each with the first column; a group stays together unless it is too wide alone.

        The blocks after the first one leave out rows that have a name only.
        """
        whole, *continuations = self._pieces(width)
        yield whole
        for block in continuations:
            shortened = block._without_empty_rows()
            if shortened.columns[0].cells:
                yield shortened

    def _pieces(self, width: int) -> Iterator[TextBlock]:
        first, *other_columns = self.columns
        shown = [first]
        for _, start, stop in self._of(other_columns)._group_spans():
            group = other_columns[start:stop]
            pieces = [group]
            if not self._of([first, *group]).fits(width):
                pieces = [[column] for column in group]
            for piece in pieces:
                if len(shown) > 1 and not self._of([*shown, *piece]).fits(width):
                    yield self._of(shown)
                    shown = [first]
                shown += piece
        yield self._of(shown)

    def _without_empty_rows(self) -> TextBlock:
        """Return the block without rows that have a name only; unchanged if a row has no name."""
        names, *others = self.columns
        if not all(cell.value for cell in names.cells):  # a row without a name belongs to the one above
            return self
        kept: list[int] = []
        separated = set()
        for row in range(len(names.cells)):
            if not _has_content(others, row):
                continue
            if row in self.separated_rows:
                separated.add(len(kept))
            kept.append(row)
        columns = []
        for column in self.columns:
            kept_cells = [column.cells[row] for row in kept]
            columns.append(replace(column, cells=kept_cells))
        return TextBlock(columns, frozenset(separated))

    def _group_spans(self) -> Iterator[tuple[str, int, int]]:
        return group_spans([column.group for column in self.columns])

    def _of(self, columns: Sequence[TextColumn]) -> TextBlock:
        return replace(self, columns=columns)

    def lines(self, width: int) -> Iterator[str]:
        """Yield the headings and rows."""
        widths = self._widths(width)
        group_line = self._group_line(widths)
        if group_line:
            yield group_line
        heads = []
        for column, column_width in zip(self.columns, widths, strict=True):
            heads.append(column.aligned(column.title, column_width))
        yield _joined(heads)
        for row in range(len(self.columns[0].cells)):
            if row in self.separated_rows:
                yield ""
            yield from self._row_lines(row, widths)

    def _widths(self, width: int) -> list[int]:
        """Return the columns' widths; text columns grow to their natural width as far as there is room."""
        widths = self.minimal_widths
        room = width - _total(widths)
        for index, column in enumerate(self.columns):
            growth = max(0, min(room, column.natural_width - widths[index]))
            widths[index] += growth
            room -= growth
        return widths

    def _group_line(self, widths: Sequence[int]) -> str:
        parts = []
        for group, start, stop in self._group_spans():
            group_width = _total(widths[start:stop])
            if group:
                parts.append(f" {group} ".center(group_width, "-"))
            else:
                parts.append(" " * group_width)
        return _joined(parts)

    def _row_lines(self, row: int, widths: Sequence[int]) -> Iterator[str]:
        """Yield the lines of a row: its values, wrapped if they are text, and the lines below them."""
        cells = [column.cells[row] for column in self.columns]
        stacks = []  # lines of each cell
        height = 1  # lines above the first one that is below a value
        for column, cell, width in zip(self.columns, cells, widths, strict=True):
            lines = [cell.value]
            if column.is_text:
                lines = wrap_words(cell.value, width)
            if cell.below:
                height = max(height, len(lines))
            stacks.append(lines)
        for cell, stack in zip(cells, stacks, strict=True):
            if cell.below:
                stack += [""] * (height - len(stack))
                stack += cell.below
        for texts in zip_longest(*stacks, fillvalue=""):
            parts = []
            for column, text, width in zip(self.columns, texts, widths, strict=True):
                parts.append(column.aligned(text, width))
            yield _joined(parts)


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


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _has_content(columns: Sequence[TextColumn], row: int) -> bool:
    """Return True if any column has text in a row."""
    for column in columns:
        cell = column.cells[row]
        if cell.value or cell.below:
            return True
    return False


def _joined(parts: Iterable[str]) -> str:
    return (" " * GAP).join(parts).rstrip()


def output_width() -> int:
    """Return the columns of the terminal, or of the variable COLUMNS; 100 if the output is not a terminal.

    This is for sentences, which wrap. A table in a file loses nothing with `cli.terminal.terminal_width`.
    """
    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def text_width(text: str) -> int:
    """Return the columns that a text takes on a terminal.

    >>> text_width("a"), text_width("字"), text_width("e\\u0301")
    (1, 2, 1)
    """
    if text.isascii() and text.isprintable():  # most texts: rich looks each character up
        return len(text)
    return cell_len(text)


def wrap_words(text: str, width: int, indent: int = 0) -> list[str]:
    """Return a text as lines, broken between words; a word that is longer than a line is cut.

    >>> wrap_words("best accuracy, knee of a front", 14, indent=2)
    ['best accuracy,', '  knee of a', '  front']
    """
    if text_width(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split():
        candidate = f"{line} {word}" if line.strip() else line + word
        if text_width(candidate) <= width:
            line = candidate
            continue
        if line.strip():
            lines.append(line)
        margin = " " * indent if lines else ""  # the first line is not indented
        line = cut(margin + word, width)
    if line.strip() or not lines:
        lines.append(line)
    return lines


def labelled_lines(label: str, text: str, width: int, *, indent: int) -> list[str]:
    """Return a text beside its label, as lines broken between words; a word that is longer than a line is not cut.

    >>> labelled_lines("question", "How much noise is best?", 26, indent=10)
    ['question  How much noise', '          is best?']
    """
    parts = textwrap.wrap(text, max(1, width - indent), break_long_words=False, break_on_hyphens=False)
    if not parts:
        parts = [""]
    lines = []
    margin = f"{label:<{indent}}"
    for part in parts:
        lines.append(margin + part)
        margin = " " * indent
    return lines


def cut(text: str, width: int) -> str:
    """Return a text without its middle if it is too wide: long names often differ at their ends.

    >>> cut("fpp.context_var", 9), cut("ece", 4)
    ('fpp.…_var', 'ece')
    """
    if text_width(text) <= width:
        return text
    end = (width - 1) // 2
    start = width - 1 - end
    shortened = f"{text[:start]}…{text[len(text) - end :]}"
    while text_width(shortened) > width and start > 0:  # wide letters
        start -= 1
        shortened = f"{text[:start]}…{text[len(text) - end :]}"
    return shortened
