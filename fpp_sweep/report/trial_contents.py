"""The contents of the trials' sections on a page: settings, numbers, reliability diagrams, log and commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, metrics_shown
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.records.reliability import read_reliability
from fpp_sweep.records.texts import format_result, format_setting, format_time, metric_format, setting_text
from fpp_sweep.report.repeat import repeat_command
from fpp_sweep.space.yamlfile import config_text
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.errors import InputError, escaped
from fpp_sweep.spec.messages import printable
from fpp_sweep.spec.progress import duration

LOG_LINES = 5  # last lines of a trial's log


def trial_contents(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], front: Front
) -> dict[str, dict[str, Any]]:
    """Return the contents of each trial's section, by trial name, as values that JSON can hold.

    trials.js reads these keys and makes the section's elements of them: a new key needs code there as well.
    """
    contents = {}
    for record in records:
        numbers = {}
        diagrams = {}  # reliability diagrams
        for split, result in record.results.items():
            numbers[split] = _metric_rows(result, info)
            diagrams[split] = read_reliability(folder, record.name, split)
        contents[record.name] = {
            "summary": _summary(record, front),
            "reason": format_setting(record.reason or ""),
            "settings": _settings(record),
            "numbers": numbers,
            "diagrams": diagrams,
            "log": _last_log_lines(folder, record),
            "prompts": _prompt_files(folder, record),
            "repeat": repeat_command(folder, info, record),
            "yaml": _config_text(info, record),
        }
    return contents


def _summary(record: TrialRecord, front: Front) -> str:
    """Return a trial's state, remarks, origin, start and duration in one line."""
    parts = [record.state, *front.remarks(record), record.origin]
    if record.started:
        parts.append(f"begun {format_time(record.started)}")
    if record.duration is not None:
        parts.append(duration(record.duration))
    if record.attempt > 1:
        parts.append(f"attempt {record.attempt}")
    distinct_parts = dict.fromkeys(parts)
    return ", ".join(distinct_parts)


def _settings(record: TrialRecord) -> list[list[str]]:
    """Return the settings that were searched, then those that the trial's method reads."""
    settings = dict(record.params)
    for key, value in relevant(record.config).items():
        settings.setdefault(key, value)
    rows = []
    for key, value in settings.items():
        rows.append([key, setting_text(key, value)])
    return rows


def _metric_rows(result: SplitResult, info: SweepInfo) -> list[list[str]]:
    """Return a table of metrics: a row of their names, a row for each dataset, and a row of averages.

    The objectives come first, then the metrics that every table of a trial has, then all others.
    """
    names = [*metrics_shown(info), *sorted(result.average, key=catalogue.is_shown, reverse=True)]
    metrics = [name for name in dict.fromkeys(names) if name in result.average or result.cost(name) is not None]
    formats = [(metric, metric_format(metric)) for metric in metrics]
    rows = [["", *metrics]]
    for dataset, values in result.datasets.items():
        row = [dataset]
        for metric, specification in formats:
            text = ""
            if metric in values:
                text = format(values[metric], specification)
            row.append(text)
        rows.append(row)
    averages = ["average"]
    for metric in metrics:
        averages.append(format_result(metric, result))
    rows.append(averages)
    return rows


def _last_log_lines(folder: SweepFolder, record: TrialRecord) -> list[str]:
    """Return the last lines of a trial's log, safe to show; none if the log cannot be read."""
    try:
        lines = folder.last_log_lines(record.name, LOG_LINES)
    except (InputError, OSError):  # no file of this folder, or one that cannot be read
        return []
    return [printable(line) for line in lines]


def _prompt_files(folder: SweepFolder, record: TrialRecord) -> list[str]:
    """Return the paths of the prompts that were pretrained for a trial, inside the folder of the sweep."""
    try:
        files = folder.prompt_files(record.name)
    except (InputError, OSError):
        return []
    paths = []
    for file in files:
        paths.append(f"artifacts/{record.name}/prompts/{file.name}")
    return paths


def _config_text(info: SweepInfo, record: TrialRecord) -> str:
    """Return the whole configuration as `evaluate --config` reads it."""
    title = escaped(format_setting(f"{record.name} of sweep {info.name}"))  # YAML has no control characters
    return f"# {title}\n{config_text(record.config)}"
