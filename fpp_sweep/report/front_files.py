"""Files of the front: front.csv and answer.md, and the chosen configs as YAML."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import Front, metric_of, metrics_shown, splits_of
from fpp_sweep.records.recommendation import Answer
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.texts import format_result, format_setting, values_by_setting
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.document import Section, blocks_to_markdown, paragraphs
from fpp_sweep.report.front_table import front_heading, front_table
from fpp_sweep.space.yamlfile import config_text
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.files import files_in, read_own, written_whole
from fpp_sweep.spec.names import label_of

HEADER = "# Written by fpp_sweep, and overwritten or deleted by its next report: copy this file to change it."


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
        "support": statistics.support.word(record.name),
    }
    metrics = metrics_shown(info)
    splits = splits_of(info, front.compared)
    for split in splits:
        for metric in metrics:
            row[f"{metric} ({split})"] = metric_of(record.results.get(split), metric)
    for split in splits:
        for metric in metrics:
            interval = statistics.interval(record, split, metric)
            low = high = None
            if not isinstance(interval, str):
                low, high = interval.low, interval.high
            row[f"{metric} ({split}) low"] = low
            row[f"{metric} ({split}) high"] = high
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
    if answer.differences and record.name in answer.finalists:
        comments.append(f"compared with the baselines on {answer.design}")
        for metric in answer.metrics:
            not_beaten = _baselines_not_beaten(answer, record.name, metric)
            if not_beaten:
                comments.append(f"not shown to be better in {metric} than {', '.join(not_beaten)}")
    if info.model:
        comments.append(f"model {info.model}; settings in units of embeddings hold for this model only")
    lines = [HEADER]
    for comment in comments:
        lines.append(f"# {escaped(format_setting(comment))}")  # YAML has no control characters
    lines.append(config_text(record.config))
    return "\n".join(lines)


def _baselines_not_beaten(answer: Answer, name: str, metric: str) -> list[str]:
    beaten = answer.beats(name).get(metric, [])
    return [label_of(baseline) for baseline in answer.baselines if baseline not in beaten]
