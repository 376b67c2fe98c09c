"""The section of a page on the searched settings: plots, effects and importance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fpp_sweep.records.front import Front
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.texts import setting_text, values_by_setting, varies
from fpp_sweep.report.document import Block, PlotGroup, Section, Text
from fpp_sweep.report.effects import MAX_TRIALS, Effects, moved_values_note
from fpp_sweep.report.plots import importance_plot
from fpp_sweep.report.settings_plots import map_plots, parallel_plot, slice_plots

# explanations below the plots
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


def settings_section(info: SweepInfo, front: Front, effects: Sequence[Effects]) -> Section:
    """Return the plots of all settings, of one and of two at a time, and their importance."""
    parallel = parallel_plot(info, front)
    all_settings: list[Block] = [parallel, Text(_constant_settings(front), "faint")]
    if parallel.traces:
        all_settings.insert(0, Text("A line for each trial. Drag along an axis to keep the lines through it.", "usage"))
    blocks = [Section("All settings", all_settings)]
    slices = slice_plots(info, front, effects)
    if slices:
        blocks.append(Section("One setting at a time", [PlotGroup(slices), *_effect_notes(front, effects, CURVES)]))
    maps = map_plots(info, front, effects)
    if maps:
        blocks.append(Section("Two settings at a time", [PlotGroup(maps), Text(MAPS, "faint")]))
    blocks.append(Section("Importance", [importance_plot(effects), *_effect_notes(front, effects, SHARES)]))
    return Section("Settings", blocks, anchor="settings")


def _constant_settings(front: Front) -> str:
    if len(front.finished) < 2:
        return ""
    constants = []
    for key, values in values_by_setting(front.finished).items():
        if not varies(values):
            constants.append(f"{key} = {setting_text(key, values[0])}")
    if not constants:
        return ""
    return f"The same in all finished trials: {', '.join(constants)}."


def _effect_notes(front: Front, effects: Sequence[Effects], explanation: str) -> Iterator[Block]:
    skipped = [row for row in effects if row.skipped]
    if len(skipped) == len(effects):  # the placeholder of the importances gives the reasons
        return
    for row in skipped:
        yield Text(f"{row.metric}: {row.skipped}.", "faint")
    yield Text(explanation, "faint")
    yield Text(moved_values_note(front), "faint")
