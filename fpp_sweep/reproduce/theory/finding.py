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
    says: str  # the paper's statement, in our words
    measured: Mapping[str, float]
    verdict: Verdict


def judge(*, whole: bool, part: bool) -> Verdict:
    """Return the verdict on a statement that is true as a whole, in part of the cases that run, or in none of them.

    >>> judge(whole=False, part=True)
    'holds in part'
    """
    if whole:
        return "holds"
    if part:
        return "holds in part"
    return "does not describe what runs"
