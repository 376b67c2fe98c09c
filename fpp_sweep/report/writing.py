"""The report of a sweep, from its folder alone: tables, the chosen configs, picture, page; and results.json."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metric_of, metrics_shown, splits_of
from fpp_sweep.records.measurements import measure
from fpp_sweep.records.recommendation import Answer
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord, label_of
from fpp_sweep.records.texts import format_result, format_setting, values_by_setting
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.document import Section, blocks_to_markdown, paragraphs
from fpp_sweep.report.front_table import front_heading, front_table
from fpp_sweep.space.yamlfile import config_text
from fpp_sweep.spec.errors import InputError, escaped
from fpp_sweep.spec.files import files_in, read_own, write_json, written_whole
from fpp_sweep.statistics.paired import SplitStatistics

RESULTS = "results.json"
HEADER = "# Written by fpp_sweep, and overwritten or deleted by its next report: copy this file to change it."


def write_report(folder: SweepFolder, *, pages: bool, statistics: SweepStatistics | None = None) -> SweepStatistics:
    """Write `report/`, and return the statistics that its numbers rest on.

    Tables and configs take milliseconds if the statistics of an earlier report are passed; intervals are then missing
    for trials that have finished since. `pages` adds the picture and the page; these take seconds, and load Optuna,
    matplotlib and plotly.
    """
    info = folder.info()
    records = folder.trials()
    front = front_of(info, records)
    if statistics is None:
        statistics = statistics_of(folder, info, records)
    write_front(folder.report, info, front, statistics)
    write_configs(folder.report / "best", info, front, statistics)
    if pages:
        from fpp_sweep.report import figures, page  # start-up time: load matplotlib and Jinja2

        figures.write_front_picture(folder.report / "front.png", info, statistics)
        page.write_sweep_page(folder, info, records, statistics)
    return statistics


def write_latest_report(path: Path) -> Path:
    """Write the whole report of a sweep, and return the page's path.

    A driver records the end of its sweep before it writes the last report, which an older one has perhaps replaced; so
    write the report again if the sweep has ended meanwhile.
    """
    folder = SweepFolder.open(path)
    try:
        while True:
            info = folder.info()
            write_report(folder, pages=True)
            info_now = folder.info()
            if info_now.state == "running" or info_now == info:
                return folder.report / "sweep.html"
    except OSError as error:
        problem = f"{folder.report}: cannot be written ({error.strerror or error})"
        raise InputError(f"{problem}; copy the sweep to a folder that can be written, and name the copy") from error


# --- front.csv and answer.md --------------------------------------------------------------------------


def write_front(folder: Path, info: SweepInfo, front: Front, statistics: SweepStatistics) -> None:
    """Write the front as CSV, and the answer as Markdown.

    The front may be newer than the statistics; its new members then have no intervals yet.
    """
    rows = [_csv_row(info, front, statistics, record) for record in front.compared]
    heads = ["name"]
    if rows:
        heads = list(rows[0])
    with (
        written_whole(folder / "front.csv") as partial,
        partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.DictWriter(file, heads)
        writer.writeheader()
        writer.writerows(rows)
    with written_whole(folder / "answer.md") as partial:
        partial.write_text(answer_text(info, front, statistics), encoding="utf-8")


def _csv_row(info: SweepInfo, front: Front, statistics: SweepStatistics, record: TrialRecord) -> dict[str, object]:
    row: dict[str, object] = {
        "name": record.name,
        "kind": record.kind,
        "marks": "; ".join(front.remarks(record)),
        "feasible": record.feasible,
        "support": statistics.support.get(record.name, ""),
    }
    metrics = metrics_shown(info)
    splits = splits_of(info, front.compared)
    for split in splits:
        for metric in metrics:
            row[f"{metric} ({split})"] = metric_of(record.results.get(split), metric)
    for split in splits:
        for metric in metrics:
            interval = statistics.interval(record, split, metric)
            row[f"{metric} ({split}) low"] = interval.low if interval else None
            row[f"{metric} ({split}) high"] = interval.high if interval else None
    for key in values_by_setting(front.compared):
        row[key] = record.params.get(key)
    return row


def answer_text(info: SweepInfo, front: Front, statistics: SweepStatistics) -> str:
    """Return the text of answer.md: the answer, notes and the front, below the name of the sweep."""
    sections = answer_sections(statistics)
    if statistics.notes:
        sections.append(Section("Notes", paragraphs(statistics.notes)))
    if front.compared:
        sections.append(Section(front_heading(front), [front_table(info, front, statistics)]))
    return blocks_to_markdown(info.name, sections)


# --- report/best/*.yaml -------------------------------------------------------------------------------


def write_configs(folder: Path, info: SweepInfo, front: Front, statistics: SweepStatistics) -> None:
    """Write a YAML file for each chosen trial, for each of its marks, and for the recommended trial or best baseline.

    Files of an earlier front are deleted; their first line tells them from files that the user put here.
    """
    texts = _config_files(info, front, statistics.answer)
    for file in files_in(folder, "*.yaml"):
        if file.name not in texts and _is_own(file):
            file.unlink()
    for file_name, text in texts.items():
        with written_whole(folder / file_name) as partial:
            partial.write_text(text, encoding="utf-8")


def _config_files(info: SweepInfo, front: Front, answer: Answer) -> dict[str, str]:
    """Return the text of each file by name; trials with several marks have several files."""
    texts = {}
    for record in front.compared:
        marks = list(front.marks.get(record.name, []))
        if record.kind == "trial":
            marks.append(record.name)
        if record.name == answer.recommended:
            marks.append("recommended")
        if record.name == answer.best_baseline and not record.is_imported:
            marks.append("baseline")
        for mark in marks:
            texts[_file_name(mark)] = _config_text(info, front, record, answer)
    return texts


def _file_name(mark: str) -> str:
    """Return the name of a mark's file.

    >>> _file_name("best accuracy/dtd")
    'best-accuracy-dtd.yaml'
    """
    stem = re.sub(r"[^\w-]", "-", mark)
    return f"{stem}.yaml"


def _is_own(file: Path) -> bool:
    """Return True if a file begins with the header of this module's files."""
    try:
        return read_own(file).startswith(HEADER.encode())
    except OSError:  # too large, or no regular file
        return False


