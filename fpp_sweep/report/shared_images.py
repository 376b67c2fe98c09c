"""Images that sweeps share, and records measured again on these images alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import accuracies_of, require_same_accuracy
from fpp_sweep.records.records import ENDED, SplitResult, SweepInfo, TrialRecord, mean_of_shared, measured_value
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.block_stats import (
    BLOCKWISE_METRICS,
    BlockStats,
    StatsBySeed,
    metric_value,
    restrict_to_shared_blocks,
)
from fpp_sweep.trial.artifacts import read_or_compute_block_stats

TEST = "test"


@dataclass(frozen=True, slots=True)
class MeasuredImages:
    """The images of one split that a record was measured on; after an intersection, those that several records share.

    The seeds of the records may differ: the variance of seeds is part of every test.
    """

    datasets: Mapping[str, BlockStats]  # datasets of all these records; the digests identify the images

    @classmethod
    def of(cls, table: StatsBySeed) -> MeasuredImages:
        """Return all images of a record."""
        return cls({dataset: stats for (dataset, _), stats in table.items()})

    @property
    def counts(self) -> dict[str, int]:
        return {dataset: stats.total for dataset, stats in self.datasets.items()}

    @property
    def digests(self) -> dict[str, bytes]:
        """Digests of each dataset's images; equal for all statistics that `restrict` returns."""
        return {dataset: stats.digests.tobytes() for dataset, stats in self.datasets.items()}

    def intersection(self, other: MeasuredImages) -> MeasuredImages:
        datasets = {}
        for name, stats in self.datasets.items():
            if name in other.datasets:
                try:
                    datasets[name] = restrict_to_shared_blocks([stats, other.datasets[name]])[0]
                except InputError:  # other images under the same name
                    continue
        return MeasuredImages(datasets)

    def read(self, artifacts: Path, split: str) -> dict[DatasetSeed, BlockStats]:
        """Return the statistics of a record's artifacts on these images; an empty table if some of them are missing."""
        return self.restrict(read_or_compute_block_stats(artifacts, split))

    def restrict(self, table: StatsBySeed) -> dict[DatasetSeed, BlockStats]:
        """Return a record's statistics on these images; an empty table if the record lacks some of them."""
        restricted = {}
        for (dataset, seed), stats in table.items():
            if dataset in self.datasets:
                images = self.datasets[dataset]
                if images.size % stats.size:
                    return {}
                coarse = stats.with_block_size(images.size)
                part = coarse.take(np.isin(coarse.digests, images.digests))
                if len(part) != len(images):
                    return {}
                restricted[dataset, seed] = part
        found_datasets = {dataset for dataset, _ in restricted}
        if found_datasets != self.datasets.keys():
            return {}
        return restricted


@dataclass(frozen=True, slots=True)
class LoadedSweep:
    """A sweep as its folder has it."""

    label: str
    folder: SweepFolder
    info: SweepInfo
    records: Sequence[TrialRecord]

    @classmethod
    def of(cls, label: str, folder: SweepFolder) -> LoadedSweep:
        return cls(label, folder, folder.info(), folder.trials())

    @property
    def complete(self) -> list[TrialRecord]:
        return [record for record in self.records if record.state == "complete"]

    def images(self, split: str) -> MeasuredImages | None:
        """Return the images that the first record with block statistics was measured on."""
        for record in self.complete:
            if split in record.results:
                table = read_or_compute_block_stats(self.folder.artifacts(record.name), split)
                if table:
                    return MeasuredImages.of(table)
        return None

    def seconds_until(self, time: float) -> float:
        """Return the seconds that workers spent on the search until a time, trials that were stopped early included."""
        seconds = []
        for record in self.records:
            if record.kind == "trial" and (record.finished or math.inf) <= time:
                seconds.append(record.seconds_without_result)
                if self.info.search_split in record.results:
                    seconds.append(record.results[self.info.search_split].worker_seconds)
        return math.fsum(seconds)

    def n_trials_until(self, time: float) -> int:
        """Return the number of trials that had ended by a time, also of those not on the front.

        A trial that was interrupted has a time, too, but has not ended: it begins again when the sweep is resumed.
        """
        n_trials = 0
        for record in self.records:
            if record.kind != "trial" or record.state not in ENDED:
                continue
            if record.finished is not None and record.finished <= time:
                n_trials += 1
        return n_trials


# --- what sweeps share --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSplit:
    """The split on which most sweeps share images: these sweeps, the images, and why other sweeps are excluded."""

    split: str
    sweeps: Sequence[LoadedSweep]
    images: MeasuredImages
    excluded: Sequence[str]  # sentences: this sweep shares nothing, and why
    by_split: Mapping[str, MeasuredImages] = field(default_factory=dict)  # this split, and others that all sweeps share

    def images_of(self, sweep: LoadedSweep) -> MeasuredImages:
        """Return all images of the split that one of the sweeps was measured on."""
        images = sweep.images(self.split)
        assert images is not None  # a sweep without images of the split is excluded
        return images


def shared_split(sweeps: Sequence[LoadedSweep]) -> SharedSplit:
    """Return the split and the images to compare sweeps on; raise an error if no two of them share images."""
    splits = [sweep.info.search_split for sweep in sweeps]
    candidates = {}
    for split in (*splits, TEST):
        candidates[split] = _intersect(sweeps, split)
    split = max(candidates, key=lambda name: len(candidates[name].sweeps))
    chosen = candidates[split]
    if chosen.images is None or len(chosen.sweeps) < 2:
        raise InputError(f"nothing to compare: {'; '.join(chosen.excluded)}; give sweeps on the same images")
    by_split = {split: chosen.images}
    for other_split, candidate in candidates.items():
        if other_split != split and candidate.sweeps == chosen.sweeps and candidate.images is not None:
            by_split[other_split] = candidate.images  # the best trials may have been run on test, too
    return SharedSplit(
        split=split,
        sweeps=chosen.sweeps,
        images=chosen.images,
        excluded=[f"{reason}: left out" for reason in chosen.excluded],
        by_split=by_split,
    )


