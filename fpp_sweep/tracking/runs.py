"""The runs that MLflow should show of a sweep, as plain values computed from the sweep's folder.

The sweep is one run, the parent, and each trial and baseline is a child run. A run has few enough metrics to read (all
of them are in its `metrics.csv`), and its texts fit MLflow's limits. Equal records give equal runs, with equal steps
and times, so that writing a run twice changes nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metric_of, metrics_shown
from fpp_sweep.records.records import ENDED, SplitResult, SweepInfo, TrialRecord
from fpp_sweep.records.state import is_abandoned
from fpp_sweep.records.texts import format_range, format_setting
from fpp_sweep.report.front_files import answer_text
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.space.yamlfile import config_text
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant

ID_TAG = "fpp_sweep.id"  # identifies a run: a run with this tag is updated, not created again
SWEEP_TAG = "fpp_sweep.sweep"  # equal for all runs of a sweep
OPTIONAL_TAGS = ("feasible", "front_support", "reason", "recommended")  # deleted where a run no longer has them
RUN_ID = "{RUN_ID}"  # in the description, in place of MLflow's id of the run
EXPERIMENT_ID = "{EXPERIMENT_ID}"  # the same for the id of the experiment

KEY_LIMIT = 250  # MLflow's limit for names of params, metrics and tags
PARAM_LIMIT = 6000  # MLflow's limit; longer values are cut without notice
TAG_LIMIT = 5000  # limit of hosted MLflow; the open one allows 8000
REASON_LIMIT = 500  # a reason is one cell of a table; the whole traceback is an artifact
NAME_LIMIT = 120  # length of a run's name that is readable in the legend of a chart
# most metrics of a run, enough for the paper's sweeps: six averages, two times, two objectives on test, and both
# objectives on eleven datasets
METRICS_LIMIT = 32
AVERAGES_SHOWN = 6  # metrics whose averages are shown, unless there are more objectives
PREFERRED_METRICS = ("nll", "brier", "aurc")  # shown before other metrics that are not objectives
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
    time: int  # milliseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredRun:
    """A run as MLflow should show it."""

    id: str  # the value of ID_TAG
    parent: str = ""  # the `id` of the run above it
    name: str
    status: str
    started: int  # milliseconds since 1970
    finished: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # metrics of one value each
    measured_at: int = 0  # time of `metrics`, in milliseconds since 1970
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
    """Return the runs of a sweep, each behind its parent.

    Statistics, which take seconds, are computed unless those of the last report are passed.
    """
    info, records = folder.info(), folder.trials()
    if is_abandoned(folder, info):  # its driver was killed: no run of it is in progress
        info = replace(info, state="interrupted")
        records = [_interrupted(record) for record in records]
    if statistics is None:
        statistics = statistics_of(folder, info, records)
    statistics = replace(statistics, front=front_of(info, records))
    runs = []
    if info.group:
        runs.append(_group_run(info))
    picture = folder.report / "front.png"
    description = _description(info, answer_text(info, statistics.front, statistics), has_picture=picture.is_file())
    run = sweep_run(info, records, statistics, description)
    runs.append(replace(run, files={**files_below(folder.report, "report/"), **run.files}))
    for record in records:
        if record.state == "waiting" and not record.started:
            continue  # MLflow never changes the start of a run, so a run begins with its trial
        run = trial_run(info, record, statistics)
        artifacts = files_below(folder.path / "artifacts" / record.name)
        runs.append(replace(run, files={**artifacts, **run.files}))
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
    for parent, _, names in os.walk(folder):
        for name in names:
            file = Path(parent, name)
            if file.is_file() and not file.is_symlink() and not name.startswith("."):
                files[f"{prefix}{file.relative_to(folder).as_posix()}"] = file
    return dict(sorted(files.items()))


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
    """Return the text, or its beginning and a note about its length.

    >>> shortened("a" * 100, 40)
    'aaaaaaaaaaaaaaaaaaaa... (100 characters)'
    """
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


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _milliseconds_of_end(finished: float | None) -> int | None:
    if finished is None:
        return None
    return milliseconds(finished)


def round_metric(value: float) -> float:
    """Return the value with six significant digits: more of them fill MLflow's tables, and metrics.csv has them all.

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


