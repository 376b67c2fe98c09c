"""Sections of texts and tables, for a terminal, as Markdown and as LaTeX; blocks.html.j2 has them for pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fpp_sweep.report.formatting import DEFAULT_WIDTH, wrap_words
from fpp_sweep.report.table import Table, tex, to_latex, to_markdown, to_text
from fpp_sweep.spec.errors import escaped

TextStyle = Literal["", "faint", "warning", "lead"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; an empty one is left out."""

    text: str
    style: TextStyle = ""  # on a page


def paragraphs(texts: Iterable[str], style: TextStyle = "") -> list[Text]:
    return [Text(text, style) for text in texts]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the blocks below it; a section inside a section has a smaller heading."""

    title: str
    blocks: Sequence[Block]


Block = Text | Table | Section


def blocks_to_text(blocks: Sequence[Block], width: int = DEFAULT_WIDTH) -> str:
    """Return texts and tables for a terminal.

    >>> print(blocks_to_text([Section("Costs", [Text("no sweep has finished")])]))
    <BLANKLINE>
    Costs
    no sweep has finished
    """
    return "\n".join(_text_lines(blocks, width))


def _text_lines(blocks: Sequence[Block], width: int) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Section):
            if block.title:
                yield ""
                yield from wrap_words(escaped(block.title), width)
            yield from _text_lines(block.blocks, width)
        elif isinstance(block, Table):
            if block.title:
                yield ""
            yield to_text(block, width)
        elif isinstance(block, Text) and block.text:
            yield from wrap_words(escaped(block.text), width, indent=2)


def blocks_to_markdown(title: str, blocks: Sequence[Block]) -> str:
    """Return texts and tables as Markdown, below a title.

    >>> print(blocks_to_markdown("Comparison", [Section("Costs", [Text("no sweep has finished")])]))
    # Comparison
    <BLANKLINE>
    ## Costs
    <BLANKLINE>
    no sweep has finished
    <BLANKLINE>
    """
    return "\n".join([f"# {escaped(title)}", "", *_markdown_lines(blocks, level=2)])


def _markdown_lines(blocks: Sequence[Block], level: int) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Section):
            yield f"{'#' * level} {escaped(block.title)}"
            yield ""
            yield from _markdown_lines(block.blocks, level + 1)
        elif isinstance(block, Table):
            yield to_markdown(block, level)
            yield ""
        elif isinstance(block, Text) and block.text:
            yield escaped(block.text)
            yield ""


def blocks_to_latex(blocks: Sequence[Block]) -> str:
    r"""Return the tables as LaTeX, those without a title with that of their section; texts become comments.

    >>> print(blocks_to_latex([Section("Costs", [Text("no sweep has finished")])]))
    % \usepackage{booktabs}
    % Costs
    % no sweep has finished
    """
    return "\n".join([r"% \usepackage{booktabs}", *_latex_lines(blocks)])


def _latex_lines(blocks: Sequence[Block], title: str = "") -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Section):
            yield f"% {tex(block.title)}"
            yield from _latex_lines(block.blocks, block.title)
        elif isinstance(block, Table):
            yield to_latex(replace(block, title=block.title or title))
            yield ""
        elif isinstance(block, Text) and block.text:
            yield f"% {tex(block.text)}"
