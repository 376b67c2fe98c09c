"""The front as CSV and JSON, and the configs on it as YAML."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from fpp_sweep.files import written_whole
from fpp_sweep.records.front import Front, format_metric, format_setting, metric_of, metrics_shown, splits_of, values_of
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord


def write_tables(folder: Path, info: SweepInfo, front: Front) -> None:
    """front.csv, one row for each member and baseline, and front.json with everything about them."""
    with written_whole(folder / "front.csv") as partial, partial.open("w", newline="") as file:
        rows = list(_rows(info, front))
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)) or ["name"])
        writer.writeheader()
        writer.writerows(rows)
    with written_whole(folder / "front.json") as partial:
        partial.write_text(json.dumps(_document(info, front), indent=1, allow_nan=False) + "\n")


def _rows(info: SweepInfo, front: Front) -> Iterator[dict[str, object]]:
    records = [*front.members, *front.baselines]
    searched = list(dict.fromkeys(key for record in records for key in record.params))
    for record in records:
        yield {
            "name": record.name,
            "kind": record.kind,
            "marks": "; ".join(front.marks.get(record.name, [])),
            "feasible": record.feasible,
            **{
                f"{metric} ({split})": metric_of(record.results.get(split), metric)
                for split in splits_of(info, records)
                for metric in metrics_shown(info.objectives)
            },
            **{key: record.params.get(key) for key in searched},
        }


def _document(info: SweepInfo, front: Front) -> dict[str, object]:
    knees = [name for name, marks in front.marks.items() if "knee" in marks]
    return {
        "sweep": info.name,
        "search_split": info.search_split,
        "objectives": [{"metric": objective.metric, "goal": objective.goal} for objective in front.objectives],
        "members": [_entry(record, front.marks[record.name]) for record in front.members],
        "baselines": [_entry(record, []) for record in front.baselines],
        "knee": knees[0] if knees else None,
        "reference": front.reference,
        "hypervolume": front.hypervolume,
    }


def _entry(record: TrialRecord, marks: Sequence[str]) -> dict[str, object]:
    return {
        "name": record.name,
        "values": list(values_of(record)),
        "feasible": record.feasible,
        "marks": list(marks),
        "origin": record.origin,
        "params": dict(record.params),
        "config": dict(record.config),
        "key": record.key,
        "constraints": dict(record.constraints),
        "results": {split: asdict(result) for split, result in record.results.items()},
    }


def write_configs(folder: Path, info: SweepInfo, front: Front) -> None:
    """A YAML for each member, for the best at each objective and for the knee; those of former members go."""
    configs = {f"{member.name}.yaml": _config(info, front, member) for member in front.members}
    for member in front.members:
        for mark in front.marks[member.name]:
            name = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in mark)
            configs[f"{name}.yaml"] = configs[f"{member.name}.yaml"]
    for name, text in configs.items():
        with written_whole(folder / name) as partial:
            partial.write_text(text)
    for path in folder.glob("[!.]*.yaml"):
        if path.name not in configs:
            path.unlink()


def _config(info: SweepInfo, front: Front, member: TrialRecord) -> str:
    values = (
        f"{split}: {', '.join(_told(result, metric) for metric in metrics_shown(info.objectives))}"
        for split, result in member.results.items()
    )
    marks = "".join(f", {mark}" for mark in front.marks[member.name])
    comments = [f"{member.name} of sweep {info.name}, on its front{marks}", *values, *_use(info)]
    lines = "".join(f"# {format_setting(comment)}\n" for comment in comments)
    return lines + yaml.safe_dump({"config": dict(member.config)}, sort_keys=False, allow_unicode=True)


def _use(info: SweepInfo) -> list[str]:
    model = info.tags.get("model")
    return [f"model {model}; settings in units of embeddings hold for it"] if model else []


def _told(result: SplitResult, metric: str) -> str:
    return f"{metric} {format_metric(metric, metric_of(result, metric), result.deviation.get(metric))}"
