"""The sections of trials on a page: numbers, a reliability diagram, settings, the command that repeats it, its log."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.core.metrics import BINS
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, metrics_shown
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.records.texts import (
    format_metric,
    format_result,
    format_setting,
    format_time,
    metric_format,
    setting_text,
)
from fpp_sweep.report.html import render
from fpp_sweep.report.progress import repeat_command
from fpp_sweep.space.yamlfile import config_text
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.errors import InputError, escaped
from fpp_sweep.spec.files import read_own
from fpp_sweep.spec.messages import printable
from fpp_sweep.spec.progress import duration
from fpp_sweep.statistics.block_stats import bins_from_bytes

LOG_LINES = 5  # last lines of a trial's log
IMAGES_HEIGHT = 12  # of the largest bar below a reliability diagram


def trial_sections(
    folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord], front: Front
) -> dict[str, str]:
    """Return the section of each trial by its name, as HTML."""
    sections = {}
    for record in records:
        diagram_split = "test" if "test" in record.results else info.search_split
        sections[record.name] = render(
            "trial.html.j2",
            name=record.name,
            summary=_summary(record, front),
            reason=format_setting(record.reason or ""),
            numbers={split: _numbers(result, info) for split, result in record.results.items()},
            diagram_split=diagram_split,
            bins=_bins(folder, record, diagram_split),
            settings=_settings(record),
            repeat=repeat_command(folder, info, record),
            log=_last_log_lines(folder, record),
            prompts=_prompt_files(folder, record),
            yaml=_config_text(info, record),
        )
    return sections


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


def _settings(record: TrialRecord) -> list[tuple[str, str]]:
    """Return the settings that were searched, then those that the trial's method reads."""
    settings = dict(record.params)
    for key, value in relevant(record.config).items():
        settings.setdefault(key, value)
    texts = []
    for key, value in settings.items():
        texts.append((key, setting_text(key, value)))
    return texts


def _numbers(result: SplitResult, info: SweepInfo) -> list[list[str]]:
    """Return the names of metrics, then a row for each dataset, one of averages, and one of deviations over seeds.

    The objectives come first, then the metrics that every table of a trial has, then all others.
    """
    names = [*metrics_shown(info), *sorted(result.average, key=catalogue.is_shown, reverse=True)]
    metrics = [name for name in dict.fromkeys(names) if name in result.average or result.cost(name) is not None]
    formats = [(metric, metric_format(metric)) for metric in metrics]
    rows = [metrics]
    for dataset, values in result.datasets.items():
        row = [dataset]
        for metric, specification in formats:
            row.append(format(values[metric], specification) if metric in values else "")
        rows.append(row)
    averages, deviations = ["average"], ["standard deviation over seeds"]
    for metric in metrics:
        averages.append(format_result(metric, result))
        deviations.append(format_metric(metric, result.deviation.get(metric)))
    rows.append(averages)
    if any(deviations[1:]):
        rows.append(deviations)
    return rows


def _bins(folder: SweepFolder, record: TrialRecord, split: str) -> list[dict[str, float]]:
    """Return the bars of a reliability diagram whose sides are 100, over all datasets and seeds."""
    bars: list[dict[str, float]] = []
    try:
        file = read_own(folder.artifacts(record.name) / split / BLOCK_STATS_FILE)
        images, correct, confidences = bins_from_bytes(file)
    except (OSError, ValueError):  # no file, or a damaged one
        return bars
    for index, count in enumerate(images.tolist()):
        if count:
            accuracy, confidence = 100 * correct[index] / count, 100 * confidences[index] / count
            bar = {"x": 100 * index / BINS, "top": 100 - accuracy, "gap_top": 100 - max(accuracy, confidence)}
            bar |= {"gap": abs(accuracy - confidence), "images": IMAGES_HEIGHT * count / images.max()}
            bars.append(bar)
    return bars


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
