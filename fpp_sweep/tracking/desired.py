"""What MLflow should show of a sweep: plain values computed from its records, the same ones each time.

One run for the sweep and, below it, one for each trial and baseline. A run's metrics are few enough to read (the rest
is in its `metrics.csv`), its texts fit MLflow's limits, and every number has the step and the time of its record, which
makes writing idempotent.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from fpp_sweep.records.front import format_metric, format_range, format_setting, metrics_shown
from fpp_sweep.records.records import ENDED, SplitResult, SweepInfo, TrialRecord
from fpp_sweep.spec.catalogue import sign

ID_TAG = "fpp_sweep.id"  # identifies a run: a run with it is updated, not created again
SWEEP_TAG = "fpp_sweep.sweep"  # the same for all runs of a sweep
PARENT_TAG = "mlflow.parentRunId"  # what makes a run a child in MLflow

KEY_LIMIT = 250  # MLflow's, of the names of params, metrics and tags
PARAM_LIMIT = 6000  # MLflow's; it cuts longer ones without a word
TAG_LIMIT = 5000  # of hosted MLflow; the open one allows 8000
REASON_LIMIT = 500  # a table's cell, and one line; the traceback is an artifact
NAME_LIMIT = 80  # of a run: what the legend of a chart still shows
# six averages, two times, two objectives on test, and both objectives on eleven datasets, the most the paper has
METRICS_LIMIT = 32
AVERAGES = 6  # metrics whose averages are shown, unless the objectives are more
WANTED = ("nll", "brier", "aurc")  # of these, before the others
DESCRIBED = 40  # records in the sweep's description
STATUS = {  # MLflow has fewer; the tag `state` is exact
    "waiting": "SCHEDULED",
    "running": "RUNNING",
    "stopped": "FINISHED",
    "complete": "FINISHED",
    "finished": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric."""

    key: str
    value: float
    step: int
    time: int  # milliseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredRun:
    """A run as MLflow should show it."""

    id: str
    name: str
    status: str
    started: int  # milliseconds since 1970
    finished: int | None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # artifacts made here: name -> content


@cache
def safe_name(name: str) -> str:
    """A name that MLflow accepts for a metric or param, on every system, and that no other name is given.

    >>> safe_name("ece/dtd")
    'ece/dtd'
    >>> safe_name("ece/my data (new)!").startswith("ece/my data _new__-")
    True
    """
    plain = "/".join(part for part in re.sub(r"[^A-Za-z0-9_./ -]", "_", name).split("/") if part.strip("."))
    plain = plain.lstrip(".").strip()
    if plain == name and name and len(name) <= KEY_LIMIT:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: KEY_LIMIT - 9]}-{digest}"


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and a note of how long it was.

    >>> shortened("a" * 100, 40)
    'aaaaaaaaaaaaaaaaaaaa... (100 characters)'
    """
    note = f"... ({len(text)} characters)"
    text = storable(text)
    return text if len(text) <= limit else text[: limit - len(note)] + note


def storable(text: str) -> str:
    """Text that any database and file takes: a file's name, which a traceback may hold, need not be one."""
    return text.encode(errors="replace").decode().replace("\0", "?")


def sweep_id(info: SweepInfo) -> str:
    """A sweep's name in tags: two sweeps of one name, on two machines, differ in when they were made."""
    return f"{safe_name(info.name)}@{info.created:.3f}"


def run_id(info: SweepInfo, record: TrialRecord | None = None) -> str:
    """The identity of a sweep's run, or of a record's in it."""
    return f"{sweep_id(info)}/{safe_name(record.name)}" if record else sweep_id(info)


def trial_run(info: SweepInfo, record: TrialRecord, *, on_front: bool, support: str = "") -> DesiredRun:
    """A trial's or baseline's run; the tag with its parent is added by whoever knows the parent's id."""
    tags = {
        **_common_tags(info, record),
        "record": record.name,
        "kind": record.kind,
        "state": record.state,
        "origin": record.origin,
        "key": record.key,
        "attempt": str(record.attempt),
        "on_front": str(on_front).lower(),
        "searched": ", ".join(record.params),
        "seeds": ", ".join(str(seed) for seed in info.seeds),
        "model": info.model,
    }
    if support:
        tags["front_support"] = support
    if record.reason:
        tags["reason"] = shortened(" ".join(record.reason.split()), REASON_LIMIT)
    if record.constraints and record.state == "complete":
        tags["feasible"] = str(record.feasible).lower()
    texts = {"metrics.csv": metrics_table(record.results)} if record.results else {}
    if record.details:
        texts["traceback.txt"] = storable(record.details)
    return DesiredRun(
        id=run_id(info, record),
        name=run_name(record),
        status=STATUS[record.state],
        started=milliseconds(record.started or info.created),
        finished=None if record.finished is None else milliseconds(record.finished),
        params={safe_name(key): param_text(value) for key, value in {**record.params, **record.config}.items()},
        tags=_within_limits(tags),
        points=list(_trial_points(info, record)),
        texts=texts,
    )


