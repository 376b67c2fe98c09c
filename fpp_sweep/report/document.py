"""A result in parts, each a table with a few lines: for the terminal, as Markdown, as LaTeX, for a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fpp_sweep.report.html import faint, paragraph, section, table_of_words
from fpp_sweep.report.tables import aligned
from fpp_sweep.spec.errors import escaped

WIDTH = 100  # columns of a line on a terminal
_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", "±": r"$\pm$"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A table and what is to be said of it."""

    title: str
    rows: Sequence[Sequence[str]] = ()  # the first is the head; one that begins with a space belongs to the one above
    lines: Sequence[str] = ()
    words: Sequence[int] = (0,)  # columns that are not of numbers


def as_text(parts: Sequence[Part]) -> str:
    """For the terminal."""
    return "\n".join(line for part in parts for line in _text(part))


def _text(part: Part) -> Iterator[str]:
    yield from ("", escaped(part.title))
    if part.rows:
        yield from (f"  {line}" for line in aligned(part.rows, words=part.words))
    for line in part.lines:
        yield from textwrap.wrap(escaped(line), WIDTH, initial_indent="  ", subsequent_indent=" " * 6)


def as_html(part: Part) -> str:
    head, *rows = part.rows or [()]
    table = table_of_words(head, rows) if rows else ""
    return section(part.title, table, *map(paragraph if not rows else faint, part.lines))


def as_markdown(title: str, parts: Sequence[Part]) -> str:
    lines = [f"# {escaped(title)}", ""]
    for part in parts:
        lines += [f"## {escaped(part.title)}", "", *(markdown_table(part.rows[0], part.rows[1:]) if part.rows else [])]
        lines += [text for line in part.lines for text in (f"- {escaped(line)}",)] + [""] * bool(part.lines)
    return "\n".join(lines)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(escaped(cell).strip().replace('|', '/') for cell in cells)} |"

    return [line(head), f"|{'---|' * len(head)}", *map(line, rows), ""]


def as_latex(parts: Sequence[Part]) -> str:
    """Booktabs; a table for each part that has one, with its lines in the caption."""
    lines = [r"% \usepackage{booktabs}"]
    for part in parts:
        caption = " ".join(f"{text[:1].upper()}{text[1:]}." for text in (part.title, *part.lines))
        if not part.rows:
            lines += [f"% {escaped(caption)}", ""]
            continue
        head, *rows = part.rows
        columns = "".join("l" if place in part.words else "r" for place in range(len(head)))
        lines += [r"\begin{table}", rf"\caption{{{tex(caption)}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [tex_line(head), r"\midrule", *map(tex_line, rows), r"\bottomrule", r"\end{tabular}"]
        lines += [r"\end{table}", ""]
    return "\n".join(lines)


def tex_line(cells: Sequence[str]) -> str:
    first, *others = cells
    indent = r"\quad " if first.startswith(" ") else ""
    return f"{' & '.join([indent + tex(first.strip()), *map(tex, others)])} " + r"\\"


def tex(text: str) -> str:
    """Text with what means something to LaTeX written out, and minus signs as such.

    >>> print(tex("50 % of a_b: -1.5"))
    50 \\% of a\\_b: $-$1.5
    """
    written = re.sub(r"[\\~^<±]|[&%$#_{}]", lambda found: _TEX.get(found[0], f"\\{found[0]}"), escaped(text))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", written)
