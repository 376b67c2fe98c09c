"""All trials on a page: a table, and a section for each trial, such as `#trial-0007`.

The sections are empty at first. trials.js fills a section with the trial's contents (trial_contents.py) when a reader
opens it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.document import Block, Html, Section, Text
from fpp_sweep.report.html import safe
from fpp_sweep.report.trial_table import USAGE_NOTE, trial_table


def trials_section(info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics) -> Section:
    """Return the table of all trials, and an empty section for each of them."""
    blocks: list[Block] = [Text("No trial has started yet.", "faint")]
    if records:
        blocks = [Text(USAGE_NOTE, "usage"), trial_table(info, records, statistics), _empty_sections(records)]
    return Section("Trials", blocks, anchor="trials")


def _empty_sections(records: Sequence[TrialRecord]) -> Html:
    sections = []
    for record in records:  # the prefix keeps a record of any name apart from the page's other elements
        name = safe(record.name)
        labels = f'id="section-{name}" aria-label="{name}"'
        sections.append(f'<section class="trial" {labels} tabindex="-1" hidden></section>')
    return Html("\n".join(sections))