# The run above the sweeps of a reproduction.


def _group_run(info: SweepInfo) -> DesiredRun:
    """Return the run of a reproduction, which is in progress while one of its sweeps is, and ends with it.

    The id of a reproduction is its name, an @ and the time of its creation.
    """
    name, _, created = info.group.rpartition("@")
    return DesiredRun(
        id=info.group,
        name=shortened(name, KEY_LIMIT),
        status=STATUS[info.state],
        started=milliseconds(float(created)),
        finished=_milliseconds_of_end(info.finished),
        tags={ID_TAG: info.group, "kind": "reproduction"},
    )


# The run of a trial or baseline.


def trial_run(info: SweepInfo, record: TrialRecord, statistics: SweepStatistics) -> DesiredRun:
    """Return the run of a trial or baseline."""
    params = {safe_name(key): param_text(value) for key, value in _settings_shown(record).items()}
    started = milliseconds(record.started or info.created)
    finished = _milliseconds_of_end(record.finished)
    return DesiredRun(
        id=trial_id(info, record),
        parent=sweep_id(info),
        name=run_name(record),
        status=STATUS[record.state],
        started=started,
        finished=finished,
        params=params,
        tags=_within_limits(_trial_tags(info, record, statistics)),
        metrics=_trial_metrics(info, record),
        measured_at=finished or started,
        files=_trial_texts(record),
    )


def _trial_tags(info: SweepInfo, record: TrialRecord, statistics: SweepStatistics) -> dict[str, str]:
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
    if support := statistics.support.word(record.name):
        tags["front_support"] = support
    if record.reason:
        tags["reason"] = shortened(" ".join(record.reason.split()), REASON_LIMIT)
    if record.constraints and record.state == "complete":
        tags["feasible"] = _yes_or_no(record.feasible)
    return tags


def _settings_shown(record: TrialRecord) -> dict[str, Any]:
    """Return the settings that the record's method and metrics read, and those that were searched."""
    config = record.config
    settings = relevant(config)
    for metric in _measured_metrics(record.results):
        if metric not in catalogue.METRICS:  # a metric of a plugin that is not loaded
            continue
        for column in catalogue.METRICS[metric].columns:
            prefixes = catalogue.SETTINGS_OF_COLUMN.get(column, ())
            for key, value in config.items():
                if key.startswith(prefixes):
                    settings[key] = value
    for key, value in record.params.items():
        settings[key] = config.get(key, value)  # a searched `x2` is twice the default in the config
    return settings


def _measured_metrics(results: Mapping[str, SplitResult]) -> set[str]:
    """Return the metrics that were measured on any split."""
    metrics: set[str] = set()
    for result in results.values():
        metrics.update(result.average)
    return metrics


def param_text(value: Any) -> str:
    """Return a setting as text with six significant digits; the artifact config.yaml has all digits.

    >>> param_text(True), param_text(None), param_text(0.1 + 0.2)
    ('true', 'none', '0.3')
    """
    return shortened(format_setting(value), PARAM_LIMIT)


def run_name(record: TrialRecord) -> str:
    """Return a run's name in MLflow's tables and legends: number, objectives, settings that were searched.

    >>> result = {"state": "complete", "number": 7, "params": {"fpp.gamma2": 0.15}, "values": [66.81, 11.42]}
    >>> run_name(TrialRecord(name="trial-0007", kind="trial", **result))
    '0007 66.8/11.4 gamma2=0.15'
    >>> run_name(TrialRecord(name="baseline-otpt", kind="baseline", state="complete"))
    'baseline otpt'
    """
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


def _trial_texts(record: TrialRecord) -> dict[str, str]:
    texts = {"config.yaml": storable(config_text(record.config))}
    if record.results:
        texts["metrics.csv"] = metrics_table(record.results)
    if record.details:
        texts["traceback.txt"] = storable(record.details)
    return texts


