"""Numbers of a comparison of trials and baselines of one sweep, paired on the images that all of them have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from pathlib import Path

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import metrics_shown, splits_of
from fpp_sweep.records.luck import has_images_of_search, has_seeds_of_search
from fpp_sweep.records.measurements import is_deterministic, maps_of, read_block_stats, resampled_metrics
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.report.shared_images import TEST, MeasuredImages, restrict_result
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import StatsBySeed, seeds_of
from fpp_sweep.statistics.bootstrap import NO_MAP, SplitSamples, image_digests, sample_record
from fpp_sweep.statistics.paired import (
    Difference,
    SeedVariances,
    SplitStatistics,
    corrected_differences,
    seed_variances,
)
from fpp_sweep.statistics.verdicts import Answer
from fpp_sweep.trial.artifacts import read_or_compute_block_stats

Key = tuple[str, str, str]  # two labels and a metric, such as ece or ece/digits


@dataclass(frozen=True, slots=True, eq=False)
class TrialComparison:
    """Trials and baselines of a sweep against each other."""

    split: str
    chosen_by: str  # by what the search chose the trials, so that their values may be luck: images, seeds, or nothing
    trials: Sequence[TrialRecord]  # without the baselines
    results: Mapping[str, SplitResult]  # by label, on the images that all of them have seen
    metrics: Sequence[str]
    statistics: SplitStatistics  # on these images, by label; with the sweep's variances of seeds
    differences: Mapping[Key, Difference]
    from_answer: frozenset[Key]  # differences that the sweep's answer has: corrected within its family


def compare_trials(folder: SweepFolder, names: Sequence[str], split: str | None = None) -> TrialComparison:
    """Compare records of a sweep; on the test split if all were run there, unless a split is given."""
    info = folder.info()
    records = _complete_records(folder, names)
    split = _split_to_compare(info, records, split)
    images = _common_images(folder, records, split)
    results = {}
    for record in records:
        result = restrict_result(record, folder.artifacts(record.name), split, images)
        if result is None:
            labels = ", ".join(record.label for record in records)
            raise InputError(f"{labels} share no image of {split}")
        results[record.label] = result
    metrics = _shared_metrics(info, results)
    samples = _sample_records(folder, records, split, images, metrics)
    of_sweep = statistics_of(folder, info, folder.trials())
    answer_differences = _answer_differences(of_sweep.answer, records, samples)
    seeds_of_sweep = of_sweep.splits[split].seeds if split in of_sweep.splits else {}
    statistics = SplitStatistics(samples, _seed_variances(samples, metrics, records, seeds_of_sweep))
    return TrialComparison(
        split=split,
        chosen_by=_chosen_by(info, of_sweep.splits, split, records),
        trials=[record for record in records if record.kind == "trial"],
        results=results,
        metrics=metrics,
        statistics=statistics,
        differences=_differences(statistics, metrics) | answer_differences,
        from_answer=frozenset(answer_differences),
    )


def _chosen_by(
    info: SweepInfo, splits: Mapping[str, SplitStatistics], split: str, records: Sequence[TrialRecord]
) -> str:
    """Return by what the search chose the trials, so that their values on the split may be luck; empty: by neither."""
    if info.evaluate_only:
        return ""
    if has_images_of_search(info, splits, split):
        return "images"
    if any(has_seeds_of_search(info, splits, split, record) for record in records):
        return "seeds"
    return ""


def _shared_metrics(info: SweepInfo, results: Mapping[str, SplitResult]) -> list[str]:
    """Return the shown metrics, without dataset names, that all results have."""
    shared = []
    for metric in metrics_shown(info):
        stem = catalogue.parts_of(metric).of_average
        if stem not in shared and all(stem in result.average for result in results.values()):
            shared.append(stem)
    return shared


def _complete_records(folder: SweepFolder, names: Sequence[str]) -> list[TrialRecord]:
    """Return the records, each once, trials before baselines: differences are trial minus baseline."""
    trials = {}
    baselines = {}
    for name in names:
        record = _complete_record(folder, name)
        if record.kind == "trial":
            trials[record.name] = record
        else:
            baselines[record.name] = record
    records = [*trials.values(), *baselines.values()]
    if len(records) < 2:
        raise InputError(f"{names[0]} alone: give two or more trials or baselines, or another sweep")
    return records


def _complete_record(folder: SweepFolder, name: str) -> TrialRecord:
    record = folder.known_trial(name)
    if record.state != "complete":
        raise InputError(f"{name} is {record.state}: only complete trials can be compared")
    return record


def _split_to_compare(info: SweepInfo, records: Sequence[TrialRecord], split: str | None) -> str:
    shared = []
    for candidate in splits_of(info, records):
        if all(candidate in record.results for record in records):
            shared.append(candidate)
    if split is None:
        return TEST if TEST in shared else info.search_split
    if split not in shared:
        raise InputError(f"not all were run on {split}; all were on {' and '.join(shared)}", "--split")
    return split


def _common_images(folder: SweepFolder, records: Sequence[TrialRecord], split: str) -> MeasuredImages:
    images = []
    for record in records:
        record_images = MeasuredImages.of(read_or_compute_block_stats(folder.artifacts(record.name), split))
        if not record_images.datasets:
            raise InputError(f"{record.label} has no block statistics on {split}: nothing can be paired")
        images.append(record_images)
    return reduce(MeasuredImages.intersection, images)


def _sample_records(
    folder: SweepFolder, records: Sequence[TrialRecord], split: str, images: MeasuredImages, metrics: Sequence[str]
) -> SplitSamples:
    """Resample the records on common images, by label."""
    by_label = {}
    for record in records:
        artifacts = folder.artifacts(record.name)
        table = images.read(artifacts, split)
        if image_digests(table) != images.digests:
            raise InputError(f"{record.name}: its block statistics of {split} lack a seed of a dataset; run it again")
        tables = {NO_MAP: table}
        for posthoc in maps_of(metrics):
            mapped_table = images.restrict(_stats_after_map(artifacts, split, posthoc))
            if image_digests(mapped_table) == images.digests:
                tables[posthoc] = mapped_table
        deterministic = is_deterministic(record, seeds_of(table))
        by_label[record.label] = sample_record(
            record.label, tables, split, resampled_metrics(metrics), deterministic=deterministic
        )
    return SplitSamples(split, images.counts, by_label, images.digests)


def _stats_after_map(artifacts: Path, split: str, posthoc: str) -> StatsBySeed:
    """Return a record's block statistics after a post-hoc map; an empty table if their file is missing or damaged."""
    try:
        return read_block_stats(artifacts, split, posthoc) or {}
    except InputError:  # a link out of the folder
        raise
    except ValueError:
        return {}


