"""Rounding errors: equal means, such as accuracies of as many right answers, may differ in their last digits."""

from __future__ import annotations

DIGITS = 12  # significant digits of a mean that are right; any difference that images make shows in them
RELATIVE_ERROR = 10.0**-DIGITS


def is_rounding_error(difference: float, largest: float) -> bool:
    """Return True for a difference that rounding explains; `largest` is the largest value that it was computed from.

    >>> is_rounding_error(1e-14, 72.9), is_rounding_error(0.05, 72.9)
    (True, False)
    """
    return abs(difference) <= RELATIVE_ERROR * largest


def without_rounding_error(value: float) -> float:
    """Return a value with as many digits as a mean has right.

    >>> without_rounding_error(72.91666666666667) == without_rounding_error(72.91666666666666)
    True
    """
    return float(f"{value:.{DIGITS}g}")
