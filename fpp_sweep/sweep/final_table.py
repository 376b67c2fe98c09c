"""The answer of a sweep, and the front with the baselines beside it, as text for a terminal."""

from __future__ import annotations

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.answer_section import answer_sections, settings_table
from fpp_sweep.report.document import Block, Document, Section, document_to_text
from fpp_sweep.report.front_table import front_table
from fpp_sweep.spec.messages import plural


def final_table(info: SweepInfo, statistics: SweepStatistics, width: int, *, color: bool = False) -> str:
    """Return the answer, the front, and the settings of its trials, in lines of at most `width` columns."""
    front = statistics.front
    sections = answer_sections(statistics)
    finished = plural(len(front.finished), "finished trial")
    title = f"front of {info.name}: {len(front.members)} of {finished}, by {info.goals} on {info.search_split}"
    settings_title = "Settings of the front"
    if len(front.chosen) > len(front.members):
        title += "; then other finalists"
        settings_title = "Settings of the front and other finalists"
    if front.evaluate_only:
        title = f"trials of {info.name} on {info.search_split}"
        if not front.finished:
            title = f"no trial of {info.name} has finished"
        settings_title = "Settings of the trials"
    blocks: list[Block] = [front_table(info, front, statistics, settings=False, title=title)]
    settings = settings_table(front.chosen, settings_title)
    if not statistics.answer.finalists and len(settings.columns) > 1:
        blocks.append(settings)
    sections.append(Section("", blocks))
    return document_to_text(Document("", sections), width, color=color).removeprefix("\n")