def _seed_variances(
    samples: SplitSamples, metrics: Sequence[str], records: Sequence[TrialRecord], of_sweep: Mapping[str, SeedVariances]
) -> dict[str, SeedVariances]:
    """Return the sweep's variances of seeds by label, so that a number has the same interval here as in `show`.

    The compared records tell the variances of metrics that the sweep's statistics of this split lack.
    """
    averages, by_dataset = _families(samples, metrics)
    variances = seed_variances(samples, [*averages, *by_dataset])
    for metric in variances.keys() & of_sweep.keys():
        by_name = of_sweep[metric].by_record
        by_label = {record.label: by_name[record.name] for record in records if record.name in by_name}
        variances[metric] = replace(of_sweep[metric], by_record=by_label)
    return variances


def _families(samples: SplitSamples, metrics: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the two families of tests: metrics as averages, and by dataset."""
    averages = resampled_metrics(metrics)
    by_dataset = []
    for metric in averages:
        by_dataset += [f"{metric}/{dataset}" for dataset in samples.images]
    return averages, by_dataset


def _differences(statistics: SplitStatistics, metrics: Sequence[str]) -> dict[Key, Difference]:
    """Return the differences of all pairs; those of averages are one family of tests, those by dataset another."""
    samples = statistics.samples
    pairs = list(combinations(samples.records, 2))
    differences = {}
    for family in _families(samples, metrics):
        for difference in corrected_differences(samples, pairs, family, statistics.seeds):
            differences[difference.first, difference.second, difference.metric] = difference
    return differences


def _answer_differences(answer: Answer, records: Sequence[TrialRecord], samples: SplitSamples) -> dict[Key, Difference]:
    """Return the differences that the sweep's answer has on the same images: one verdict for a pair everywhere."""
    if answer.split != samples.split or dict(answer.images) != dict(samples.images):
        return {}
    differences = {}
    for first, second in combinations(records, 2):
        for metric in answer.metrics:
            difference = answer.difference(first.name, second.name, metric)
            if difference is not None:
                differences[first.label, second.label, metric] = difference
    return differences
