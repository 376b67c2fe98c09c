"""Images that sweeps share, and records measured again on these images alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import ADDITIVE, Common, value_of
from fpp_sweep.trial.artifacts import read_sums
from fpp_sweep.trial.trial import mean, measured

TEST = "test"


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

    def images(self, split: str) -> Common | None:
        """Return the images that the first record with sums of its predictions was measured on."""
        for record in self.complete:
            if split in record.results:
                sums = read_sums(self.folder.artifacts(record.name), split)
                if sums:
                    return Common.of(sums)
        return None

    def seconds_until(self, time: float) -> float:
        """Return how long workers were held for the search until a time, including trials that were stopped early."""
        seconds = []
        for record in self.records:
            if record.kind == "trial" and (record.finished or math.inf) <= time:
                seconds.append(record.held)
                if self.info.search_split in record.results:
                    seconds.append(record.results[self.info.search_split].device_seconds)
        return math.fsum(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedImages:
    """The split on which most sweeps share images, and these images."""

    split: str
    sweeps: Sequence[LoadedSweep]
    images: Common
    excluded: Sequence[str]  # which sweeps share nothing, and why
    common: Mapping[str, Common] = field(default_factory=dict)  # by split: this one, and others that all sweeps share


def shared_images(sweeps: Sequence[LoadedSweep]) -> SharedImages:
    splits = dict.fromkeys([*(sweep.info.search_split for sweep in sweeps), TEST])
    candidates = {split: _share_split(sweeps, split) for split in splits}
    split = max(candidates, key=lambda name: len(candidates[name][0]))
    sharing, images, excluded = candidates[split]
    if images is None or len(sharing) < 2:
        raise InputError(f"nothing to compare: {'; '.join(excluded)}; give sweeps on the same images")
    common = {split: images}
    for other, (other_sharing, other_images, _) in candidates.items():  # the best may have been run on test, too
        if other != split and other_sharing == sharing and other_images is not None:
            common[other] = other_images
    return SharedImages(split=split, sweeps=sharing, images=images, excluded=excluded, common=common)


def _share_split(sweeps: Sequence[LoadedSweep], split: str) -> tuple[list[LoadedSweep], Common | None, list[str]]:
    """Return the sweeps that share images of a split, these images, and why other sweeps share none."""
    sharing: list[LoadedSweep] = []
    common: Common | None = None
    excluded = []
    for sweep in sweeps:
        images = sweep.images(split)
        if images is None:
            excluded.append(f"{sweep.label} has no sums of predictions on {split}")
            continue
        overlap = images if common is None else common.shared(images)
        if overlap.datasets and overlap.seeds:
            common = overlap
            sharing.append(sweep)
        else:
            lacking = "seed" if overlap.datasets else "image"
            labels = ", ".join(rival.label for rival in sharing)
            excluded.append(f"{sweep.label} shares no {lacking} of {split} with {labels}")
    return sharing, common, excluded


def partly_shared(shared: SharedImages) -> Iterator[str]:
    """Yield what the sweeps have and do not share."""
    for sweep in shared.sweeps:
        images = sweep.images(shared.split) or shared.images
        lacking = [name for name in images.images if name not in shared.images.images]
        if lacking:
            names = ", ".join(lacking)
            yield f"{sweep.label}: {names} of {shared.split} cannot be paired; left out of every number here"
        cut = []
        for name, count in shared.images.images.items():
            if count < images.images[name]:
                cut.append(f"{count} of {images.images[name]} of {name}")
        if cut:
            yield f"{sweep.label}: compared on the images of {shared.split} that all have seen, {', '.join(cut)}"
        if images.seeds != shared.images.seeds:
            yield f"{sweep.label}: compared on seeds {_listed(shared.images.seeds)} of {_listed(images.seeds)}"
        if sweep.info.search_split != shared.split:
            yield (
                f"{sweep.label} searched {sweep.info.search_split}: its records that were run on {shared.split}, too, "
                "are compared"
            )


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(str(seed) for seed in seeds)


def differing_inputs(shared: SharedImages) -> Iterator[str]:
    """Yield datasets whose labels or files differ from the first sweep's, if both have seen as many of its images."""
    searched = [sweep for sweep in shared.sweeps if sweep.info.search_split == shared.split]
    if not searched:
        return
    first = searched[0]
    first_images = (first.images(shared.split) or shared.images).images
    for sweep in searched[1:]:
        images = (sweep.images(shared.split) or shared.images).images
        same_size = [name for name in shared.images.images if images[name] == first_images[name]]
        for tag, subject in (("datasets_digest", "labels or views"), ("images_digest", "image files (size or time)")):
            digests, first_digests = _digests(sweep.info, tag), _digests(first.info, tag)
            names = [name for name in same_size if digests.get(name) != first_digests.get(name)]
            if names:
                yield (
                    f"{sweep.label}: {subject} of {', '.join(names)} differ from {first.label}'s; paired by their names"
                )


def _digests(info: SweepInfo, tag: str) -> dict[str, str]:
    return dict(zip(info.tags.get("datasets", "").split(", "), info.tags.get(tag, "").split(", "), strict=False))


# --- records on common images -------------------------------------------------------------------------


def restrict_to_common(
    record: TrialRecord, path: Path, common: Mapping[str, Common], objectives: Sequence[Objective]
) -> TrialRecord | None:
    """Return a record with its numbers on the common images of each split; None if it lacks some of the first split."""
    results = {}
    for split, images in common.items():
        result = _restrict_result(record, path, split, images)
        if result is not None:
            results[split] = result
    first_split = next(iter(common))
    if first_split not in results:
        return None
    values = [measured(results[first_split], objective.metric) for objective in objectives]
    return replace(record, results=results, values=values)


def _restrict_result(record: TrialRecord, path: Path, split: str, common: Common) -> SplitResult | None:
    """Return a result on the common images; on a part of a dataset's images only blockwise metrics are known."""
    if split not in record.results:
        return None
    result = record.results[split]
    sums = read_sums(path, split)
    by_dataset: dict[str, list[Mapping[str, float]]] = {}
    for (dataset, seed), stats in common.taken(sums).items():
        if stats.total == sums[dataset, seed].total:
            metrics = result.by_seed.get(str(seed), result.datasets)[dataset]
        else:
            metrics = {metric: value_of(metric, stats) for metric in ADDITIVE}
        by_dataset.setdefault(dataset, []).append(metrics)
    if not by_dataset:
        return None
    datasets = {dataset: mean(of_seeds) for dataset, of_seeds in by_dataset.items()}
    average = mean(_metrics_of_all(list(datasets.values())))
    return replace(result, average=average, datasets=datasets, deviation={}, by_seed={})


def _metrics_of_all(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the rows without the metrics that any of them lacks."""
    shared = [metric for metric in rows[0] if all(metric in row for row in rows)]
    return [{metric: row[metric] for metric in shared} for row in rows]
