"""Block statistics of records, read from a sweep's folder and checked against the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.files import read_inside
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, StatsBySeed, from_bytes, metric_value
from fpp_sweep.statistics.bootstrap import RecordSamples, SplitSamples, image_digests, sample_record

BLOCK_STATS_FILE = "block_stats.npz"
MAX_RECORDS = 400  # records whose resamples are kept in memory, some 0.2 MB each
ACCURACY_TOLERANCE = 1e-6  # points; a file of another record differs by far more


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Resampled metrics of a split's records, and what was wrong with files that were left out."""

    samples: SplitSamples
    notes: Sequence[str] = field(default_factory=tuple)


def resampled_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metrics that intervals can be computed for, without dataset names, each once.

    >>> resampled_metrics(["accuracy", "mce", "ece/dtd", "ece", "ece@sals/dtd"])
    ['accuracy', 'ece', 'ece@sals']
    """
    names: list[str] = []
    for metric in metrics:
        parts = catalogue.parts_of(metric)
        if parts.stem in BLOCKWISE_METRICS and parts.of_average not in names:
            names.append(parts.of_average)
    return names


def block_stats_file(posthoc: str) -> str:
    """Return the name of the file of block statistics after a post-hoc map; empty: of the method itself.

    >>> block_stats_file("sals")
    'block_stats@sals.npz'
    """
    if not posthoc:
        return BLOCK_STATS_FILE
    return BLOCK_STATS_FILE.replace(".", f"@{posthoc}.", 1)


def read_block_stats(folder: Path, split: str, posthoc: str = "") -> StatsBySeed | None:
    """Return a record's block statistics by dataset and seed; None where there is no file; ValueError if damaged."""
    try:
        content = read_inside(folder, folder / split / block_stats_file(posthoc))
    except OSError:
        return None
    return from_bytes(content)


def is_deterministic(record: TrialRecord, table: StatsBySeed) -> bool:
    """Return True if pretraining seeds do not change a record: its prompt is not pretrained."""
    seeds = {seed for _, seed in table}
    return record.config.get("prompt") != "fpp" and len(seeds) == 1


def measure(folder: SweepFolder, records: Sequence[TrialRecord], split: str, metrics: Sequence[str]) -> Measurements:
    """Resample the metrics of records on a split: of the records with the same images as the one with most images."""
    notes = []
    measured: dict[str, RecordSamples] = {}
    images: dict[str, int] = {}
    digests: dict[str, bytes] | None = None
    stems = tuple(resampled_metrics(metrics))
    for record in sorted(records, key=lambda record: -_samples_of(record, split)):
        if split not in record.results:
            continue
        try:
            table, own_digests, samples = _read(folder, record, split, stems)
        except ValueError as error:
            notes.append(f"{record.name}: block statistics of split {split} are ignored: {error}")
            continue
        if own_digests is None or samples is None:
            continue
        if digests is None:
            digests = own_digests
            images = {}
            for (dataset, _), stats in sorted(table.items()):
                images[dataset] = stats.total
        if own_digests == digests:
            measured[record.name] = samples
    return Measurements(SplitSamples(split, images, measured), notes)


def _samples_of(record: TrialRecord, split: str) -> int:
    """Return the number of predictions of a record on a split, over its seeds."""
    if split not in record.results:
        return 0
    result = record.results[split]
    return result.samples * max(1, len(result.by_seed))


def _read(
    folder: SweepFolder, record: TrialRecord, split: str, metrics: tuple[str, ...]
) -> tuple[StatsBySeed, dict[str, bytes] | None, RecordSamples | None]:
    """Return a record's statistics, its image digests and its samples; ValueError for a file of another record."""
    path = folder.inside(folder.artifacts(record.name) / split)
    stamp = 0
    if path.is_dir():
        stamp = path.stat().st_mtime_ns
    table = _read_table(path, stamp)
    if not table:
        return {}, None, None
    _require_same_accuracy(table, record.results[split])
    digests = image_digests(table)
    if digests is None:
        return table, None, None
    samples = _sample(path, stamp, record.name, split, metrics, is_deterministic(record, table))
    return table, digests, samples


@lru_cache(maxsize=MAX_RECORDS)
def _read_table(path: Path, stamp: int, posthoc: str = "") -> StatsBySeed:
    """Read a file once for each time that its folder changed: files there are replaced, never edited."""
    return read_block_stats(path.parent, path.name, posthoc) or {}


@lru_cache(maxsize=MAX_RECORDS)  # a report is written again whenever a trial ends
def _sample(
    path: Path, stamp: int, name: str, split: str, metrics: tuple[str, ...], deterministic: bool
) -> RecordSamples:
    record = sample_record(name, _read_table(path, stamp), split, metrics, deterministic=deterministic)
    samples = dict(record.metrics)
    for posthoc in sorted({catalogue.parts_of(metric).posthoc for metric in metrics} - {""}):
        table = _read_table(path, stamp, posthoc)
        if table:
            samples |= sample_record(name, table, split, metrics, posthoc=posthoc).metrics
    return replace(record, metrics=samples)


def _require_same_accuracy(table: StatsBySeed, result: SplitResult) -> None:
    """Raise ValueError unless the statistics give the record's accuracies."""
    for (dataset, seed), stats in table.items():
        recorded: Mapping[str, Mapping[str, float]] = result.by_seed.get(str(seed), result.datasets)
        expected = recorded.get(dataset, {}).get(catalogue.ACCURACY)
        value = metric_value(catalogue.ACCURACY, stats)
        if expected is None or abs(value - expected) > ACCURACY_TOLERANCE:
            recorded_text = "no value"
            if expected is not None:
                recorded_text = f"{expected:.2f}"
            raise ValueError(f"accuracy on {dataset}, seed {seed}, is {value:.2f} there and {recorded_text} on record")
