"""One trial on the terminal: its settings, its numbers by dataset, its files, and the command that repeats it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fpp_sweep.cli.terminal import terminal_width
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_metric, format_setting, format_time, mean_of_shared, orders_remark
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.records.released_marks import released_notes
from fpp_sweep.records.skipped_images import skipped_lines
from fpp_sweep.report.repeat import repeat_command
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.space.work import NO_MAP
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import printable
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.sweep.display import trial_line

LOG_LINES = 5  # last lines of a trial's log
EUROSAT = "eurosat"  # dominates averages of the ten fine-grained datasets, so there is one without it as well


def trial_lines(folder: SweepFolder, name: str, *, every_metric: bool = False) -> Iterator[str]:
    """Yield all that the sweep's folder says of a trial; of its metrics those that tables show, or every one."""
    record = folder.known_trial(name)
    shown = None
    if not every_metric:
        shown = metrics_of(folder.info().objectives)
    for line in (*_state_lines(record), *_file_lines(folder, record)):
        yield printable(line)
    for split in record.results:
        yield ""
        yield split_text(record, split, shown)
        for line in skipped_lines(folder, record.name, split):
            yield printable(line)
    yield printable(f"repeat      {repeat_command(folder, folder.info(), record)}")


def print_trial(objectives: Sequence[Objective], folder: SweepFolder, record: TrialRecord) -> None:
    """Print a line about an ended trial, and its table by dataset if it has numbers."""
    Screen(sys.stderr).draw([trial_line(record, objectives)])
    for split in record.results:
        lines = [f"{record.name}: {_settings_line(record)}", split_text(record, split, metrics_of(objectives))]
        lines += [printable(line) for line in skipped_lines(folder, record.name, split)]
        print("\n".join(["", *lines]), flush=True)


def _settings_line(record: TrialRecord) -> str:
    """Return such as `prompt=fpp, method=tpt`."""
    settings = (f"{key}={format_setting(value)}" for key, value in record.params.items())
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
        yield f"    {key} = {format_setting(value)}"
    expected = ""
    if record.state != "complete":
        expected = f", as expected after {record.fidelity:.0%} of the images"
    for name in record.broken:
        yield f"breaks      {name}, by {record.constraints[name]:.4g}{expected}"


def _file_lines(folder: SweepFolder, record: TrialRecord) -> Iterator[str]:
    """Yield the paths of a trial's prompts, and its log with its last lines."""
    for path in folder.prompt_files(record.name):
        yield f"prompt      {path}"
    lines = folder.last_log_lines(record.name, LOG_LINES)
    if lines:
        yield f"log         {folder.log_file(record.name)}"
    for line in lines:
        yield f"    {line}"


def split_text(record: TrialRecord, split: str, shown: Sequence[str] | None = None) -> str:
    """Return a trial's numbers on a split, those after post-hoc maps, and notes on orders, released settings and maps.

    `shown` are metrics that the tables have beside those that the catalogue shows; None: they have all metrics.
    """
    result = record.results[split]
    if shown is not None:
        result = replace(result, average=_shown(result.average, shown))
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
