"""Output of `show`: a list of sweeps, the state of one sweep, or one trial."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fpp_sweep.cli import sweeps_below, terminal_width
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, orders_remark, values_of
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord, mean_of_shared
from fpp_sweep.records.state import state_text, time_since_change
from fpp_sweep.records.texts import format_metric, format_time, format_values, released_notes, setting_text
from fpp_sweep.report.formatting import output_width
from fpp_sweep.report.progress import repeat_command
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.space.work import NO_MAP
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, escaped, problem_of_system
from fpp_sweep.spec.messages import plural, printable
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.sweep.live import heading, trial_line
from fpp_sweep.sweep.summary import command_that_continues, summary_lines


def folder_text(path: Path) -> str:
    """Return how a sweep stands, or the list of the sweeps below a folder."""
    folder = SweepFolder(path)
    if folder.has_sweep:
        return "\n".join(_sweep_lines(folder))
    folders = sweeps_below(path)
    if not folders:
        raise InputError(f"{path}: has no sweeps; give the folder that --out named, which is `sweeps` by default")
    return sweep_table(folders)


def trial_text(path: Path, name: str) -> str:
    return "\n".join(trial_lines(SweepFolder.open(path), name))


def _sweep_lines(folder: SweepFolder) -> Iterator[str]:
    info = folder.info()
    yield from heading(folder, info.space, info.objectives, info.search_split, width=output_width())
    yield f"changed   {time_since_change(folder)}\n"
    yield from summary_lines(folder)
    continuation = command_that_continues(folder, info)
    if continuation:
        yield printable(f"continue    {continuation}")


HEADINGS = ("sweep", "state", "trials", "front", "changed")


def sweep_table(folders: Sequence[Path]) -> str:
    """Return a row for each sweep; the row of one whose records cannot be read says why."""
    rows = []
    for path in folders:
        folder = SweepFolder(path)
        changed = time_since_change(folder)
        try:
            cells = _sweep_cells(folder)
        except InputError as error:
            cells = ["unreadable", "", str(error)]
        except OSError as error:
            cells = ["unreadable", "", problem_of_system(error)]
        rows.append([path.name, *cells, changed])
    return to_text(Table.of_strings(HEADINGS, rows, text_columns=range(len(HEADINGS))), terminal_width())


def _sweep_cells(folder: SweepFolder) -> list[str]:
    info, records = folder.info(), folder.trials()
    return [state_text(folder, info), _progress(info, records), _front_in_brief(front_of(info, records))]


def _progress(info: SweepInfo, records: Sequence[TrialRecord]) -> str:
    """Return such as `12/16, 1 failed`."""
    total = info.search_settings.get("trials")
    states = Counter(record.state for record in records if record.kind == "trial")
    progress = str(states["complete"])
    if total:
        progress += f"/{total}"
    for state in ("failed", "stopped", "collapsed"):
        if states[state]:
            progress += f", {states[state]} {state}"
    return progress


def _front_in_brief(front: Front) -> str:
    """Return the number of the front's members, and the values of its knee."""
    text = plural(len(front.members), "trial")
    for member in front.members:
        if "knee" in front.marks[member.name]:
            text += f", knee {format_values(front.objectives, values_of(member))}"
    return text


LOG_LINES = 5  # last lines of a trial's log


def trial_lines(folder: SweepFolder, name: str) -> Iterator[str]:
    """Yield all that the sweep's folder says of a trial; of its metrics those that tables show."""
    record = folder.known_trial(name)
    objectives = metrics_of(folder.info().objectives)
    state, *settings = _state_lines(record)
    yield printable(state)
    for split in record.results:
        yield ""
        yield split_text(record, split, objectives)
    if record.results:
        yield ""
    for line in (*settings, *_file_lines(folder, record)):
        yield printable(line)
    yield printable(f"repeat      {repeat_command(folder, folder.info(), record)}")


def print_trial(objectives: Sequence[Objective], folder: SweepFolder, record: TrialRecord) -> None:
    """Print a line about an ended trial, and its table by dataset if it has numbers."""
    Screen(sys.stderr).draw([trial_line(record, objectives)])
    for split in record.results:
        lines = [f"{record.name}: {_settings_line(record)}", split_text(record, split, metrics_of(objectives))]
        print("\n".join(["", *lines]), flush=True)


def _settings_line(record: TrialRecord) -> str:
    """Return such as `prompt=fpp, method=tpt`."""
    settings = (f"{key}={setting_text(key, value)}" for key, value in record.params.items())
    return escaped(", ".join(settings))


