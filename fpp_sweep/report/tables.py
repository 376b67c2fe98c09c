"""The front as CSV and JSON, the configs on it as YAML, and tables for the terminal."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fpp_sweep.records.front import (
    Front,
    format_result,
    format_setting,
    metric_of,
    metrics_shown,
    splits_of,
    values_by_setting,
    values_of,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.words import as_data, remarks, sentences
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.files import set_aside, write_json, written_whole

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence

MANIFEST = ".written.json"  # in report/best: the files that this module wrote there


def aligned(rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)) -> list[str]:
    """Lines of a table: the columns of words to the left, the others to the right.

    >>> print("\\n".join(aligned([["dataset", "acc"], ["dtd", "44.50"]])))
    dataset    acc
    dtd      44.50
    """
    from rich.cells import cell_len  # wide letters take two columns

    columns = []
    for index, column in enumerate(zip(*(map(escaped, row) for row in rows), strict=True)):
        width = max(map(cell_len, column))
        gaps = [" " * (width - cell_len(cell)) for cell in column]
        columns.append([cell + gap if index in words else gap + cell for cell, gap in zip(column, gaps, strict=True)])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def write_tables(folder: Path, info: SweepInfo, front: Front, evidence: Evidence) -> None:
    """front.csv, one row for each member and baseline, and front.json with everything about them."""
    with written_whole(folder / "front.csv") as partial, partial.open("w", newline="") as file:
        rows = _rows(info, front, evidence)
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["name"])
        writer.writeheader()
        writer.writerows(rows)
    knees = [name for name, marks in front.marks.items() if "knee" in marks]
    write_json(
        folder / "front.json",
        {
            "sweep": info.name,
            "search_split": info.search_split,
            "objectives": [{"metric": objective.metric, "goal": objective.goal} for objective in front.objectives],
            "members": [_entry(front, record) | _borne(front, evidence, record) for record in front.members],
            "rivals": [_entry(front, record) for record in front.chosen if record not in front.members],
            "baselines": [_entry(front, record) for record in front.baselines],
            "support": dict(evidence.support),
            "standing": {name: evidence.standing(name) for name in evidence.support},
            "says": list(sentences(info, front, evidence)),
            "remarks": list(remarks(info, front, evidence)),
            "knee": knees[0] if knees else None,
            "reference": front.reference,
            "hypervolume": front.hypervolume,
        },
    )


def _borne(front: Front, evidence: Evidence, record: TrialRecord) -> dict[str, object]:
    """What a member's numbers bear: by split and objective its interval, and those of its differences to baselines."""
    metrics = [objective.metric for objective in front.objectives]
    return {
        "standing": evidence.standing(record.name),
        "alike": list(evidence.alike.get(record.name, ())),
        "intervals": {
            split: {metric: as_data(found.interval(record.name, metric)) for metric in metrics}
            for split, found in evidence.splits.items()
        },
        "differences": {
            split: {
                baseline.label: {
                    metric: {"value": gap.value, "low": gap.low, "high": gap.high}
                    for metric in metrics
                    if (gap := found.difference(record.name, baseline.name, metric)) is not None
                }
                for baseline in front.baselines
            }
            for split, found in evidence.splits.items()
        },
    }


def _rows(info: SweepInfo, front: Front, evidence: Evidence) -> list[dict[str, object]]:
    splits, searched = splits_of(info, front.compared), values_by_setting(front.compared)
    return [
        {
            "name": record.name,
            "kind": record.kind,
            "marks": "; ".join(front.remarks(record)),
            "feasible": record.feasible,
            "support": evidence.support.get(record.name),
            **{
                f"{metric} ({split})": metric_of(record.results.get(split), metric)
                for split in splits
                for metric in metrics_shown(info.objectives)
            },
            **{
                f"{metric} ({split}) {end}": getattr(interval, end, None)
                for split, found in evidence.splits.items()
                for metric in metrics_shown(info.objectives)
                for interval in [found.interval(record.name, metric)]
                for end in ("low", "high")
            },
            **{key: record.params.get(key) for key in searched},
        }
        for record in front.compared
    ]


def _entry(front: Front, record: TrialRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "values": list(values_of(record)),
        "feasible": record.feasible,
        "marks": front.remarks(record),
        "origin": record.origin,
        "params": dict(record.params),
        "config": dict(record.config),
        "key": record.key,
        "constraints": dict(record.constraints),
        "results": {split: asdict(result) for split, result in record.results.items()},
    }


def write_configs(folder: Path, info: SweepInfo, front: Front) -> None:
    """Write a YAML file for each chosen trial and for each of its marks.

    A manifest lists the files that this function wrote. Files of an earlier front are deleted by that list, so that a
    file that the user put here is never deleted; one in the way of a new file is renamed.
    """
    configs = {}
    for member in front.chosen:
        text = _config(info, front, member)
        for mark in (member.name, *front.marks.get(member.name, [])):
            configs[_file_name(mark)] = text
    manifest = folder / MANIFEST
    written_before = _read_manifest(manifest)
    for file_name in written_before - set(configs):
        (folder / file_name).unlink(missing_ok=True)
    for file_name in set(configs) - written_before:
        if (folder / file_name).exists():
            set_aside(folder / file_name)
    write_json(manifest, {"files": sorted(configs)})  # first, so that a kill in between leaves no unlisted file
    for file_name, text in configs.items():
        with written_whole(folder / file_name) as partial:
            partial.write_text(text)


def _file_name(mark: str) -> str:
    """
    >>> _file_name("best accuracy/dtd")
    'best-accuracy-dtd.yaml'
    """
    stem = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in mark)
    return f"{stem}.yaml"


def _read_manifest(file: Path) -> set[str]:
    """Return the names of files that an earlier report wrote; none if the manifest is missing or damaged."""
    try:
        names = json.loads(file.read_bytes())["files"]
        return {name for name in names if Path(name).name == name and name.endswith(".yaml")}
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _config(info: SweepInfo, front: Front, member: TrialRecord) -> str:
    marks = "".join(f", {mark}" for mark in front.remarks(member))
    where = "on" if member in front.members else "beside"
    comments = [f"{member.name} of sweep {info.name}, {where} its front{marks}"]
    for split, result in member.results.items():
        values = (f"{metric} {format_result(metric, result)}" for metric in metrics_shown(info.objectives))
        comments.append(f"{split}: {', '.join(values)}")
    if info.model:
        comments.append(f"model {info.model}; settings in units of embeddings hold for it")
    lines = "".join(f"# {format_setting(comment)}\n" for comment in comments)
    return lines + yaml.safe_dump({"config": dict(member.config)}, sort_keys=False, allow_unicode=True)
