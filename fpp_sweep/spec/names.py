"""Labels of records: a baseline is named `baseline-tpt`, and tables show `tpt`."""

from __future__ import annotations

BASELINE_PREFIX = "baseline-"


def label_of(name: str) -> str:
    """Return a record's name as tables show it.

    >>> label_of("baseline-tpt"), label_of("trial-0002")
    ('tpt', 'trial-0002')
    """
    return name.removeprefix(BASELINE_PREFIX)
