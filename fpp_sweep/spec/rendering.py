"""Lines for a terminal or a log, drawn by rich."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

MAX_BLOCK_LINES = 12  # a block that is higher than the window could not be erased


@dataclass(frozen=True, slots=True)
class Drawn:
    """Text to write to a stream, and the columns that each line of its block takes."""

    text: str
    block_widths: list[int]


def draw(
    stay: Iterable[RenderableType], block: Sequence[RenderableType], *, encoding: str, columns: int, terminal: bool
) -> Drawn:
    """Return the lines that stay and the block below them, with ? for each character that the encoding lacks."""
    memory = io.BytesIO()
    file = io.TextIOWrapper(memory, encoding, "replace", newline="")
    console = Console(file=file, width=columns, height=100, force_terminal=terminal, highlight=False)
    for line in stay:
        console.print(line, soft_wrap=isinstance(line, str | Text), markup=False, emoji=False)
    segments: list[Segment] = []
    block_widths = []
    for block_line in _block_lines(console, block):
        block_widths.append(Segment.get_line_length(block_line))
        segments += [*block_line, Segment.line()]
    console.print(Segments(segments), end="", soft_wrap=True)
    file.flush()
    text = memory.getvalue().decode(encoding)
    if not terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    return Drawn(text, block_widths)


def _block_lines(console: Console, block: Sequence[RenderableType]) -> list[list[Segment]]:
    """Return the block's lines, cut at the edge of the terminal."""
    # the last column stays free: writing there makes some terminals wrap
    options = console.options.update(width=console.width - 1, no_wrap=True)
    options.overflow = "ellipsis"
    if options.ascii_only:
        options.overflow = "crop"
    lines: list[list[Segment]] = []
    for renderable in block:
        lines += console.render_lines(renderable, options, pad=False)
    return lines[:MAX_BLOCK_LINES]