def _common_tags(info: SweepInfo, record: TrialRecord | None = None) -> dict[str, str]:
    tags = {
        ID_TAG: run_id(info, record),
        SWEEP_TAG: sweep_id(info),
        "sweep": info.name,
        "search_split": info.search_split,
        "mlflow.source.name": "fpp_sweep.tune",
    }
    if info.git_commit:
        tags["mlflow.source.git.commit"] = info.git_commit  # MLflow's own column reads this one
    return tags


def _within_limits(tags: Mapping[str, str]) -> dict[str, str]:
    return {safe_name(key): shortened(str(value), TAG_LIMIT) for key, value in tags.items()}


def run_name(record: TrialRecord) -> str:
    """What a run is called in MLflow's tables and legends: sorts by number, says what came out and what was tried.

    >>> found = {"state": "complete", "number": 7, "params": {"fpp.gamma2": 0.15}, "values": [66.81, 11.42]}
    >>> run_name(TrialRecord(name="trial-0007", kind="trial", **found))
    '0007 66.8/11.4 gamma2=0.15'
    >>> run_name(TrialRecord(name="baseline-otpt", kind="baseline", state="complete"))
    'baseline otpt'
    """
    result = ["/".join(format_setting(float(value), 3) for value in record.values)] if record.values else []
    if record.kind == "baseline":
        return shortened(" ".join([record.name.replace("-", " ", 1), *result]), NAME_LIMIT)
    words = [record.name.removeprefix("trial-"), *result]
    if record.origin not in ("sampled", "grid"):
        words.append(record.origin.replace("trial-", ""))
    words += [f"{key.rpartition('.')[2]}={format_setting(value, 3)}" for key, value in record.params.items()]
    return shortened(" ".join(words), NAME_LIMIT)


def param_text(value: Any) -> str:
    """A setting as `--set` takes it.

    >>> param_text(True), param_text(None), param_text(0.005)
    ('true', 'none', '0.005')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(value if isinstance(value, str) else json.dumps(value), PARAM_LIMIT)


def metrics_table(results: Mapping[str, SplitResult]) -> str:
    """All metrics of all datasets and splits, as CSV: rows for the datasets, their average and its deviation."""
    metrics = sorted({metric for result in results.values() for metric in result.average})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["split", "dataset", *metrics])
    for split, result in results.items():
        for dataset, values in [*result.datasets.items(), ("average", result.average), ("deviation", result.deviation)]:
            if values:
                writer.writerow([split, dataset, *(values.get(metric, "") for metric in metrics)])
    return text.getvalue()


def sweep_run(info: SweepInfo, records: Sequence[TrialRecord], front: Mapping[str, Any]) -> DesiredRun:
    """The sweep's own run; `front` is the document report/front.json, or empty."""
    tags = {
        **info.provenance(),
        **_common_tags(info),
        "kind": "sweep",
        "state": info.state,
        "objectives": ", ".join(f"{objective.metric} {objective.goal}" for objective in info.objectives),
        "mlflow.note.content": description(info, records, front),
    }
    return DesiredRun(
        id=run_id(info),
        name=shortened(info.name, KEY_LIMIT),
        status=STATUS[info.state],
        started=milliseconds(info.created),
        finished=None if info.finished is None else milliseconds(info.finished),
        params={safe_name(key): shortened(format_range(given), PARAM_LIMIT) for key, given in _searched(info)},
        tags=_within_limits(tags),
        points=list(_sweep_points(info, records, front)),
        texts={"space.yaml": yaml.safe_dump(dict(info.space), sort_keys=False, allow_unicode=True)},
    )


def description(info: SweepInfo, records: Sequence[TrialRecord], front: Mapping[str, Any]) -> str:
    """What stands on top of the sweep's page: what it searches, and its front beside the baselines."""
    metrics = [objective.metric for objective in info.objectives]
    lines = [
        f"Search for {info.goals} on split `{info.search_split}`. Artifacts: `report/sweep.html` (open this), "
        "`report/front.csv`, `report/best/`, `space.yaml`.",
        *(f"\n{line}" for line in (*front.get("says", ()), *front.get("remarks", ()))),
        "",
        "| front and baselines | " + " | ".join(metrics) + " |",
        "|" + "---|" * (len(metrics) + 1),
    ]
    members = front_members(front)
    measured = [record for record in records if record.values is not None]
    trials = sorted((record for record in measured if record.name in members), key=lambda record: record.name)
    baselines = sorted((record for record in measured if record.kind == "baseline"), key=lambda record: record.name)
    for record in (*trials, *baselines)[:DESCRIBED]:
        values = [
            f"{format_metric(metric, value)} {_bounds(front, record, info.search_split, metric)}".rstrip()
            for metric, value in zip(metrics, record.values or (), strict=True)
        ]
        lines.append(f"| {run_name(record).replace('|', '/')} | {' | '.join(values)} |")
    return "\n".join(lines)


