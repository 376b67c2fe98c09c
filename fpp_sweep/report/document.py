"""The document model of pages and comparisons: sections with anchors, made of texts, tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fpp_sweep.report.table import Table, tex, to_latex, to_markdown, to_text
from fpp_sweep.report.text import DEFAULT_WIDTH, wrap_words
from fpp_sweep.spec.errors import escaped

TextStyle = Literal["", "faint", "warning", "lead", "usage"]  # usage: of the page itself; not printed


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
class Html:
    """Finished HTML, such as a figure in SVG; on pages only."""

    html: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """An interactive plot as plotly's plain data, or the sentence shown instead of it.

    A reader may choose between variants of a plot. `choices` holds, by label, the changes to `traces` and `layout`, and
    `zoom` and `n_outliers` of the variant's own; the first is shown at first. Plots of one `group` share the choice.
    """

    name: str
    traces: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    placeholder: str = ""  # shown if there are no traces
    description: str = ""  # for screen readers
    min_width: int = 0  # pixels; in a narrower window the plot scrolls
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choice_label: str = "shown"
    group: str = ""  # empty: the plot's own choice
    zoom: Mapping[str, Sequence[float]] = field(default_factory=dict)  # ranges of axes that leave outliers out
    n_outliers: int = 0  # trials outside these ranges


@dataclass(frozen=True, slots=True)
class PlotGroup:
    """Small plots side by side, which share a choice."""

    plots: Sequence[Plot]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a reader unfolds; on pages only."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the blocks below it; a section inside a section has a smaller heading."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""  # a link #anchor leads to the section


Block = Text | Code | Html | Table | Plot | PlotGroup | Details | Section


@dataclass(frozen=True, slots=True)
class Document:
    """A title, an introduction and sections."""

    title: str
    sections: Sequence[Section]
    introduction: Sequence[Block] = ()

    @property
    def plots(self) -> list[Plot]:
        return list(_plots(self.sections))


def _plots(blocks: Sequence[Block]) -> Iterator[Plot]:
    for block in blocks:
        if isinstance(block, Plot):
            yield block
        elif isinstance(block, PlotGroup):
            yield from block.plots
        elif isinstance(block, Section):
            yield from _plots(block.blocks)


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
