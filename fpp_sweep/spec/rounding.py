"""Rounding errors: equal means, such as accuracies of as many right answers, may differ in their last digits."""

from __future__ import annotations

RELATIVE_ERROR = 1e-12  # larger than the rounding error of a mean, and smaller than any difference that images make
DIGITS = 12


def without_rounding_error(value: float) -> float:
    """Return a value with as many digits as a mean has right.

    >>> without_rounding_error(72.91666666666667) == without_rounding_error(72.91666666666666)
    True
    """
    return float(f"{value:.{DIGITS}g}")
