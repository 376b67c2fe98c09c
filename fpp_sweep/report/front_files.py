"""Files of the front: front.csv and front.json, and the chosen configs as YAML."""

from __future__ import annotations

import csv
import json
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
from fpp_sweep.spec.files import set_aside, write_json, written_whole

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence
    from fpp_sweep.statistics.bootstrap import Interval

MANIFEST = ".written.json"  # in report/best: the files that this module wrote there


# --- front.csv and front.json -------------------------------------------------------------------------


def write_front(folder: Path, info: SweepInfo, front: Front, evidence: Evidence) -> None:
    """Write front.csv, a row for each member and baseline, and front.json with everything about them."""
    rows = [_csv_row(info, front, evidence, record) for record in front.compared]
    with written_whole(folder / "front.csv") as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["name"])
        writer.writeheader()
        writer.writerows(rows)
    write_json(folder / "front.json", _front_document(info, front, evidence))


def _csv_row(info: SweepInfo, front: Front, evidence: Evidence, record: TrialRecord) -> dict[str, object]:
    row: dict[str, object] = {
        "name": record.name,
        "kind": record.kind,
        "marks": "; ".join(front.remarks(record)),
        "feasible": record.feasible,
        "support": evidence.support.get(record.name),
    }
    metrics = metrics_shown(info.objectives)
    for split in splits_of(info, front.compared):
        for metric in metrics:
            row[f"{metric} ({split})"] = metric_of(record.results.get(split), metric)
    for split, split_evidence in evidence.splits.items():
        for metric in metrics:
            interval = split_evidence.interval(record.name, metric)
            row[f"{metric} ({split}) low"] = None if isinstance(interval, str) else interval.low
            row[f"{metric} ({split}) high"] = None if isinstance(interval, str) else interval.high
    for key in values_by_setting(front.compared):
        row[key] = record.params.get(key)
    return row


def _front_document(info: SweepInfo, front: Front, evidence: Evidence) -> dict[str, object]:
    members = []
    for record in front.members:
        members.append(_record_document(front, record) | _evidence_document(front, evidence, record))
    rivals = [record for record in front.chosen if record not in front.members]
    knees = [name for name, marks in front.marks.items() if "knee" in marks]
    return {
        "sweep": info.name,
        "search_split": info.search_split,
        "objectives": [{"metric": objective.metric, "goal": objective.goal} for objective in front.objectives],
        "members": members,
        "rivals": [_record_document(front, record) for record in rivals],
        "baselines": [_record_document(front, record) for record in front.baselines],
        "support": dict(evidence.support),
        "standing": {name: evidence.standing(name) for name in evidence.support},
        "knee": knees[0] if knees else None,
        "reference": front.reference,
        "hypervolume": front.hypervolume,
    }


def _record_document(front: Front, record: TrialRecord) -> dict[str, object]:
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


def _evidence_document(front: Front, evidence: Evidence, record: TrialRecord) -> dict[str, object]:
    """Return a member's support, and by split its intervals and its differences to the baselines."""
    metrics = [objective.metric for objective in front.objectives]
    intervals = {}
    differences = {}
    for split, split_evidence in evidence.splits.items():
        intervals[split] = {metric: as_data(split_evidence.interval(record.name, metric)) for metric in metrics}
        differences[split] = {}
        for baseline in front.baselines:
            row = {}
            for metric in metrics:
                difference = split_evidence.difference(record.name, baseline.name, metric)
                if difference is not None:
                    row[metric] = {"value": difference.value, "low": difference.low, "high": difference.high}
            differences[split][baseline.label] = row
    return {"standing": evidence.standing(record.name), "intervals": intervals, "differences": differences}


def as_data(interval: Interval | str) -> dict[str, float] | str:
    """Return an interval, or the reason why there is none, for JSON."""
    if isinstance(interval, str):
        return interval
    return {"low": interval.low, "high": interval.high}


# --- report/best/*.yaml -------------------------------------------------------------------------------


def write_configs(folder: Path, info: SweepInfo, front: Front) -> None:
    """Write a YAML file for each chosen trial and for each of its marks.

    A manifest lists the files that this function wrote. Files of an earlier front are deleted by that list, so that a
    file that the user put here is never deleted; one in the way of a new file is renamed.
    """
    configs = {}
    for member in front.chosen:
        text = _config_text(info, front, member)
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
    """Return the name of a mark's file.

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


def _config_text(info: SweepInfo, front: Front, member: TrialRecord) -> str:
    """Return a config as YAML, below comments on what it is and how good it is."""
    on_front = "on its front" if member in front.members else "beside its front"
    comments = [", ".join([f"{member.name} of sweep {info.name}", on_front, *front.remarks(member)])]
    for split, result in member.results.items():
        values = [f"{metric} {format_result(metric, result)}" for metric in metrics_shown(info.objectives)]
        comments.append(f"{split}: {', '.join(values)}")
    if model := info.tags.get("model"):
        comments.append(f"model {model}; settings in units of embeddings hold for this model only")
    lines = [f"# {format_setting(comment)}\n" for comment in comments]
    config = yaml.safe_dump({"config": dict(member.config)}, sort_keys=False, allow_unicode=True)
    return "".join(lines) + config