def metrics_table(results: Mapping[str, SplitResult]) -> str:
    """Return all metrics as CSV: for each split a row for each dataset, for their average and for its deviation."""
    metrics = sorted(_measured_metrics(results))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["split", "dataset", *metrics])
    for split, result in results.items():
        rows = [*result.datasets.items(), ("average", result.average), ("deviation", result.deviation)]
        for dataset, values in rows:
            if values:
                writer.writerow([split, dataset, *(values.get(metric, "") for metric in metrics)])
    return text.getvalue()


def _trial_metrics(info: SweepInfo, record: TrialRecord) -> dict[str, float]:
    """Return at most METRICS_LIMIT metrics; each group of them is shown whole or not at all."""
    metrics: dict[str, float] = {}
    for group in _metric_groups(info, record):
        if len(metrics | group) <= METRICS_LIMIT:
            metrics |= group
    return {safe_name(name): round_metric(value) for name, value in metrics.items()}


def _metric_groups(info: SweepInfo, record: TrialRecord) -> list[dict[str, float]]:
    """Return groups of a record's metrics, the most important group first."""
    groups: list[dict[str, float]] = []
    result = record.results.get(info.search_split)
    if result is None:
        return groups
    main = _main_metrics(info, result)
    n_further = max(0, AVERAGES_SHOWN - len(main))
    further = _further_metrics(result, main)[:n_further]
    groups.append(_renamed(result.average, main) | _objectives_on_one_dataset(info, result))
    groups.append(_durations(record, result))
    for split, split_result in record.results.items():
        if split != info.search_split:
            prefix = f"{split}/"
            averages = _renamed(split_result.average, main, prefix=prefix)
            groups.append(averages | _objectives_on_one_dataset(info, split_result, prefix))
    groups.append(_renamed(result.average, further))
    for metric in main:
        by_dataset = {}
        for dataset, values in result.datasets.items():
            if metric in values:
                by_dataset[f"{metric}/{dataset}"] = values[metric]
        groups.append(by_dataset)
    groups.append(_renamed(result.deviation, main, suffix="_deviation"))
    return groups


def _durations(record: TrialRecord, result: SplitResult) -> dict[str, float]:
    """Return the costs of a trial, and the seconds from its start to its end; nothing of an import."""
    if record.is_imported:
        return {}
    durations = {"seconds": result.work_seconds, "worker_seconds": result.worker_seconds}
    if record.duration is not None:
        durations["duration"] = record.duration
    return durations


def _objectives_on_one_dataset(info: SweepInfo, result: SplitResult, prefix: str = "") -> dict[str, float]:
    """Return the values of objectives such as `ece/dtd`, whose group may be too large to be shown."""
    values = {}
    for metric in metrics_of(info.objectives):
        value = metric_of(result, metric)
        if catalogue.parts_of(metric).dataset and value is not None:
            values[f"{prefix}{metric}"] = value
    return values


def _main_metrics(info: SweepInfo, result: SplitResult) -> list[str]:
    """Return the objectives' metrics, then accuracy and ECE; an objective on one dataset stands for its metric."""
    names = dict.fromkeys(catalogue.parts_of(metric).of_average for metric in metrics_shown(info))  # each once
    return [name for name in names if name in result.average]


def _further_metrics(result: SplitResult, main: Sequence[str]) -> list[str]:
    """Return the other metrics, the preferred ones first, then in the catalogue's order."""
    other_metrics = [metric for metric in result.average if metric not in main]
    return sorted(other_metrics, key=lambda metric: metric not in PREFERRED_METRICS)


def _renamed(
    values: Mapping[str, float], names: Iterable[str], *, prefix: str = "", suffix: str = ""
) -> dict[str, float]:
    """Return the values with these names, as far as there are any, under names with a prefix and a suffix."""
    return {f"{prefix}{name}{suffix}": values[name] for name in names if name in values}


# The run of the sweep.