def _config_text(info: SweepInfo, front: Front, record: TrialRecord, answer: Answer) -> str:
    """Return a config as YAML, below comments on what it is, how good it is, and what that rests on."""
    remarks = front.remarks(record)
    if record.kind == "trial":
        is_member = record in front.members
        remarks.insert(0, "on its front" if is_member else "beside its front")
    if record.name == answer.recommended:
        remarks.append("recommended")
    if record.name == answer.best_baseline:
        remarks.append("the baseline to use; no trial is recommended")
    comments = [", ".join([f"{record.name} of sweep {info.name}", *remarks])]
    for split, result in record.results.items():
        values = [f"{metric} {format_result(metric, result)}" for metric in metrics_shown(info)]
        comments.append(f"{split}: {', '.join(values)}")
    if answer.differences and record.name == answer.champion:
        comments.append(f"compared with the baselines on {answer.design}")
        for metric in answer.metrics:
            not_beaten = []
            for baseline in answer.baselines:
                paired = answer.differences.get((baseline, metric))
                if paired is None or paired.mark != "+":
                    not_beaten.append(label_of(baseline))
            if not_beaten:
                comments.append(f"not shown to be better in {metric} than {', '.join(not_beaten)}")
    if info.model:
        comments.append(f"model {info.model}; settings in units of embeddings hold for this model only")
    lines = [HEADER]
    for comment in comments:
        lines.append(f"# {escaped(format_setting(comment))}")  # YAML has no control characters
    lines.append(config_text(record.config))
    return "\n".join(lines)


# --- results.json ------------------------------------------------------------------------------------------


def write_results(folder: SweepFolder) -> Path:
    """Write the numbers of all complete trials on the searched split, with intervals, and return the file's path."""
    info = folder.info()
    records = [record for record in folder.trials() if info.search_split in record.results]
    metrics: dict[str, None] = {}
    for record in records:
        metrics |= dict.fromkeys(record.results[info.search_split].average)
    statistics = SplitStatistics(measure(folder, records, info.search_split, list(metrics)))
    trials = []
    for record in records:
        trials.append(_result_document(folder, record, info.search_split, statistics))
    path = folder.path / RESULTS
    write_json(path, {"sweep": info.name, "split": info.search_split, "origin": info.provenance(), "trials": trials})
    return path


def _result_document(
    folder: SweepFolder, record: TrialRecord, split: str, statistics: SplitStatistics
) -> dict[str, Any]:
    result = record.results[split]
    artifacts = folder.artifacts(record.name)
    return {
        "name": record.name,
        "config": dict(record.config),
        "key": record.key,
        "files": str(artifacts.relative_to(folder.path)),
        "images": result.samples,
        "average": result.average,
        "deviation": result.deviation,
        "datasets": result.datasets,
        "by_seed": result.by_seed,
        "intervals": _intervals_of_results(statistics, record.name, result),
        "seconds": result.seconds,
    }


def _intervals_of_results(statistics: SplitStatistics, name: str, result: SplitResult) -> Mapping[str, Any]:
    """Return the interval of each average and of each dataset's metric (`ece/dtd`), or the reason why it has none."""
    intervals: dict[str, Any] = {}
    for metric in result.average:
        for key in (metric, *(f"{metric}/{dataset}" for dataset in result.datasets)):
            interval = statistics.interval(name, key)
            intervals[key] = f"no interval: {statistics.why_no_interval(name, key)}"
            if interval is not None:
                intervals[key] = {"low": interval.low, "high": interval.high}
    return intervals
