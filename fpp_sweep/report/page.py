"""sweep.html: a whole sweep on one page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, format_setting, splits_of, values_by_setting, varies
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.dataset_heatmap import heat_map
from fpp_sweep.report.document import Block, Details, Document, PlotGroup, Section, Text, paragraphs
from fpp_sweep.report.effects import MAX_TRIALS, Effects, moved_values_note
from fpp_sweep.report.front_table import dataset_table, front_heading, front_table
from fpp_sweep.report.html import write_html
from fpp_sweep.report.plots import front_plots, hypervolume_plot, importance_plot
from fpp_sweep.report.provenance import provenance_section
from fpp_sweep.report.settings_plots import map_plots, parallel_plot, slice_plots
from fpp_sweep.report.timeline import (
    busy_share,
    cost_sentences,
    counts_of_states,
    growth_sentences,
    progress_line,
    read_workers,
    state_sentence,
    timeline_plot,
)
from fpp_sweep.report.trial_sections import trial_contents, trials_section

RELOAD_SECONDS = 60  # time after which the page of a running sweep loads itself again
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
CURVES = (
    f"A line is an objective as a model (a Gaussian process of at most {MAX_TRIALS} finished trials) has it: the mean "
    "over all values of the other settings. Its band is the 95 % interval of that mean; trials scatter more."
)
MAPS = (
    "The mean over all values of the other settings, by the same model: blue is better than the mean of the whole "
    "space, and red worse. Grey: the model cannot tell which of the two. Circles are trials."
)
SHARES = (
    "The share of the model's variance that goes if the setting is averaged out; with interactions the shares add up "
    "to more than 1. Whiskers are 95 % intervals."
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
        _settings_section(report),
        _datasets_section(report),
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
    blocks.append(Details("How to read this", paragraphs(READING)))
    return Section(front_heading(front), blocks, anchor="front")


def _settings_section(report: SweepReport) -> Section:
    info, front = report.info, report.statistics.front
    parallel = parallel_plot(info, front)
    all_settings: list[Block] = [parallel, Text(_constant_settings(front), "faint")]
    if parallel.traces:
        all_settings.insert(0, Text("A line for each trial. Drag along an axis to keep the lines through it.", "usage"))
    blocks = [Section("All settings", all_settings)]
    slices = slice_plots(info, front, report.effects)
    if slices:
        blocks.append(Section("One setting at a time", [PlotGroup(slices), *_effect_notes(report, CURVES)]))
    maps = map_plots(info, front, report.effects)
    if maps:
        blocks.append(Section("Two settings at a time", [PlotGroup(maps), Text(MAPS, "faint")]))
    blocks.append(Section("Importance", [importance_plot(report.effects), *_effect_notes(report, SHARES)]))
    return Section("Settings", blocks, anchor="settings")


def _constant_settings(front: Front) -> str:
    if len(front.finished) < 2:
        return ""
    constants = []
    for key, values in values_by_setting(front.finished).items():
        if not varies(values):
            constants.append(f"{key} = {format_setting(values[0])}")
    if not constants:
        return ""
    return f"The same in all finished trials: {', '.join(constants)}."


def _effect_notes(report: SweepReport, explanation: str) -> Iterator[Block]:
    skipped = [row for row in report.effects if row.skipped]
    if len(skipped) == len(report.effects):  # the placeholder of the importances gives the reasons
        return
    for row in skipped:
        yield Text(f"{row.metric}: {row.skipped}.", "faint")
    yield Text(explanation, "faint")
    yield Text(moved_values_note(report.statistics.front), "faint")


def _datasets_section(report: SweepReport) -> Section:
    info, front = report.info, report.statistics.front
    explanation = (
        "A cell is a trial's value on a dataset minus the dataset's median; blue is better, best trials on top."
    )
    blocks: list[Block] = [Section("Gains and losses", [heat_map(info, front), Text(explanation, "faint")])]
    for split in splits_of(info, front.compared):
        table = dataset_table(front, report.statistics, split)
        if table.rows:
            blocks.append(table)
    if not front.compared:
        blocks.append(Text(front.why_empty, "faint"))
    return Section("Datasets", blocks, anchor="datasets")


def _progress_section(report: SweepReport) -> Section:
    front = report.statistics.front
    workers = read_workers(report.folder.logs)
    costs = cost_sentences(report.info, report.records, is_running=report.is_running)
    blocks: list[Block] = [*paragraphs(costs)]
    growth = paragraphs(growth_sentences(report.info, front))
    blocks.append(Section("Hypervolume", [hypervolume_plot(front), *growth]))
    blocks.append(Section("Workers", [Text(busy_share(workers)), timeline_plot(workers, report.records)]))
    return Section("Progress", blocks, anchor="progress")
