"""Numbers of a comparison of trials and baselines of one sweep, paired on the images that all of them have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import metrics_shown, splits_of
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.report.shared_images import TEST, restrict_to_common
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.statistics.block_stats import Common
from fpp_sweep.statistics.bootstrap import holm, needed
from fpp_sweep.trial.artifacts import read_sums
from fpp_sweep.trial.evidence import SplitEvidence, of_split


@dataclass(frozen=True, slots=True, eq=False)
class TrialComparison:
    """Trials and baselines of a sweep against each other."""

    split: str
    is_search_split: bool  # the trials were chosen by these images
    results: Mapping[str, SplitResult]  # by label, on the images that all of them have seen
    metrics: Sequence[str]
    evidence: SplitEvidence
    p_values: Mapping[tuple[str, str, str], float]  # corrected, by both labels and the metric (ece or ece/digits)


def compare_trials(folder: SweepFolder, names: Sequence[str], split: str | None = None) -> TrialComparison:
    """Compare records of a sweep; on the test split if all were run there, unless a split is given."""
    info = folder.info()
    records = list({record.name: record for record in (_complete_record(folder, name) for name in names)}.values())
    if len(records) < 2:
        raise InputError(f"{names[0]} alone: give two or more trials or baselines, or another sweep")
    split = _split_to_compare(info, records, split)
    common = _common_images(folder, records, split)
    results = {}
    for record in records:
        restricted = restrict_to_common(record, folder.artifacts(record.name), {split: common}, ())
        if restricted is not None:
            results[record.label] = restricted.results[split]
    stems = dict.fromkeys(metric.partition("/")[0] for metric in metrics_shown(info.objectives))
    metrics = [stem for stem in stems if all(stem in result.average for result in results.values())]
    evidence = of_split(folder.artifacts, records, split, tuple(needed(metrics)), common)
    if evidence is None or len(results) < len(records):
        raise InputError(f"{', '.join(record.label for record in records)} share no image of {split}")
    evidence = replace(evidence, places={record.label: evidence.places[record.name] for record in records})
    return TrialComparison(
        split=split,
        is_search_split=split == info.search_split,
        results=results,
        metrics=metrics,
        evidence=evidence,
        p_values=_corrected_p_values(evidence, metrics),
    )


def _complete_record(folder: SweepFolder, name: str) -> TrialRecord:
    """Return a finished record by its name, that of a baseline also without its prefix."""
    names = [file.stem for file in folder.trial_files()]
    full_name = name if name in names else f"baseline-{name}"
    if full_name not in names:
        raise unknown(f"trial of {folder.path.name}", name, names)
    record = folder.trial(full_name)
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


def _common_images(folder: SweepFolder, records: Sequence[TrialRecord], split: str) -> Common:
    images = []
    for record in records:
        of_record = Common.of(read_sums(folder.artifacts(record.name), split))
        if not of_record.datasets:
            raise InputError(f"{record.label} has no sums of its predictions on {split}: nothing can be paired")
        images.append(of_record)
    return reduce(Common.shared, images)


def _corrected_p_values(evidence: SplitEvidence, metrics: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """Return p-values by pair and metric; the averages are one family of tests, the datasets another."""
    by_dataset = [f"{metric}/{dataset}" for metric in metrics for dataset in evidence.datasets]
    corrected: dict[tuple[str, str, str], float] = {}
    for family in (metrics, by_dataset):
        p_values = {}
        for metric in family:
            for first, second in combinations(evidence.places, 2):
                difference = evidence.difference(first, second, metric)
                if difference is not None:
                    p_values[first, second, metric] = difference.p
        corrected.update(zip(p_values, holm(list(p_values.values())), strict=True))
    return corrected
