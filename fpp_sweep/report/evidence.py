"""What a sweep's numbers bear: intervals, support for being on the front, differences to baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fpp_sweep import catalogue
from fpp_sweep.core import evidence as core
from fpp_sweep.core.evidence import Drawn, Interval
from fpp_sweep.core.sums import Common, Numbers, Sums
from fpp_sweep.records import pareto
from fpp_sweep.records.front import Front, metrics_shown, splits_of, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.trial.artifacts import changed, read_sums

NEAREST = 200  # trials that resamples are taken of: seconds, and some 30 MB

_Rows = Mapping[str, tuple[tuple[bytes, ...], int, Mapping[str, Numbers]]]


@dataclass(frozen=True, slots=True, eq=False)
class SplitEvidence:
    """Resamples of the records that saw the same images of a split."""

    places: Mapping[str, int]  # of the records, by name
    images: Mapping[str, int]  # of each dataset
    average: Mapping[str, Drawn]
    datasets: Mapping[str, Mapping[str, Drawn]]
    far: frozenset[str] = frozenset()  # records that nothing is drawn of

    def found(self, metric: str) -> tuple[Mapping[str, Drawn], str, int]:
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


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Of a sweep's front."""

    splits: Mapping[str, SplitEvidence]
    support: Mapping[str, float]  # for being on the front, of every trial that may be
    alike: Mapping[str, Sequence[str]]  # of each member, the trials that no objective tells from it
    expected: Mapping[str, float]  # the accuracy of the most accurate member, less what it owes to being chosen
    region: tuple[Numbers, Numbers] | None = None  # of two objectives: see core.attained, in the objectives' own signs

    def standing(self, name: str) -> str:
        """Such as `clear 0.93`; empty where nothing is known."""
        return f"{core.word(self.support[name])} {self.support[name]:.2f}" if name in self.support else ""


def evidence_of(
    artifacts: Callable[[str], Path],
    info: SweepInfo,
    front: Front,
    common: Mapping[str, Common] | None = None,
    places: Numbers | None = None,
) -> Evidence:
    """What the sums that stand with the records say; without any, nothing.

    `artifacts` tells where a record's files are. Over the images that are `common` on a split, where that is given;
    `places` are where the region is asked for.
    """
    metrics = tuple(core.needed(dict.fromkeys(name.partition("/")[0] for name in metrics_shown(info.objectives))))
    splits = {}
    for split in splits_of(info, front.compared):
        records = _nearest(front) + list(front.baselines) if split == info.search_split else front.compared
        if found := of_split(artifacts, records, split, metrics, common[split] if common else None):
            far = frozenset(record.name for record in front.finished) - {record.name for record in records}
            splits[split] = replace(found, far=far)
    searched = splits.get(info.search_split)
    trials = [trial for trial in front.trials if searched and trial.name in searched.places]
    if searched is None or not trials:
        return Evidence(splits, {}, {}, {})
    better = _better(front, searched, trials)
    shares = core.front_support(better)
    support = {trial.name: float(share) for trial, share in zip(trials, shares, strict=True)}
    return Evidence(
        splits,
        support,
        {member.name: _alike(front, searched, member.name, support) for member in front.members},
        _expected(front, better),
        _region(front, better, places),
    )


def _nearest(front: Front) -> list[TrialRecord]:
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
) -> SplitEvidence | None:
    """The first record's images are those that all must have seen."""
    rows: dict[str, _Rows] = {}
    for record in records:
        path = artifacts(record.name)
        row = _rows(path, split, metrics, changed(path / split), common) if split in record.results else {}
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


def _images(row: _Rows) -> dict[str, tuple[bytes, ...]]:
    return {dataset: digests for dataset, (digests, _, _) in row.items()}


@lru_cache(maxsize=2 * NEAREST)  # a report is made again whenever a trial ends
def _rows(path: Path, split: str, metrics: tuple[str, ...], at: int, common: Common | None) -> _Rows:
    """By dataset: which images the seeds saw, how many, and the resamples of the trial."""
    table = read_sums(path, split)
    seeds: dict[str, list[Sums]] = {}
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


def _better(front: Front, searched: SplitEvidence, trials: Sequence[TrialRecord]) -> Numbers:
    """(objectives, trials, draws), recentred, more being better; what does not follow from sums is taken as exact."""
    places = [searched.places[trial.name] for trial in trials]
    rows = []
    for index, objective in enumerate(front.objectives):
        found, stem, _ = searched.found(objective.metric)
        values = np.array([values_of(trial)[index] for trial in trials])
        exact = np.repeat(values[:, None], core.DRAWS, axis=1)
        rows.append((found[stem].recentred[places] if stem in found else exact) * catalogue.sign(objective.goal))
    return np.stack(rows)


def _alike(front: Front, searched: SplitEvidence, name: str, trials: Mapping[str, float]) -> list[str]:
    if name not in searched.places:
        return []
    same = np.ones(len(searched.places), np.bool_)
    for objective in front.objectives:
        found, stem, _ = searched.found(objective.metric)
        if stem in found:
            same &= core.alike(found, [stem], searched.places[name])
    return [other for other, place in searched.places.items() if same[place] and other != name and other in trials]


def _expected(front: Front, better: Numbers) -> dict[str, float]:
    for index, objective in enumerate(front.objectives):
        if objective.metric == catalogue.ACCURACY and front.members:
            best = max(front.members, key=lambda member: values_of(member)[index])
            return {best.name: values_of(best)[index] - core.optimism(better[index])}
    return {}


def _region(front: Front, better: Numbers, places: Numbers | None) -> tuple[Numbers, Numbers] | None:
    if len(front.objectives) != 2:
        return None
    first, second = (catalogue.sign(objective.goal) for objective in front.objectives)
    places, reached = core.attained(better, None if places is None else first * places)
    return first * places, second * reached
