"""The runs that MLflow should show of a sweep, as plain values computed from the sweep's folder.

The sweep is one run, the parent, and each trial and baseline is a child run. A run has few enough metrics to read (all
of them are in its record), and its texts fit MLflow's limits. Equal records give equal runs, with equal steps
and times, so that writing a run twice changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metric_of, metrics_shown
from fpp_sweep.records.records import ENDED, SweepInfo, TrialRecord
from fpp_sweep.records.state import is_abandoned
from fpp_sweep.records.texts import format_setting
from fpp_sweep.report.writing import answer_text
from fpp_sweep.space.yamlfile import config_text
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant

ID_TAG = "fpp_sweep.id"  # identifies a run: a run with this tag is updated, not created again
SWEEP_TAG = "fpp_sweep.sweep"  # equal for all runs of a sweep
OPTIONAL_TAGS = ("feasible", "front_support", "reason", "recommended")  # deleted where a run no longer has them
RUN_ID = "{RUN_ID}"  # in the description of the sweep's run, in place of MLflow's id of this run

KEY_LIMIT = 250  # MLflow's limit for names of params, metrics and tags
PARAM_LIMIT = 6000  # MLflow's limit; longer values are cut without notice
TAG_LIMIT = 5000  # limit of hosted MLflow; the open one allows 8000
REASON_LIMIT = 500  # a reason is one cell of a table; the whole traceback is an artifact
NAME_LIMIT = 120  # length of a run's name that is readable in the legend of a chart
FURTHER_METRICS = ("nll", "brier", "aurc")  # shown beside the objectives
STATUS = {  # MLflow has fewer states; the tag `state` has the exact one
    "waiting": "SCHEDULED",
    "running": "RUNNING",
    "stopped": "FINISHED",
    "collapsed": "FINISHED",
    "complete": "FINISHED",
    "finished": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
IN_PROGRESS = ("RUNNING", "SCHEDULED")  # states of a run without an end time


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a metric's curve."""

    key: str
    value: float
    step: int
    time: float  # seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredRun:
    """A run as MLflow should show it."""

    id: str  # the value of ID_TAG
    name: str
    status: str
    started: float  # seconds since 1970
    finished: float | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # metrics of one value each
    points: Sequence[Point] = ()  # metrics with a value for each step
    files: Mapping[str, str | Path] = field(default_factory=dict)  # artifact's name -> its text, or its file

    @property
    def is_in_progress(self) -> bool:
        return self.status in IN_PROGRESS

    @property
    def values_digest(self) -> str:
        """The digest of everything but the artifacts."""
        return _digest(replace(self, files={}))

    @property
    def files_digest(self) -> str:
        """The digest of the artifacts: texts, and the sizes and times of files, whose contents would take long."""
        contents: list[Any] = []
        for name, content in self.files.items():
            if isinstance(content, Path):
                status = content.stat()
                contents.append((name, status.st_size, status.st_mtime_ns))
            else:
                contents.append((name, content))
        return _digest(contents)


def desired_runs(folder: SweepFolder, statistics: SweepStatistics | None = None) -> list[DesiredRun]:
    """Return the run of a sweep, then those of its trials and baselines.

    Statistics, which take seconds, are computed unless those of the last report are passed.
    """
    info, records = folder.info(), folder.trials()
    if is_abandoned(folder, info):  # its driver was killed: no run of it is in progress
        info = replace(info, state="interrupted")
        records = [_interrupted(record) for record in records]
    if statistics is None:
        statistics = statistics_of(folder, info, records)
    statistics = replace(statistics, front=front_of(info, records))
    picture = folder.report / "front.png"
    description = _description(info, answer_text(info, statistics.front, statistics), has_picture=picture.is_file())
    run = sweep_run(records, statistics, description)
    runs = [replace(run, files={**files_below(folder.report, "report/"), **run.files})]
    for record in records:
        if record.state == "waiting" and not record.started:
            continue  # MLflow never changes the start of a run, so a run begins with its trial
        run = trial_run(record, statistics)
        artifacts = files_below(folder.path / "artifacts" / record.name)
        file = folder.trial_file(record.name)
        runs.append(replace(run, files={**artifacts, file.name: file, **run.files}))
    return runs


def _interrupted(record: TrialRecord) -> TrialRecord:
    if record.state == "running":
        return replace(record, state="interrupted")
    return record


def files_below(folder: Path, prefix: str = "") -> dict[str, str | Path]:
    """Return the files below a folder by the names of their artifacts.

    Links are left out, as they may lead out of a received folder, and files that are being written.
    """
    files: dict[str, str | Path] = {}
    if folder.is_symlink():
        return files
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and not file.name.startswith("."):
            files[f"{prefix}{file.relative_to(folder).as_posix()}"] = file
    return files


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()[:16]


# Names and texts that MLflow accepts.


