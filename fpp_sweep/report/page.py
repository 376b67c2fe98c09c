"""sweep.html: a whole sweep on one page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.datasets_section import datasets_section
from fpp_sweep.report.document import Block, Details, Document, Section, Text, paragraphs
from fpp_sweep.report.effects import Effects
from fpp_sweep.report.front_table import front_heading, front_table
from fpp_sweep.report.html import write_html
from fpp_sweep.report.plots import front_plots, hypervolume_plot
from fpp_sweep.report.progress import cost_sentences, counts_of_states, progress_line, state_sentence
from fpp_sweep.report.provenance import provenance_section
from fpp_sweep.report.settings_section import settings_section
from fpp_sweep.report.trial_contents import trial_contents
from fpp_sweep.report.trial_sections import trials_section

RELOAD_SECONDS = 60  # time after which the page of a running sweep loads itself again
COLOURS = (  # of the rows and cells of all tables
    "Blue rows are the knee and the best of the front in each objective. Green differences are significantly better "
    "than the baseline, red ones significantly worse."
)
# explanations below the charts
READING = (
    "Intervals are 95 % intervals over images, and over seeds if records have several; they say nothing about other "
    "datasets.",
    "Support for being on the front is likely in at least 80 % of the resamples of the images. It is unlikely if one "
    "other trial is clearly ahead in every objective, and uncertain in all other cases.",
    "Hollow markers are the same trials on later splits, at the end of a solid line in the final stage. Point at a "
    "marker to see its settings, and click it to read all about the trial. Draw a box to mark trials: all charts and "
    "the table then show these. A double click ends it.",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepReport:
    """A sweep with everything that was computed for its page."""

    folder: SweepFolder
    info: SweepInfo
    records: Sequence[TrialRecord]
    statistics: SweepStatistics
    effects: Sequence[Effects]
    is_running: bool  # a driver runs the sweep now


def write_page(report: SweepReport) -> None:
    """Write report/sweep.html; while the sweep is running, the page loads itself again."""
    reload_seconds = 0  # the page of an ended sweep stays as it is
    if report.is_running:
        reload_seconds = RELOAD_SECONDS
    write_html(
        report.folder.report / "sweep.html",
        sweep_document(report),
        trials=trial_contents(report.folder, report.info, report.records, report.statistics.front),
        reload_seconds=reload_seconds,
    )


def sweep_document(report: SweepReport) -> Document:
    """Return the page: question, answer, front, trials, settings, datasets, progress and provenance."""
    sections = [
        *answer_sections(report.statistics),
        _front_section(report),
        trials_section(report.info, report.records, report.statistics),
        settings_section(report.info, report.statistics.front, report.effects),
        datasets_section(report.info, report.statistics),
        _progress_section(report),
        provenance_section(report.folder, report.info, report.statistics.front),
    ]
    return Document(report.info.name, sections, introduction=list(_introduction(report)))


def _introduction(report: SweepReport) -> Iterator[Block]:
    info, front = report.info, report.statistics.front
    yield Text(info.space.get("question", ""))
    yield Text(state_sentence(report.folder, info), "faint")
    if report.is_running:
        yield Text(progress_line(info, report.records, time.time()), "lead")
    on_front = f"{len(front.members)} on the front"
    if front.infeasible:
        on_front += f", {len(front.infeasible)} with a broken constraint"
    yield Text(f"{info.goals} on the {info.search_split} split: {counts_of_states(report.records)}; {on_front}.")
    if info.search_split == "test" and not front.evaluate_only:
        yield Text("Settings were searched on the test split: its numbers are optimistic.", "warning")
    for note in report.statistics.notes:
        yield Text(note, "warning")


def _front_section(report: SweepReport) -> Section:
    info, front = report.info, report.statistics.front
    blocks: list[Block] = [*front_plots(info, report.statistics)]
    if front.compared:
        blocks.append(front_table(info, front, report.statistics))
        blocks.append(Text(COLOURS, "faint"))
    blocks.append(Details("How to read this", paragraphs(READING)))
    return Section(front_heading(front), blocks, anchor="front")


def _progress_section(report: SweepReport) -> Section:
    front = report.statistics.front
    costs = cost_sentences(report.info, report.records)
    blocks: list[Block] = [*paragraphs(costs)]
    blocks.append(Section("Hypervolume", [hypervolume_plot(front)]))
    return Section("Progress", blocks, anchor="progress")
