"""Intervals and differences as text, with a decimal less than the metric itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpp_sweep.spec import catalogue

if TYPE_CHECKING:
    from fpp_sweep.statistics.paired import Interval


def format_interval(metric: str, interval: Interval) -> str:
    """Return the ends of an interval.

    >>> from fpp_sweep.statistics.paired import Interval
    >>> format_interval("accuracy", Interval(70.0, 68.0, 72.0))
    '[68.0, 72.0]'
    """
    decimals = _decimals(metric)
    return f"[{interval.low:.{decimals}f}, {interval.high:.{decimals}f}]"


def format_difference(metric: str, difference: Interval) -> str:
    """Return a difference with the ends of its interval, all with their signs.

    >>> from fpp_sweep.statistics.paired import Interval
    >>> format_difference("ece", Interval(-1.9, -2.7, -1.1))
    '-1.9 [-2.7, -1.1]'
    """
    decimals = _decimals(metric)
    low, value, high = difference.low, difference.value, difference.high
    return f"{value:+.{decimals}f} [{low:+.{decimals}f}, {high:+.{decimals}f}]"


def _decimals(metric: str) -> int:
    name = metric.partition("/")[0]
    if name not in catalogue.METRICS:  # a plugin's metric that is not loaded
        return 1
    return max(1, catalogue.METRICS[name].decimals - 1)
