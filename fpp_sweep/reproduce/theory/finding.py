"""One statement of the paper beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "holds in part", "does not describe what runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A row of the table."""

    name: str
    says: str  # the paper, in our words
    measured: Mapping[str, float]
    verdict: Verdict


def judge(*, whole: bool, part: bool) -> Verdict:
    """The word for a statement that is true as it stands, in some of its cases, or in none that runs.

    >>> judge(whole=False, part=True)
    'holds in part'
    """
    if whole:
        return "holds"
    return "holds in part" if part else "does not describe what runs"