@dataclass(frozen=True, slots=True)
class _Intersection:
    """The images of a split that sweeps share."""

    sweeps: Sequence[LoadedSweep]  # the sweeps that share them
    images: MeasuredImages | None  # None: no sweep has images of the split
    excluded: Sequence[str]  # why other sweeps share none


def _intersect(sweeps: Sequence[LoadedSweep], split: str) -> _Intersection:
    sharing: list[LoadedSweep] = []
    common: MeasuredImages | None = None
    excluded = []
    for sweep in sweeps:
        images = sweep.images(split)
        if images is None:
            excluded.append(f"{sweep.label} has no block statistics of its predictions on {split}")
            continue
        overlap = images
        if common is not None:
            overlap = common.intersection(images)
        if overlap.datasets:
            common = overlap
            sharing.append(sweep)
        else:
            labels = ", ".join(rival.label for rival in sharing)
            excluded.append(f"{sweep.label} shares no whole block of images of {split} with {labels}")
    return _Intersection(sharing, common, excluded)


def partly_shared(shared: SharedSplit) -> Iterator[str]:
    """Yield what the sweeps have and do not share."""
    counts = shared.images.counts
    for sweep in shared.sweeps:
        own_counts = shared.images_of(sweep).counts
        lacking = [name for name in own_counts if name not in counts]
        if lacking:
            names = ", ".join(lacking)
            yield f"{sweep.label}: {names} of {shared.split} cannot be paired; left out of every number here"
        cut = []
        for name, count in counts.items():
            if count < own_counts[name]:
                cut.append(f"{count} of {own_counts[name]} of {name}")
        if cut:
            yield f"{sweep.label}: compared on the images of {shared.split} that all have seen, {', '.join(cut)}"
        if sweep.info.search_split != shared.split:
            yield (
                f"{sweep.label} searched {sweep.info.search_split}: its records that were run on {shared.split}, too, "
                "are compared"
            )


def differing_inputs(shared: SharedSplit) -> Iterator[str]:
    """Yield datasets whose labels or files differ from the first sweep's, if both have seen as many of its images."""
    searched = [sweep for sweep in shared.sweeps if sweep.info.search_split == shared.split]
    if not searched:
        return
    first = searched[0]
    first_counts = shared.images_of(first).counts
    for sweep in searched[1:]:
        counts = shared.images_of(sweep).counts
        same_size = [name for name in shared.images.datasets if counts[name] == first_counts[name]]
        compared_digests = (
            ("class names, labels or views", sweep.info.datasets, first.info.datasets),
            ("image files (size or time)", sweep.info.images, first.info.images),
        )
        for subject, digests, first_digests in compared_digests:
            differing = [name for name in same_size if digests.get(name) != first_digests.get(name)]
            if differing:
                names = ", ".join(differing)
                yield f"{sweep.label}: {subject} of {names} differ from {first.label}'s; paired by their names"


# --- records on common images -------------------------------------------------------------------------


def restrict_record(
    record: TrialRecord, path: Path, images: Mapping[str, MeasuredImages], objectives: Sequence[Objective]
) -> TrialRecord | None:
    """Return a record with its numbers on the images of each split; None if it lacks some of the first split."""
    results = {}
    for split, split_images in images.items():
        result = restrict_result(record, path, split, split_images)
        if result is not None:
            results[split] = result
    first_split = next(iter(images))
    if first_split not in results:
        return None
    values = []
    for objective in objectives:
        values.append(measured_value(results[first_split], objective.metric))
    return replace(record, results=results, values=values)


def restrict_result(record: TrialRecord, path: Path, split: str, images: MeasuredImages) -> SplitResult | None:
    """Return a result on some images; on a part of a dataset's images only blockwise metrics are known."""
    if split not in record.results:
        return None
    result = record.results[split]
    table = read_or_compute_block_stats(path, split)
    try:
        require_same_accuracy(accuracies_of(table), result)
    except ValueError as error:
        problem = f"the block statistics of split {split} are of another record: {error}"
        raise InputError(f"{record.name}: {problem}; run it again") from None
    by_dataset: dict[str, list[Mapping[str, float]]] = {}
    for (dataset, seed), stats in images.restrict(table).items():
        if stats.total == table[dataset, seed].total:
            recorded = result.by_seed.get(str(seed), result.datasets)
            if dataset not in recorded:
                raise InputError(f"{record.name}: has block statistics without numbers of {dataset}; run it again")
            metrics = recorded[dataset]
        else:
            metrics = metric_values(stats)
        by_dataset.setdefault(dataset, []).append(metrics)
    if not by_dataset:
        return None
    datasets = {dataset: mean_of_shared(of_seeds) for dataset, of_seeds in by_dataset.items()}
    average = mean_of_shared(list(datasets.values()))
    return replace(result, average=average, datasets=datasets, deviation={}, by_seed={})


def metric_values(stats: BlockStats) -> dict[str, float]:
    """Return the metrics of a part of a dataset's images that follow from block statistics."""
    values = {}
    for metric, row in BLOCKWISE_METRICS.items():
        if not row.linearised:
            values[metric] = metric_value(metric, stats)
    return values
