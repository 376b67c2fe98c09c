"""Measurements in the files of trials: block statistics by dataset and seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import draws_order
from fpp_sweep.spec.files import read_own
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, StatsBySeed, from_bytes, seeds_of
from fpp_sweep.statistics.bootstrap import NO_MAP, RecordSamples, SplitSamples, image_digests, sample_record
from fpp_sweep.statistics.paired import SplitStatistics

BLOCK_STATS_FILE = "block_stats.npz"

ImagesKey = tuple[tuple[str, bytes], ...]  # digest of the images, by dataset


def resampled_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metrics that intervals can be computed for, without dataset names, each once.

    >>> resampled_metrics(["accuracy", "mce", "ece/dtd", "ece", "ece@isotonic/dtd"])
    ['accuracy', 'ece', 'ece@isotonic']
    """
    names: list[str] = []
    for metric in metrics:
        parts = catalogue.parts_of(metric)
        if parts.stem in BLOCKWISE_METRICS and parts.of_average not in names:
            names.append(parts.of_average)
    return names


def maps_of(metrics: Sequence[str]) -> list[str]:
    """Return the post-hoc maps of metrics, in alphabetical order.

    >>> maps_of(["ece", "ece@isotonic", "nll@isotonic", "accuracy@bcts"])
    ['bcts', 'isotonic']
    """
    return sorted({catalogue.parts_of(metric).posthoc for metric in metrics} - {NO_MAP})


def block_stats_file(posthoc: str) -> str:
    """Return the name of the file of block statistics after a post-hoc map; empty: of the method itself.

    >>> block_stats_file("isotonic")
    'block_stats@isotonic.npz'
    """
    if not posthoc:
        return BLOCK_STATS_FILE
    return BLOCK_STATS_FILE.replace(".", f"@{posthoc}.", 1)


def read_block_stats(folder: Path, split: str, posthoc: str = "") -> StatsBySeed | None:
    """Return a record's block statistics by dataset and seed; None where there is no file; ValueError if damaged."""
    try:
        content = read_own(folder / split / block_stats_file(posthoc))
    except OSError:
        return None
    return from_bytes(content)


def is_deterministic(record: TrialRecord, seeds: Collection[int]) -> bool:
    """Return True if other seeds would not change a record of one seed; of an import it is not known."""
    if len(seeds) > 1 or record.is_imported:
        return False
    config = record.config
    return not record.has_fpp_prompt and not draws_order(config.get("method"), config.get("adapt.order"))


def measure(folder: SweepFolder, records: Sequence[TrialRecord], split: str, metrics: Sequence[str]) -> SplitSamples:
    """Resample the metrics of records on a split: of the largest group of records with the same images.

    Of groups of equal size the one with more images counts.
    """
    averages = resampled_metrics(metrics)
    notes = []
    groups: dict[ImagesKey, list[RecordSamples]] = {}
    images: dict[ImagesKey, Mapping[str, int]] = {}
    for record in records:
        try:
            tables = tables_of(folder, record, split, maps_of(averages))
        except ValueError as error:
            notes.append(f"{record.name}: block statistics of split {split} are ignored: {error}")
            continue
        if tables:
            table = tables[NO_MAP]
            deterministic = is_deterministic(record, seeds_of(table))
            key = tuple(sorted((image_digests(table) or {}).items()))
            images[key] = {dataset: stats.total for (dataset, _), stats in sorted(table.items())}
            samples = sample_record(record.name, tables, split, averages, deterministic=deterministic)
            groups.setdefault(key, []).append(samples)
    if not groups:
        return SplitSamples(split, notes=notes)
    largest = max(groups, key=lambda key: (len(groups[key]), sum(images[key].values())))
    others = [samples.name for key, group in groups.items() if key != largest for samples in group]
    if others:
        notes.append(f"split {split}: no intervals of {', '.join(others)}, measured on other images than most records")
    by_name = {samples.name: samples for samples in groups[largest]}
    return SplitSamples(split, images[largest], by_name, dict(largest), notes)


def tables_of(folder: SweepFolder, record: TrialRecord, split: str, maps: Sequence[str]) -> dict[str, StatsBySeed]:
    """Return a record's block statistics, and those after post-hoc maps; empty without a result or a file.

    Raise ValueError for a file that is damaged, or of seeds with different images.
    """
    artifacts = folder.artifacts(record.name)
    table = read_block_stats(artifacts, split) if split in record.results else None
    if table is None:
        return {}
    digests = image_digests(table)
    if digests is None:
        raise ValueError("its seeds have different images")
    tables = {NO_MAP: table}
    for posthoc in maps:
        mapped_table = read_block_stats(artifacts, split, posthoc)
        if not mapped_table:
            continue
        if image_digests(mapped_table) != digests:
            raise ValueError(f"{block_stats_file(posthoc)} is of other images than {BLOCK_STATS_FILE}")
        tables[posthoc] = mapped_table
    return tables


# ------------------------------------------------------------ luck of the search


def chosen_by(info: SweepInfo, splits: Mapping[str, SplitStatistics], split: str, trial: TrialRecord) -> str:
    """Return by what of a split the search chose a trial: `images` or `seeds`; empty: by nothing.

    The best of many trials is lucky with them. The final stage has the images of the search if there are no fresh ones,
    and the test split may have them under another name. Without a final stage, the front runs on the test split with
    the seeds of the search. A seed that only draws views cannot have chosen a trial: other images get other views.
    """
    judged, searched = splits.get(split), splits.get(info.search_split)
    if split == info.search_split:
        return "images"
    if judged is None:
        return ""
    seeds_of_search = set(info.seeds)
    if searched is not None:
        if set(searched.samples.digests.values()) & set(judged.samples.digests.values()):
            return "images"
        if trial.name in searched.samples.records:
            seeds_of_search = set(searched.samples.records[trial.name].seeds)
    if not trial.has_fpp_prompt or trial.name not in judged.samples.records:
        return ""
    return "seeds" if seeds_of_search & set(judged.samples.records[trial.name].seeds) else ""
