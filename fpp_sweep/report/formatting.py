"""Sentences within the width of a terminal; intervals and differences with a decimal less than the metric itself."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fpp_sweep.spec import catalogue

if TYPE_CHECKING:
    from fpp_sweep.statistics.paired import Difference, Interval


DEFAULT_WIDTH = 100  # columns of an output that is not a terminal


def format_interval(metric: str, interval: Interval) -> str:
    """Return the ends of an interval.

    >>> from fpp_sweep.statistics.paired import Interval
    >>> format_interval("accuracy", Interval(value=70.0, low=68.04, high=71.96))
    '[68.0, 72.0]'
    """
    decimals = decimals_of(metric)
    return f"[{interval.low:.{decimals}f}, {interval.high:.{decimals}f}]"


def format_difference(metric: str, difference: Difference) -> str:
    """Return a difference without its estimated bias: the centre of its interval, with its sign and decimals.

    >>> from fpp_sweep.statistics.paired import Difference
    >>> numbers = {"value": -1.91, "standard_error": 0.4, "degrees_of_freedom": 60}
    >>> format_difference("ece", Difference(first="a", second="b", metric="ece", **numbers))
    '-1.9'
    """
    return f"{difference.debiased:+z.{decimals_of(metric)}f}"  # z: no minus before zero


def format_bounds(metric: str, difference: Difference) -> str:
    """Return the ends of a difference's interval, with their signs.

    >>> from fpp_sweep.statistics.paired import Difference
    >>> numbers = {"value": -1.91, "standard_error": 0.4, "degrees_of_freedom": 60}
    >>> format_bounds("ece", Difference(first="a", second="b", metric="ece", **numbers))
    '[-2.7, -1.1]'
    """
    decimals = decimals_of(metric)
    return f"[{difference.low:+.{decimals}f}, {difference.high:+.{decimals}f}]"


def format_p_value(p_value: float) -> str:
    """Return a p-value with three decimals.

    >>> format_p_value(0.0321), format_p_value(1e-9)
    ('0.032', '<0.001')
    """
    if p_value < 0.001:
        return "<0.001"
    return f"{p_value:.3f}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the number of images of each dataset.

    >>> counts_text({"digits": 200, "scenes": 1000})
    '200 of digits, 1000 of scenes'
    """
    return ", ".join(f"{count} of {name}" for name, count in counts.items())


def decimals_of(metric: str) -> int:
    """Return the decimals of intervals and differences: one less than the metric itself has."""
    name = catalogue.parts_of(metric).stem
    if name not in catalogue.METRICS:  # a plugin's metric that is not loaded
        return 1
    return max(1, catalogue.METRICS[name].decimals - 1)


# --- sentences -------------------------------------------------------------------------------------------


def output_width() -> int:
    """Return the columns of the terminal, or of the variable COLUMNS; 100 if the output is not a terminal.

    This is for sentences, which wrap. A table in a file loses nothing with `cli.terminal_width`.
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
