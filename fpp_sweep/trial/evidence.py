"""What stands with records, resampled: trials on the same images of a split, so that their differences are paired."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fpp_sweep.records import pareto
from fpp_sweep.records.front import Front, values_of
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics import old_bootstrap as core
from fpp_sweep.statistics.block_stats import BlockStats, Numbers
from fpp_sweep.statistics.old_bootstrap import BootstrapSamples, Common, Interval, united
from fpp_sweep.trial.artifacts import changed, read_sums

NEAREST = 200  # trials that resamples are taken of: seconds, and some 30 MB

_Rows = Mapping[str, tuple[tuple[bytes, ...], int, Mapping[str, Numbers]]]


@dataclass(frozen=True, slots=True, eq=False)
class SplitEvidence:
    """Resamples of the records that saw the same images of a split."""

    places: Mapping[str, int]  # of the records, by name
    images: Mapping[str, int]  # of each dataset
    average: Mapping[str, BootstrapSamples]
    datasets: Mapping[str, Mapping[str, BootstrapSamples]]
    far: frozenset[str] = frozenset()  # records that nothing is drawn of

    def found(self, metric: str) -> tuple[Mapping[str, BootstrapSamples], str, int]:
        """Where a metric's resamples are, its plain name, and the images of the smallest dataset in it."""
        stem, _, dataset = metric.partition("/")
        if dataset:
            return self.datasets.get(dataset, {}), stem, self.images.get(dataset, 0)
        return self.average, stem, min(self.images.values())

    def interval(self, name: str, metric: str) -> Interval | str:
        """A value's interval, or why none is honest."""
        if name not in self.places:
            why = "it is far from the front" if name in self.far else "there are no sums of these images"
            return f"no interval: {why}"
        found, stem, images = self.found(metric)
        return core.single(found, stem, self.places[name], images)

    def difference(self, name: str, other: str, metric: str) -> Interval | None:
        """The first minus the second on the same images; None where they cannot be paired."""
        if name not in self.places or other not in self.places:
            return None
        found, stem, _ = self.found(metric)
        return core.difference(found, stem, self.places[name], self.places[other])


def nearest(front: Front) -> list[TrialRecord]:
    """The trials of the front, of the front without those, and so on, until there are enough."""
    near: list[TrialRecord] = []
    left = list(front.finished)
    while left and len(near) < NEAREST:
        layer = set(pareto.front([values_of(record) for record in left], front.goals))
        near += [record for place, record in enumerate(left) if place in layer]
        left = [record for place, record in enumerate(left) if place not in layer]
    return near


def of_split(
    artifacts: Callable[[str], Path],
    records: Sequence[TrialRecord],
    split: str,
    metrics: tuple[str, ...],
    common: Common | None = None,
    also: str = "",
) -> SplitEvidence | None:
    """On the images of the record that saw most; images or seeds of the split `also` are added to them."""
    rows: dict[str, _Rows] = {}
    for record in sorted(records, key=lambda record: -_seen(record.results.get(also or split))):
        path = artifacts(record.name)
        stamps = changed(path / split), changed(path / also) if also else 0
        measured = {split, also} - {""} <= {*record.results}
        row = _rows(path, (split, also), metrics, stamps, common) if measured else {}
        first = next(iter(rows.values()), row)
        if row and _images(row) == _images(first):
            rows[record.name] = row
    if not rows:
        return None
    first = next(iter(rows.values()))
    datasets = {name: core.stacked([row[name][2] for row in rows.values()], first[name][1]) for name in first}
    places = {name: place for place, name in enumerate(rows)}
    images = {name: count for name, (_, count, _) in first.items()}
    return SplitEvidence(places, images, core.averaged(list(datasets.values())), datasets)


def _seen(result: SplitResult | None) -> int:
    return result.samples * max(1, len(result.by_seed)) if result else 0


def _images(row: _Rows) -> dict[str, tuple[bytes, ...]]:
    return {dataset: digests for dataset, (digests, _, _) in row.items()}


@lru_cache(maxsize=2 * NEAREST)  # a report is made again whenever a trial ends
def _rows(
    path: Path, splits: tuple[str, str], metrics: tuple[str, ...], at: tuple[int, int], common: Common | None
) -> _Rows:
    """By dataset: which images the seeds saw, how many, and the resamples of the trial."""
    split, also = splits
    table = read_sums(path, split)
    table = dict(united(table, read_sums(path, also))) if also else table
    seeds: dict[str, list[BlockStats]] = {}
    for (dataset, _), one in sorted((common.taken(table) if common else table).items(), key=lambda item: item[0]):
        seeds.setdefault(dataset, []).append(one)
    return {
        dataset: (
            tuple(one.digests.tobytes() for one in given),
            given[0].total,
            core.resampled(dataset, split, given, metrics),
        )
        for dataset, given in seeds.items()
        if len({len(one) for one in given}) == 1
    }


def signed(front: Front, searched: SplitEvidence, trials: Sequence[TrialRecord]) -> Numbers:
    """(objectives, trials, draws), recentred, more being better; what does not follow from sums is taken as exact."""
    places = [searched.places[trial.name] for trial in trials]
    rows = []
    for index, objective in enumerate(front.objectives):
        found, stem, _ = searched.found(objective.metric)
        values = np.array([values_of(trial)[index] for trial in trials])
        exact = np.repeat(values[:, None], core.DRAWS, axis=1)
        rows.append((found[stem].recentred[places] if stem in found else exact) * catalogue.sign(objective.goal))
    return np.stack(rows)
