"""The answer of a sweep, and the front with the baselines beside it, as text for a terminal."""

from __future__ import annotations

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import Front
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.answer_section import answer_sections, settings_table
from fpp_sweep.report.document import Block, Section, blocks_to_text
from fpp_sweep.report.front_table import front_table
from fpp_sweep.spec.messages import plural


def final_table(info: SweepInfo, statistics: SweepStatistics, width: int) -> str:
    """Return the answer, the front, and the settings of its trials, in lines of at most `width` columns."""
    front = statistics.front
    sections = answer_sections(statistics)
    blocks: list[Block] = [front_table(info, front, statistics, settings=False, title=_title(info, front))]
    settings = settings_table(front.chosen, _settings_title(front))
    if not statistics.answer.finalists and len(settings.columns) > 1:
        blocks.append(settings)
    sections.append(Section("", blocks))
    return blocks_to_text(sections, width).removeprefix("\n")


def _title(info: SweepInfo, front: Front) -> str:
    """Return the title of the table of the front, or of the trials if the sweep has no search."""
    if front.evaluate_only and not front.finished:
        return f"no trial of {info.name} has finished"
    if front.evaluate_only:
        return f"trials of {info.name} on {info.search_split}"
    finished = plural(len(front.finished), "finished trial")
    title = f"front of {info.name}: {len(front.members)} of {finished}, by {info.goals} on {info.search_split}"
    if _has_other_finalists(front):
        title += "; then other finalists"
    return title


def _settings_title(front: Front) -> str:
    if front.evaluate_only:
        return "Settings of the trials"
    if _has_other_finalists(front):
        return "Settings of the front and other finalists"
    return "Settings of the front"


def _has_other_finalists(front: Front) -> bool:
    """Return whether there are finalists that are not on the front."""
    return len(front.chosen) > len(front.members)
