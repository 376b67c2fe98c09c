"""sweep.html: a whole sweep on one page, from the template sweep.html.j2."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, splits_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.state import is_running
from fpp_sweep.records.texts import format_range, setting_text, values_by_setting, varies
from fpp_sweep.report import progress
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.front_table import accuracy_and_objectives, dataset_table, front_heading, front_table, trial_table
from fpp_sweep.report.html import write_page
from fpp_sweep.report.plots import front_plots, settings_plots
from fpp_sweep.report.trial_sections import trial_sections
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.spec.validation import as_mapping

RELOAD_SECONDS = 60  # time after which the page of a running sweep loads itself again


def write_sweep_page(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics
) -> None:
    """Write report/sweep.html; while the sweep is running, the page loads itself again."""
    front = statistics.front
    running = is_running(folder, info)
    charts = front_plots(info, statistics)
    settings = settings_plots(info, front)
    plots: dict[str, Any] = {}
    for group in (charts, *settings.values()):
        for plot in group:
            plots[plot.name] = {"traces": plot.traces, "layout": plot.layout}
    write_page(
        folder.report / "sweep.html",
        "sweep.html.j2",
        title=info.name,
        reload_seconds=RELOAD_SECONDS if running else 0,
        info=info,
        question=info.space.get("question", ""),
        front=front,
        notes=statistics.notes,
        state=progress.state_sentence(folder, info),
        progress=progress.progress_line(info, records, time.time()) if running else "",
        counts=progress.counts_of_states(records),
        costs=" ".join(progress.cost_sentences(info, records)),
        answer=answer_sections(statistics),
        front_heading=front_heading(front),
        charts=charts,
        front_table=front_table(info, front, statistics, metrics=accuracy_and_objectives(front), settings=False),
        dataset_tables=[dataset_table(front, statistics, split) for split in splits_of(info, front.compared)],
        trial_table=trial_table(info, records, statistics),
        settings=settings,
        constants=_constant_settings(front),
        images=_images(info, front),
        ranges=_ranges(info),
        commands=_commands(folder, info),
        versions=[f"{name} {version}" for name, version in info.versions.items()],
        data={"plots": plots, "trials": trial_sections(folder, info, records, front)},
    )


def _constant_settings(front: Front) -> list[str]:
    constants = []
    for key, values in values_by_setting(front.finished).items():
        if not varies(values):
            constants.append(f"{key} = {setting_text(key, values[0])}")
    return constants


def _images(info: SweepInfo, front: Front) -> list[str]:
    """Return such as `1000 images of val` for each split."""
    counts = []
    for split in splits_of(info, front.compared):
        samples = [record.results[split].samples for record in front.compared if split in record.results]
        if samples:
            counts.append(f"{max(samples)} images of {split}")
    return counts


def _ranges(info: SweepInfo) -> dict[str, str]:
    """Return the searched range of each setting as text."""
    ranges = {}
    for key, values in as_mapping(info.space.get("params", {})).items():
        ranges[key] = format_range(values, key)
    return ranges


def _commands(folder: SweepFolder, info: SweepInfo) -> dict[str, Any]:
    return {
        "Run this sweep": info.command,
        "Show its current state": runnable(command_line("show", [str(folder.path)])),
        "Write this page again": runnable(command_line("show", [str(folder.path), "--page"])),
    }
