"""Sentences within the width of a terminal."""

from __future__ import annotations

import shutil
import textwrap

DEFAULT_WIDTH = 100  # columns of an output that is not a terminal


def output_width() -> int:
    """Return the columns of the terminal, or of the variable COLUMNS; 100 if the output is not a terminal.

    This is for sentences, which wrap. A table in a file loses nothing with `cli.terminal.terminal_width`.
    """
    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def wrap_words(text: str, width: int, indent: int = 0) -> list[str]:
    """Return a text as lines, broken between words; a word that is longer than a line is broken.

    >>> wrap_words("best accuracy, knee of a front", 14, indent=2)
    ['best accuracy,', '  knee of a', '  front']
    """
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent=" " * min(indent, width - 1), break_on_hyphens=False)


def labelled_lines(label: str, text: str, width: int, *, indent: int) -> list[str]:
    """Return a text beside its label, as lines broken between words; a word that is longer than a line is not broken.

    >>> labelled_lines("question", "How much noise is best?", 26, indent=10)
    ['question  How much noise', '          is best?']
    """
    parts = textwrap.wrap(text, max(1, width - indent), break_long_words=False, break_on_hyphens=False)
    first, *others = parts or [""]
    return [f"{label:<{indent}}{first}", *[" " * indent + part for part in others]]


def cut(text: str, length: int) -> str:
    """Return a text without its middle if it is too long: long names often differ at their ends.

    >>> cut("fpp.context_var", 9), cut("ece", 4)
    ('fpp.…_var', 'ece')
    """
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[len(text) - end :]}"
