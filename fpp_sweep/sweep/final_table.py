"""The front with the baselines beside it, and the verdicts on it, as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fpp_sweep.records.front import format_setting, front_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.evidence import Evidence
from fpp_sweep.report.front_table import front_table
from fpp_sweep.report.table import to_text
from fpp_sweep.report.words import remarks, sentences
from fpp_sweep.spec.errors import escaped


def final_table(info: SweepInfo, records: Sequence[TrialRecord], evidence: Evidence | None, width: int) -> str:
    """Return the table, the verdicts and the settings of the front, in lines of at most `width` columns."""
    front = front_of(info, records)
    count = sum(record.kind == "trial" for record in records)
    title = f"front of {info.name}: {len(front.members)} of {count} trials, by {info.goals} on {info.search_split}"
    lines = []
    if front.compared:
        lines.append(to_text(front_table(info, front, evidence, settings=False, title=title), width))
    else:
        lines += _wrapped(title, width)
    if evidence and front.members:
        lines.append("")
        for line in sentences(info, front, evidence):
            lines += _wrapped(line, width)
        for line in remarks(info, front, evidence):
            lines += _wrapped(f"note: {line}", width)
    settings = setting_lines(front.chosen)
    if settings:
        lines.append("")
        for line in settings:
            lines += _wrapped(line, width)
    return "\n".join(lines)


def setting_lines(records: Sequence[TrialRecord]) -> list[str]:
    """Return the searched settings of each trial that has any, on a line."""
    lines = []
    for record in records:
        if record.params:
            settings = ", ".join(f"{key}={format_setting(value)}" for key, value in record.params.items())
            lines.append(f"{record.name}  {settings}")
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(escaped(text), width, subsequent_indent=" " * 12, break_on_hyphens=False)
