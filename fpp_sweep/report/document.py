"""The document model: sections with anchors, made of texts and tables; html.py makes a page of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fpp_sweep.report.table import Table, tex, to_latex, to_markdown, to_text
from fpp_sweep.report.text import DEFAULT_WIDTH, wrap_words
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
class Code:
    """Text as it is typed, such as a command; on pages only."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure in SVG with its caption; on pages only."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the blocks below it; a section inside a section has a smaller heading."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""  # a link #anchor leads to the section


Block = Text | Code | Picture | Table | Section


@dataclass(frozen=True, slots=True)
class Document:
    """A title, an introduction and sections."""

    title: str
    sections: Sequence[Section]
    introduction: Sequence[Block] = ()


def document_to_text(document: Document, width: int = DEFAULT_WIDTH) -> str:
    """Return texts and tables for a terminal; the document's title is left out.

    >>> print(document_to_text(Document("Comparison", [Section("Costs", [Text("no sweep has finished")])])))
    <BLANKLINE>
    Costs
    no sweep has finished
    """
    return "\n".join(_text_lines(document.sections, width))


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


def document_to_markdown(document: Document) -> str:
    """Return texts and tables as Markdown.

    >>> print(document_to_markdown(Document("Comparison", [Section("Costs", [Text("no sweep has finished")])])))
    # Comparison
    <BLANKLINE>
    ## Costs
    <BLANKLINE>
    no sweep has finished
    <BLANKLINE>
    """
    return "\n".join([f"# {escaped(document.title)}", "", *_markdown_lines(document.sections, level=2)])


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


def document_to_latex(document: Document) -> str:
    r"""Return the tables as LaTeX, those without a title with that of their section; texts become comments.

    >>> print(document_to_latex(Document("Comparison", [Section("Costs", [Text("no sweep has finished")])])))
    % \usepackage{booktabs}
    % Costs
    % no sweep has finished
    """
    return "\n".join([r"% \usepackage{booktabs}", *_latex_lines(document.sections)])


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
