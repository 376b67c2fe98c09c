"""The estimate of the time that a search still takes, on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def search_seconds_left(
    *, trials_left: int | None, running: int, durations: Sequence[float], budget_left: float | None
) -> float | None:
    """Return the seconds until the trials have ended or the budget is used up; None if neither is known.

    `trials_left` are those that have not ended, `running` of which run; None if their number has no limit. `durations`
    are those of finished trials, and `budget_left` is what is left of `search.wall_clock`, all in seconds.

    >>> search_seconds_left(trials_left=6, running=2, durations=[20, 40], budget_left=None)
    90.0
    """
    limits = []
    if budget_left is not None:
        limits.append(budget_left)
    if trials_left is not None and durations:
        at_once = max(1, min(running, trials_left))
        limits.append(fmean(durations) * trials_left / at_once)
    if not limits:
        return None
    return max(0.0, min(limits))
