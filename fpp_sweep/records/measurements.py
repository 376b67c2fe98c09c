"""Block statistics of records, read from a sweep's folder and checked against the records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import draws_order
from fpp_sweep.spec.files import read_inside
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, StatsBySeed, from_bytes
from fpp_sweep.statistics.bootstrap import RecordSamples, SplitSamples, image_digests, sample_record

BLOCK_STATS_FILE = "block_stats.npz"
ACCURACY_TOLERANCE = 1e-6  # points; a file of another record differs by far more

ImagesKey = tuple[tuple[str, bytes], ...]  # digest of the images, by dataset


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


def is_deterministic(record: TrialRecord, seeds: Collection[int]) -> bool:
    """Return True if other seeds would not change a record of one seed."""
    config = record.config
    depends_on_seed = record.has_fpp_prompt or draws_order(config.get("method"), config.get("adapt.order"))
    return len(seeds) == 1 and not depends_on_seed


def measure(folder: SweepFolder, records: Sequence[TrialRecord], split: str, metrics: Sequence[str]) -> Measurements:
    """Resample the metrics of records on a split: of the largest group of records with the same images.

    Of groups of equal size the one with more images counts.
    """
    notes = []
    groups: dict[ImagesKey, list[RecordSamples]] = {}
    images: dict[ImagesKey, dict[str, int]] = {}
    stems = tuple(resampled_metrics(metrics))
    for record in records:
        if split not in record.results:
            continue
        try:
            measured = _read(folder, record, split, stems)
        except ValueError as error:
            notes.append(f"{record.name}: block statistics of split {split} are ignored: {error}")
            continue
        if measured is not None:
            key = tuple(sorted(measured.digests.items()))
            images[key] = measured.images
            groups.setdefault(key, []).append(measured.samples)
    if not groups:
        return Measurements(SplitSamples(split), notes)

    def size(key: ImagesKey) -> tuple[int, int]:
        return len(groups[key]), sum(images[key].values())

    largest = max(groups, key=size)
    others = []
    for key, group in groups.items():
        if key != largest:
            others += [samples.name for samples in group]
    if others:
        notes.append(f"split {split}: no intervals of {', '.join(others)}, measured on other images than most records")
    samples_by_name = {samples.name: samples for samples in groups[largest]}
    return Measurements(SplitSamples(split, images[largest], samples_by_name, dict(largest)), notes)


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """Everything that is computed from the files of a record's block statistics."""

    images: dict[str, int]  # by dataset
    digests: dict[str, bytes]  # digest of the images, by dataset
    accuracies: Mapping[DatasetSeed, float]
    samples: RecordSamples


def _read(folder: SweepFolder, record: TrialRecord, split: str, metrics: tuple[str, ...]) -> _Measured | None:
    """Return what a record's files hold, None without usable files; ValueError for a file of another record."""
    path = folder.inside(folder.artifacts(record.name) / split)
    if not path.is_dir():
        return None
    measured = _measure_files(path, record.name, metrics)
    if measured is None:
        return None
    require_same_accuracy(measured.accuracies, record.results[split])
    is_certain = is_deterministic(record, measured.samples.seeds)
    return replace(measured, samples=replace(measured.samples, deterministic=is_certain))


def _measure_files(path: Path, name: str, metrics: tuple[str, ...]) -> _Measured | None:
    """Resample the block statistics in the folder of a record and split; None unless all seeds have the same images."""
    split = path.name
    table = read_block_stats(path.parent, split)
    digests = image_digests(table or {})
    if table is None or digests is None:
        return None
    images = {}
    for (dataset, _), stats in sorted(table.items()):
        images[dataset] = stats.total
    accuracies = accuracies_of(table)
    samples = sample_record(name, table, split, metrics)
    metric_samples = dict(samples.metrics)
    for posthoc in sorted({catalogue.parts_of(metric).posthoc for metric in metrics} - {""}):
        table = read_block_stats(path.parent, split, posthoc)
        if table:
            if image_digests(table) != digests:
                raise ValueError(f"{block_stats_file(posthoc)} is of other images than {BLOCK_STATS_FILE}")
            metric_samples |= sample_record(name, table, split, metrics, posthoc=posthoc).metrics
    return _Measured(images, digests, accuracies, replace(samples, metrics=metric_samples))


def accuracies_of(table: StatsBySeed) -> dict[DatasetSeed, float]:
    """Return the accuracy of each dataset and seed of block statistics."""
    accuracies = {}
    for key, stats in table.items():
        accuracies[key] = 100 * float(stats.correct.sum()) / stats.total
    return accuracies


def require_same_accuracy(accuracies: Mapping[DatasetSeed, float], result: SplitResult) -> None:
    """Raise ValueError unless the accuracies of block statistics are those of the record."""
    for (dataset, seed), accuracy in accuracies.items():
        recorded: Mapping[str, Mapping[str, float]] = result.by_seed.get(str(seed), result.datasets)
        expected = recorded.get(dataset, {}).get(catalogue.ACCURACY)
        if expected is None or abs(accuracy - expected) > ACCURACY_TOLERANCE:
            recorded_text = "no value"
            if expected is not None:
                recorded_text = f"{expected:.2f}"
            values = f"{accuracy:.2f} there and {recorded_text} on record"
            raise ValueError(f"accuracy on {dataset}, seed {seed}, is {values}")