def sweep_run(
    info: SweepInfo, records: Sequence[TrialRecord], statistics: SweepStatistics, description: str
) -> DesiredRun:
    """Return the sweep's own run, the parent of the other runs."""
    ranges = info.space.get("params")
    params = {}
    if isinstance(ranges, Mapping):
        for key, setting_range in ranges.items():
            params[safe_name(key)] = shortened(format_range(setting_range), PARAM_LIMIT)
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
        parent=info.group,
        name=shortened(info.name, KEY_LIMIT),
        status=STATUS[info.state],
        started=milliseconds(info.created),
        finished=_milliseconds_of_end(info.finished),
        params=params,
        tags=_within_limits(tags),
        points=_points(info, records, statistics.front),
        files={"space.yaml": yaml.safe_dump(dict(info.space), sort_keys=False, allow_unicode=True)},
    )


def _description(info: SweepInfo, answer: str, *, has_picture: bool) -> str:
    """Return the Markdown on top of the run: the answer, the picture, the front with the baselines, the objectives.

    MLflow's page shows the first lines of a description, and the others after a click on *Show more*.
    """
    verb = "Evaluation by" if info.evaluate_only else "Search for"
    purpose = f"{verb} {info.goals} on split `{info.search_split}`."
    files = "Artifacts: `report/sweep.html` (open this), `report/front.csv`, `report/best/`, `space.yaml`."
    query = quote(f"tags.sweep = '{info.name}' and tags.kind = 'trial'")
    trials = f"#/experiments/{EXPERIMENT_ID}/runs?workflowType=machine_learning&searchFilter={query}"
    order = f"orderByKey={quote(f'metrics.`{info.objectives[0].metric}`')}&orderByAsc=false"  # else trials are folded
    links = f"[Trials]({trials}&{order}), [charts of the trials]({trials}&{order}&compareRunsMode=CHART)"
    ending = f"{purpose}\n\n{links}\n\n{files}"
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


def _points(info: SweepInfo, records: Sequence[TrialRecord], front: Front) -> list[Point]:
    """Return the sweep's metrics over the number of trials that have ended.

    A point keeps its step and time when later trials end: MLflow keeps every point that was ever written.
    """
    points: list[Point] = []
    counts = {"complete": 0, "failed": 0}  # these curves begin at 0; that of stopped trials begins with the first one
    best: dict[str, float] = {}
    worker_seconds = 0.0
    end_times: list[float] = []
    for record in _in_order_of_end(records):
        worker_seconds += record.seconds_without_result + _worker_seconds(info, record)
        if record.kind == "baseline":
            continue
        counts[record.state] = counts.get(record.state, 0) + 1
        end_times.append(record.finished or 0.0)
        best |= _improved(front, record, best)
        values = {f"trials_{state}": float(count) for state, count in counts.items()}
        values["worker_hours"] = worker_seconds / 3600
        values |= {f"best/{metric}": value for metric, value in best.items()}
        points += [_point(key, value, len(end_times), end_times[-1]) for key, value in values.items()]
    for finished, volume in front.hypervolume:
        step = bisect_right(end_times, finished)
        if step > 0:
            points.append(_point("hypervolume", volume, step, finished))
    return points


def _in_order_of_end(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    ended = [record for record in records if record.finished and record.state in ENDED]
    return sorted(ended, key=lambda record: (record.finished, record.name))


def _worker_seconds(info: SweepInfo, record: TrialRecord) -> float:
    result = record.results.get(info.search_split)
    return 0.0 if result is None else result.worker_seconds


def _point(key: str, value: float, step: int, seconds: float) -> Point:
    return Point(safe_name(key), round_metric(value), step, milliseconds(seconds))


def _improved(front: Front, record: TrialRecord, best: Mapping[str, float]) -> dict[str, float]:
    """Return the objectives in which a trial is better than the best so far.

    A trial that breaks a constraint or is below the floor of accuracy is never the best, as in the tables.
    """
    if record.values is None or not record.feasible or front.is_below_floor(record):
        return {}
    improved = {}
    for objective, value in zip(front.objectives, record.values, strict=False):
        metric = objective.metric
        if metric not in best or (value - best[metric]) * catalogue.sign(objective.goal) > 0:
            improved[metric] = float(value)
    return improved