@cache
def safe_name(name: str) -> str:
    """Return a name that MLflow accepts for a metric or param on every system; different names stay different.

    >>> safe_name("ece/dtd")
    'ece/dtd'
    >>> safe_name("ece@isotonic/dtd")
    'ece after isotonic/dtd'
    >>> safe_name("ece/my data (new)!").startswith("ece/my data _new__-")
    True
    """
    name = name.replace("@", " after ")
    accepted = re.sub(r"[^A-Za-z0-9_./ -]", "_", name)
    accepted = "/".join(part for part in accepted.split("/") if part.strip("."))
    accepted = accepted.lstrip(".").strip()
    if name and accepted == name and len(name) <= KEY_LIMIT:
        return name
    return f"{accepted[: KEY_LIMIT - 17]}-{_digest(name)}"


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and a note about its length."""
    note = f"... ({len(text)} characters)"
    text = storable(text)
    if len(text) <= limit:
        return text
    return text[: limit - len(note)] + note


def storable(text: str) -> str:
    """Return text that every database and file accepts; a traceback may hold bytes of a file name that is not text."""
    return text.encode(errors="replace").decode().replace("\0", "?")


def _within_limits(tags: Mapping[str, str]) -> dict[str, str]:
    return {safe_name(key): shortened(str(value), TAG_LIMIT) for key, value in tags.items()}


def _yes_or_no(value: bool) -> str:
    return str(value).lower()


def round_metric(value: float) -> float:
    """Return the value with six significant digits: more of them fill MLflow's tables, and its record has them all.

    >>> round_metric(66.81234567), round_metric(0.5)
    (66.8123, 0.5)
    """
    return float(f"{float(value):.6g}")


# The identity of runs.


def sweep_id(info: SweepInfo) -> str:
    """Return a sweep's id in tags: two sweeps of one name, on two machines, were created at different times."""
    return f"{safe_name(info.name)}@{info.created:.3f}"


def trial_id(info: SweepInfo, record: TrialRecord) -> str:
    return f"{sweep_id(info)}/{safe_name(record.name)}"


def _common_tags(info: SweepInfo, identity: str) -> dict[str, str]:
    tags = {
        ID_TAG: identity,
        SWEEP_TAG: sweep_id(info),
        "sweep": info.name,
        "search_split": info.search_split,
        "mlflow.source.name": "fpp_sweep.tune",
    }
    if info.git_commit:
        tags["mlflow.source.git.commit"] = info.git_commit  # a column of MLflow's table
    return tags


# The run of a trial or baseline.


def trial_run(record: TrialRecord, statistics: SweepStatistics) -> DesiredRun:
    """Return the run of a trial or baseline."""
    info = statistics.front.info
    params = {safe_name(key): param_text(value) for key, value in relevant(record.config).items()}
    return DesiredRun(
        id=trial_id(info, record),
        name=run_name(record),
        status=STATUS[record.state],
        started=record.started or info.created,
        finished=record.finished,
        params=params,
        tags=_within_limits(_trial_tags(record, statistics)),
        metrics=_trial_metrics(info, record),
        files={"config.yaml": storable(config_text(record.config))},
    )


def _trial_tags(record: TrialRecord, statistics: SweepStatistics) -> dict[str, str]:
    info = statistics.front.info
    names_of_members = [member.name for member in statistics.front.members]
    recommended = statistics.answer.recommended
    tags = {
        **_common_tags(info, trial_id(info, record)),
        "record": record.name,
        "kind": record.kind,
        "state": record.state,
        "origin": record.origin,
        "key": record.key,
        "attempt": str(record.attempt),
        "searched": ", ".join(record.params),
        "seeds": ", ".join(str(seed) for seed in info.seeds),
        "model": info.model,
        "on_front": _yes_or_no(record.name in names_of_members),
    }
    if recommended is not None:
        tags["recommended"] = _yes_or_no(record.name == recommended)
    if support := statistics.support.get(record.name, ""):
        tags["front_support"] = support
    if record.reason:
        tags["reason"] = shortened(" ".join(record.reason.split()), REASON_LIMIT)
    if record.constraints and record.state == "complete":
        tags["feasible"] = _yes_or_no(record.feasible)
    return tags


def param_text(value: Any) -> str:
    """Return a setting as text with six significant digits; the artifact config.yaml has all digits.

    >>> param_text(True), param_text(None), param_text(0.1 + 0.2)
    ('true', 'none', '0.3')
    """
    return shortened(format_setting(value), PARAM_LIMIT)


def run_name(record: TrialRecord) -> str:
    """Return a run's name in MLflow's tables and legends: number, objectives, settings that were searched."""
    words = [record.name.removeprefix("trial-")]
    if record.kind == "baseline":
        words = [f"baseline {record.label}"]
    if record.values:
        words.append("/".join(format_setting(float(value), 3) for value in record.values))
    if record.kind == "trial":
        if record.origin not in ("sampled", "grid"):
            words.append(record.origin.replace("trial-", ""))
        words += [f"{key.rpartition('.')[2]}={format_setting(value, 3)}" for key, value in record.params.items()]
    return shortened(" ".join(words), NAME_LIMIT)