def _bounds(front: Mapping[str, Any], record: TrialRecord, split: str, metric: str) -> str:
    """A member's interval, where it has one."""
    members = {member["name"]: member for member in front.get("members", ())}
    found = members.get(record.name, {}).get("intervals", {}).get(split, {}).get(metric)
    return f"[{found['low']:.4g}, {found['high']:.4g}]" if isinstance(found, Mapping) else ""


def front_members(front: Mapping[str, Any]) -> set[str]:
    """The names of the records on the front."""
    return {str(member["name"]) for member in front.get("members", ())}


def _trial_points(info: SweepInfo, record: TrialRecord) -> Iterator[Point]:
    """At most METRICS_LIMIT metrics; a group of them is shown whole or not at all."""
    shown: dict[str, float] = {}
    for group in _groups(info, record):
        if len(shown) + len(group) <= METRICS_LIMIT:
            shown |= group
    time = milliseconds(record.finished or record.started or info.created)
    for key, value in shown.items():
        yield Point(safe_name(key), float(value), 0, time)


def _groups(info: SweepInfo, record: TrialRecord) -> Iterator[dict[str, float]]:
    """Groups of metrics, the most important first."""
    result = record.results.get(info.search_split)
    if record.estimate is not None:
        names = (f"estimate/{objective.metric}" for objective in info.objectives)
        whole = record.state == "complete"
        yield {"fidelity": 1.0 if whole else record.fidelity, **dict(zip(names, record.estimate, strict=True))}
    if result is None:
        return
    wanted = dict.fromkeys(metric.partition("/")[0] for metric in metrics_shown(info.objectives))
    main = [metric for metric in wanted if metric in result.average]
    others = [metric for metric in result.average if metric not in main]  # in the catalogue's order
    others.sort(key=lambda metric: metric not in WANTED)
    yield {metric: result.average[metric] for metric in main}
    wall = {} if record.finished is None else {"seconds": record.finished - record.started}
    yield {**wall, "device_seconds": result.device_seconds}
    for split, other in record.results.items():
        if split != info.search_split:
            yield {f"{split}/{metric}": other.average[metric] for metric in main if metric in other.average}
    yield {metric: result.average[metric] for metric in others[: max(0, AVERAGES - len(main))]}
    for metric in main:
        yield {f"{metric}/{name}": values[metric] for name, values in result.datasets.items() if metric in values}
    yield {f"{metric}_deviation": value for metric, value in result.deviation.items() if metric in main}


def _sweep_points(info: SweepInfo, records: Sequence[TrialRecord], front: Mapping[str, Any]) -> Iterator[Point]:
    """Counts, device hours of the search and hypervolume over the number of trials that have ended.

    The value at a step never changes afterwards: MLflow would keep both. Stopped trials are counted from the first on.
    """
    ended = [record for record in records if record.finished and record.state in ENDED]
    counts = {"complete": 0, "failed": 0}
    best: dict[str, float] = {}
    seconds = 0.0
    times: list[float] = []
    for record in sorted(ended, key=lambda record: (record.finished, record.name)):
        searched = record.results.get(info.search_split)
        seconds += record.held + (searched.device_seconds if searched else 0.0)
        if record.kind == "baseline":
            continue
        counts[record.state] = counts.get(record.state, 0) + 1
        times.append(record.finished or 0.0)
        for state, count in counts.items():
            yield Point(f"trials_{state}", count, len(times), milliseconds(times[-1]))
        yield Point("device_hours", round(seconds / 3600, 6), len(times), milliseconds(times[-1]))
        best |= _better(info, record, best)
        for metric, value in best.items():
            yield Point(safe_name(f"best/{metric}"), value, len(times), milliseconds(times[-1]))
    for finished, value in front.get("hypervolume", ()):
        if step := bisect_right(times, finished):
            yield Point("hypervolume", float(value), step, milliseconds(finished))


def _better(info: SweepInfo, record: TrialRecord, best: Mapping[str, float]) -> dict[str, float]:
    """The objectives in which a trial that keeps all constraints is better than the best so far."""
    values = zip(info.objectives, record.values or () if record.feasible else (), strict=False)
    return {
        objective.metric: float(value)
        for objective, value in values
        if objective.metric not in best or (value - best[objective.metric]) * sign(objective.goal) > 0
    }


def _searched(info: SweepInfo) -> Iterable[tuple[str, Any]]:
    params = info.space.get("params")
    return params.items() if isinstance(params, Mapping) else ()


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