def _state_lines(record: TrialRecord) -> Iterator[str]:
    parts = [f"{record.name}  {record.state}"]
    if record.started:
        parts.append(f"begun {format_time(record.started)}")
    if record.duration is not None:
        parts.append(duration(record.duration))
    parts += [f"attempt {record.attempt}", record.origin, f"config {record.key}"]
    yield ", ".join(parts)
    if record.reason:
        yield f"reason      {record.reason}"
    for key, value in (record.params or record.config).items():
        yield f"    {key} = {setting_text(key, value)}"
    if record.drift is not None:
        yield f"drift       {record.drift:.3g}"
    for name in record.broken:
        yield f"breaks      {name}, by {record.constraints[name]:.4g}"


def _file_lines(folder: SweepFolder, record: TrialRecord) -> Iterator[str]:
    """Yield the paths of a trial's prompts, and its log with its last lines."""
    for path in folder.prompt_files(record.name):
        yield f"prompt      {path}"
    lines = folder.last_log_lines(record.name, LOG_LINES)
    if lines:
        yield f"log         {folder.log_file(record.name)}"
    for line in lines:
        yield f"    {line}"


EUROSAT = "eurosat"  # dominates averages of the ten fine-grained datasets, so there is one without it as well


def split_text(record: TrialRecord, split: str, objectives: Sequence[str]) -> str:
    """Return a trial's numbers on a split, those after post-hoc maps, and notes on orders, released settings and maps.

    The tables have the metrics of the objectives and those that the catalogue shows.
    """
    result = record.results[split]
    result = replace(result, average=_shown(result.average, objectives))
    parts = [split_table(split, result)]
    for remark in (*orders_remark(record, split), *released_notes([record])):
        parts.append(f"note: {remark}")
    mapped = posthoc_table(result)
    if mapped:
        parts += ["", mapped]
        for sentence in result.notes:
            parts.append(f"note: {printable(sentence)}")
    return "\n".join(parts)


def _shown(average: Mapping[str, float], objectives: Sequence[str]) -> dict[str, float]:
    """Return the metrics that a table shows: those of the objectives, and those that the catalogue shows."""
    stems = {catalogue.parts_of(metric).stem for metric in objectives}
    values = {}
    for metric, value in average.items():
        if catalogue.is_shown(metric) or catalogue.parts_of(metric).stem in stems:
            values[metric] = value
    return values


def split_table(split: str, result: SplitResult) -> str:
    """Return a table of a trial's numbers: a row for each dataset, then the averages."""
    metrics = [metric for metric in result.average if not catalogue.parts_of(metric).posthoc]
    heads = [split, *(_heading(metric) for metric in metrics)]
    rows = []
    for name, values in (*result.datasets.items(), *averages_of(result).items()):
        cells = [name]
        for metric in metrics:
            cells.append(format_metric(metric, values.get(metric)))
        rows.append(cells)
    return to_text(Table.of_strings(heads, rows), terminal_width())


def posthoc_table(result: SplitResult) -> str:
    """Return the averages without a post-hoc map and after each; empty without maps."""
    stems: dict[str, None] = {}
    maps: dict[str, None] = {}
    for metric in result.average:
        parts = catalogue.parts_of(metric)
        if parts.posthoc:
            stems[parts.stem] = None
            maps[parts.posthoc] = None
    if not maps:
        return ""
    rows = []
    for posthoc in ("", *maps):
        cells = [posthoc or NO_MAP]
        for stem in stems:
            name = catalogue.MetricParts(stem, posthoc).of_average
            cells.append(format_metric(name, result.average.get(name)))
        rows.append(cells)
    return to_text(Table.of_strings(["post-hoc map", *(_heading(stem) for stem in stems)], rows), terminal_width())


def _heading(metric: str) -> str:
    if metric in catalogue.METRICS:
        return catalogue.METRICS[metric].heading
    return metric  # a metric of a plugin that is not loaded


def averages_of(result: SplitResult) -> dict[str, Mapping[str, float]]:
    """Return the averages over datasets: of all, and of all but EuroSAT where the datasets contain it."""
    averages: dict[str, Mapping[str, float]] = {"average": result.average}
    without_eurosat = [values for name, values in result.datasets.items() if name != EUROSAT]
    if EUROSAT in result.datasets and len(without_eurosat) > 1:
        averages[f"average without {EUROSAT}"] = mean_of_shared(without_eurosat)
    return averages