def _trial_metrics(info: SweepInfo, record: TrialRecord) -> dict[str, float]:
    """Return the averages on each split, the costs, and the values of datasets.

    An objective on one dataset, such as `ece/dtd`, stands beside the averages.
    """
    result = record.results.get(info.search_split)
    if result is None:
        return {}
    metrics: dict[str, float] = {}
    if record.duration is not None:  # an import has none, and no costs
        metrics |= {
            "duration": record.duration,
            "worker_seconds": result.worker_seconds,
            "seconds": result.work_seconds,
        }
    objectives = metrics_shown(info)
    averages = list(dict.fromkeys(catalogue.parts_of(metric).of_average for metric in objectives))  # each once
    for split, split_result in record.results.items():
        prefix = "" if split == info.search_split else f"{split}/"
        for metric in (*objectives, *averages, *FURTHER_METRICS):
            value = metric_of(split_result, metric)
            if value is not None:
                metrics[f"{prefix}{metric}"] = value
    for metric in averages:
        for dataset, values in result.datasets.items():
            if metric in values:
                metrics[f"{metric}/{dataset}"] = values[metric]
    return {safe_name(name): round_metric(value) for name, value in metrics.items()}


# The run of the sweep.


def sweep_run(records: Sequence[TrialRecord], statistics: SweepStatistics, description: str) -> DesiredRun:
    """Return the sweep's own run, the parent of the other runs."""
    info = statistics.front.info
    tags = {
        **info.provenance(),
        **_common_tags(info, sweep_id(info)),
        "kind": "sweep",
        "state": info.state,
        "objectives": ", ".join(f"{objective.metric} {objective.goal}" for objective in info.objectives),
        "mlflow.note.content": description,  # MLflow's key for the text on top of a run
    }
    if statistics.answer.recommended is not None:
        tags["recommended"] = statistics.answer.recommended
    return DesiredRun(
        id=sweep_id(info),
        name=shortened(info.name, KEY_LIMIT),
        status=STATUS[info.state],
        started=info.created,
        finished=info.finished,
        tags=_within_limits(tags),
        points=_points(records, statistics.front),
        files={"space.yaml": yaml.safe_dump(dict(info.space), sort_keys=False, allow_unicode=True)},
    )


def _description(info: SweepInfo, answer: str, *, has_picture: bool) -> str:
    """Return the Markdown on top of the run: the answer, the picture, the front with the baselines, the objectives.

    MLflow's page shows the first lines of a description, and the others after a click on *Show more*.
    """
    verb = "Evaluation by" if info.evaluate_only else "Search for"
    purpose = f"{verb} {info.goals} on split `{info.search_split}`."
    files = "Artifacts: `report/sweep.html` (open this), `report/front.csv`, `report/best/`, `space.yaml`."
    ending = f"{purpose}\n\n{files}"
    _, _, answer = answer.partition("\n")  # without the heading, which repeats the name of the run
    if has_picture:
        before, heading, front = answer.rpartition("\n## ")
        picture = f"![front](get-artifact?path=report%2Ffront.png&run_uuid={RUN_ID})"  # MLflow's page serves it
        answer = f"{before}\n\n{picture}\n{heading}{front}"
    room = TAG_LIMIT - len(ending) - 2 - 32  # of MLflow's id of the run
    if len(answer) > room:  # whole lines, as half a row of a table is misread
        note = "\n\nThe rest is in the artifact `report/answer.md`."
        answer = answer[: answer.rfind("\n", 0, room - len(note))] + note
    return f"{answer}\n\n{ending}".strip()


def _points(records: Sequence[TrialRecord], front: Front) -> list[Point]:
    """Return the best values so far and the hypervolume over the number of trials that have ended.

    A point keeps its step and time when later trials end: MLflow keeps every point that was ever written.
    """
    points: list[Point] = []
    best: dict[str, float] = {}
    end_times: list[float] = []
    ended = [record for record in records if record.kind == "trial" and record.finished and record.state in ENDED]
    for record in sorted(ended, key=lambda record: (record.finished, record.name)):
        end_times.append(record.finished or 0.0)
        best |= _improved(front, record, best)
        points += [_point(f"best/{metric}", value, len(end_times), end_times[-1]) for metric, value in best.items()]
    for finished, volume in front.hypervolume:
        step = bisect_right(end_times, finished)
        if step > 0:
            points.append(_point("hypervolume", volume, step, finished))
    return points


def _point(key: str, value: float, step: int, seconds: float) -> Point:
    return Point(safe_name(key), round_metric(value), step, seconds)


def _improved(front: Front, record: TrialRecord, best: Mapping[str, float]) -> dict[str, float]:
    """Return the objectives in which a trial that keeps all constraints is better than the best so far."""
    if record.values is None or not record.feasible:
        return {}
    improved = {}
    for objective, value in zip(front.objectives, record.values, strict=False):
        metric = objective.metric
        if metric not in best or (value - best[metric]) * catalogue.sign(objective.goal) > 0:
            improved[metric] = float(value)
    return improved
