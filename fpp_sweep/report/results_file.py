"""results.json: the numbers of a finished sweep in one file, for programs that do not read its records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import measure
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.records.skipped_images import read_skipped
from fpp_sweep.spec.files import write_json
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.paired import Interval, metric_interval

FILE = "results.json"


def write_results(folder: SweepFolder) -> Path:
    """Write the numbers of all complete trials on the searched split, with intervals, and return the file's path."""
    info = folder.info()
    records = [record for record in folder.trials() if info.search_split in record.results]
    metrics: dict[str, None] = {}
    for record in records:
        metrics |= dict.fromkeys(record.results[info.search_split].average)
    samples = measure(folder, records, info.search_split, list(metrics)).samples
    trials = []
    for record in records:
        trials.append(_trial(folder, record, info.search_split, samples))
    path = folder.path / FILE
    write_json(path, {"sweep": info.name, "split": info.search_split, "origin": info.provenance(), "trials": trials})
    return path


def _trial(folder: SweepFolder, record: TrialRecord, split: str, samples: SplitSamples) -> dict[str, Any]:
    result = record.results[split]
    artifacts = folder.artifacts(record.name)
    return {
        "name": record.name,
        "config": dict(record.config),
        "key": record.key,
        "files": str(artifacts.relative_to(folder.path)),
        "images": result.samples,
        "skipped": read_skipped(folder, record.name, split),
        "average": result.average,
        "deviation": result.deviation,
        "datasets": result.datasets,
        "by_seed": result.by_seed,
        "intervals": _intervals(samples, record.name, result),
        "seconds": result.seconds,
    }


def _intervals(samples: SplitSamples, name: str, result: SplitResult) -> Mapping[str, Any]:
    """Return the interval of each average and of each dataset's metric (`ece/dtd`), or the reason why it has none."""
    intervals: dict[str, Any] = {}
    for metric in result.average:
        intervals[metric] = _document(metric_interval(samples, name, metric))
        for dataset in result.datasets:
            key = f"{metric}/{dataset}"
            intervals[key] = _document(metric_interval(samples, name, key))
    return intervals


def _document(interval: Interval | str) -> dict[str, float] | str:
    """Return an interval, or the reason why there is none."""
    if isinstance(interval, str):
        return interval
    return {"low": interval.low, "high": interval.high}
