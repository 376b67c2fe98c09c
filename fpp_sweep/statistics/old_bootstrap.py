"""Which differences are real: resamples of the images, the same for all trials, and what follows from them.

A draw takes blocks of a dataset's images with replacement. Its weights follow from dataset, split and the draw's number
alone, so that trials are compared on the same images in every draw; datasets are drawn each on its own. Where trials
have several seeds, the images of a draw are the same for all, and the seeds are drawn too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.spec.catalogue import ACCURACY, Goal, sign
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import _ARRAYS, BLOCKWISE_METRICS, BlockStats, Numbers, restrict_to_shared_blocks

DRAWS = 500
REACH = 1.96  # standard deviations to both sides: 95 %
CLEAR, UNLIKELY = 0.8, 0.01  # support for being on the front
# Where draws so much wider never have a trial on the front, it has no support; of the others' values at least this part
# of what is between them stays, however much of it is chance (benchmarks/coverage.py)
SPREAD, LEAST_KEPT = math.sqrt(2), 0.5
# a metric's intervals are those of another, whose estimate is not biased by few images
JUDGED_BY = {"ece": "debiased_ece"}
# alone these are biased by few images; in a difference the bias is much the same on both sides. Where resampling adds
# more than so many standard deviations, 95 % intervals held the truth in 92 % and less (benchmarks/coverage.py)
BIASED = {"debiased_ece": 2.0, "smooth_ece": 0.5}
LEAST_IMAGES = 1000  # of each dataset, for an interval of one such value

Support = Literal["clear", "open", "unlikely"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval, in the metric's own unit."""

    value: float
    sd: float

    @property
    def low(self) -> float:
        return self.value - REACH * self.sd

    @property
    def high(self) -> float:
        return self.value + REACH * self.sd

    @property
    def sign(self) -> int:
        """1 above zero, -1 below, 0 where zero is inside."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def p(self) -> float:
        """How often chance alone makes a difference as large, to either side."""
        return math.erfc(abs(self.value) / max(self.sd, 1e-12) / math.sqrt(2))


@dataclass(frozen=True, slots=True, eq=False)
class BootstrapSamples:
    """A metric of some trials: over all images, and in every draw."""

    values: Numbers  # (trials,)
    draws: Numbers  # (trials, draws)
    image: float = 0.0  # what one image counts in an accuracy

    @property
    def recentred(self) -> Numbers:
        """Draws around the values: a resample's own bias is taken out."""
        centres: Numbers = self.values - self.draws.mean(axis=1)
        return self.draws + centres[:, None]

    def interval(self, trial: int) -> Interval:
        return Interval(float(self.values[trial]), max(float(self.draws[trial].std()), self._rare))

    def bias(self, trial: int) -> float:
        """What resampling adds to a value, in standard deviations; about what few images have added to it."""
        draws = self.draws[trial]
        return float((draws.mean() - self.values[trial]) / max(draws.std(), 1e-12))

    def difference(self, first: int, second: int) -> Interval:
        """First minus second, on the same images."""
        gap = self.draws[first] - self.draws[second]
        return Interval(float(self.values[first] - self.values[second]), math.hypot(gap.std(), self._rare))

    @property
    def _rare(self) -> float:
        """Two images more on which trials differ, or that are wrong (Agresti): of few, resamples vary too little."""
        return math.sqrt(2) * self.image

    def against(self, other: int) -> tuple[Numbers, Numbers]:
        """Of every trial, its difference to one of them and the difference's standard deviation."""
        return self.values - self.values[other], np.hypot((self.draws - self.draws[other]).std(axis=1), self._rare)


@lru_cache(maxsize=32)  # all trials ask for those of the same few datasets
def weights(dataset: str, split: str, blocks: int, draws: int) -> Numbers:
    """(draws, blocks): how often each draw takes a block; more draws begin with the same ones."""
    taken = _generator(dataset, split).integers(0, blocks, size=(draws, blocks)) + np.arange(draws)[:, None] * blocks
    return np.bincount(taken.ravel(), minlength=draws * blocks).reshape(draws, blocks).astype(np.float64)


def _generator(*names: str) -> np.random.Generator:
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def resampled(
    dataset: str, split: str, seeds: Sequence[BlockStats], metrics: Iterable[str], draws: int = DRAWS
) -> dict[str, Numbers]:
    """Metrics of one trial on one dataset, the mean over its seeds, (1 + draws,): of all images, then of each draw."""
    blocks = len(seeds[0])
    weighted = np.concatenate([np.ones((1, blocks)), weights(dataset, split, blocks, draws)])
    by_seed = {name: np.stack([_values(name, one, weighted) for one in seeds]) for name in metrics}
    return {name: _over_seeds(values, dataset, split) for name, values in by_seed.items()}


def _values(metric: str, one: BlockStats, weighted: Numbers) -> Numbers:
    row = BLOCKWISE_METRICS[metric]
    return row.scale * row.value(weighted @ row.columns(one)) / (weighted @ one.images.astype(np.float64))


def _over_seeds(values: Numbers, dataset: str, split: str) -> Numbers:
    """(seeds, 1 + draws) -> the mean over seeds; seeds are drawn, too, where there are several.

    Of few seeds a resample varies too little, which the root makes good.
    """
    mean: Numbers = values.mean(axis=0)
    seeds = len(values)
    if seeds > 1:
        taken = _generator(dataset, split, "seeds").integers(0, seeds, size=(len(mean) - 1, seeds))
        mean[1:] += math.sqrt(seeds / (seeds - 1)) * (values[taken, 0].mean(axis=1) - mean[0])
    return mean


def stacked(trials: Sequence[Mapping[str, Numbers]], images: int) -> dict[str, BootstrapSamples]:
    """What `resampled` gave for each of several trials on so many images."""
    tables = {name: np.stack([trial[name] for trial in trials]) for name in trials[0]}
    return {
        name: BootstrapSamples(table[:, 0], table[:, 1:], 100 / images if name == ACCURACY else 0.0)
        for name, table in tables.items()
    }


def drawn(
    dataset: str, split: str, trials: Sequence[Sequence[BlockStats]], metrics: Sequence[str], draws: int = DRAWS
) -> dict[str, BootstrapSamples]:
    """Metrics of trials on one dataset: of each trial the sums of its seeds, on the blocks that all trials share."""
    seeds = {len(trial) for trial in trials}
    if len(seeds) != 1:
        raise InputError(f"{dataset}: trials with {min(seeds)} and with {max(seeds)} seeds cannot be paired")
    shared = restrict_to_shared_blocks([one for trial in trials for one in trial])
    each = iter(shared)
    rows = [resampled(dataset, split, [next(each) for _ in trial], metrics, draws) for trial in trials]
    return stacked(rows, shared[0].total)


def averaged(datasets: Sequence[Mapping[str, BootstrapSamples]]) -> dict[str, BootstrapSamples]:
    """The unweighted mean over datasets."""
    return {
        name: BootstrapSamples(
            np.mean([one[name].values for one in datasets], axis=0),
            np.mean([one[name].draws for one in datasets], axis=0),
            max(one[name].image for one in datasets) / len(datasets),
        )
        for name in datasets[0]
    }


def needed(metrics: Iterable[str]) -> list[str]:
    """These metrics, those of them that follow from sums, and the ones that their intervals are of."""
    known = [name for name in metrics if name in BLOCKWISE_METRICS]
    return list(dict.fromkeys([*known, *(JUDGED_BY[name] for name in known if name in JUDGED_BY)]))


def single(found: Mapping[str, BootstrapSamples], metric: str, trial: int, images: int) -> Interval | str:
    """A value's interval, or why none is honest; `images` are those of the smallest dataset."""
    judged = JUDGED_BY.get(metric, metric)
    if judged not in found:
        return "no interval: it does not follow from sums over images"
    if judged in BIASED and images < LEAST_IMAGES:
        return f"no interval: biased by few images ({images} of a dataset, {LEAST_IMAGES} would do)"
    if judged in BIASED and found[judged].bias(trial) > BIASED[judged]:
        return "no interval: it is so small that few images bias it by as much as it varies"
    return found[judged].interval(trial)


def difference(found: Mapping[str, BootstrapSamples], metric: str, first: int, second: int) -> Interval | None:
    """First minus second on the same images; None where the metric does not follow from sums."""
    judged = JUDGED_BY.get(metric, metric)
    return found[judged].difference(first, second) if judged in found else None


def holm(ps: Sequence[float]) -> list[float]:
    """Corrected, so that one below 0.05 among those without a difference is as rare as it would be for a single one.

    >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, least = [1.0] * len(ps), 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - place) * ps[index]))
        corrected[index] = least
    return corrected


# --- fronts ----------------------------------------------------------------------------------------


def signed(found: Mapping[str, BootstrapSamples], metrics: Sequence[str], goals: Sequence[Goal]) -> Numbers:
    """(objectives, trials, draws) of recentred draws, more being better."""
    return np.stack([found[name].recentred * sign(goal) for name, goal in zip(metrics, goals, strict=True)])


def front_support(better: Numbers, spread: float = SPREAD) -> Numbers:
    """How often each trial is on the front, where more is better, in draws around what chance leaves of the values.

    None of it has a trial that in no draw, so much wider, is on the front.
    """
    centres = better.mean(axis=2, keepdims=True)
    near = on_front(centres + spread * (better - centres)) > 0
    support = np.zeros(len(near))
    support[near] = on_front(closer(better[:, near]))
    return support


def on_front(better: Numbers) -> Numbers:
    """The share of draws in which each trial is on the front."""
    beaten = sum(_beaten(points).astype(np.float64) for points in np.moveaxis(better, 2, 0))
    return np.asarray(1 - beaten / better.shape[2])


def closer(better: Numbers) -> Numbers:
    """Draws around values that are closer to their mean, by the part of what is between them that is chance."""
    centres = better.mean(axis=2)
    gaps = centres - centres.mean(axis=1, keepdims=True)
    moved: Numbers = _by_chance(better, gaps) @ gaps
    return better - moved[:, :, None]


def _by_chance(better: Numbers, gaps: Numbers) -> Numbers:
    """(objectives, objectives): the part of the trials' gaps to their mean that is chance, in each direction its own.

    Trials near the front lie along it, and what is between them across it is mostly chance. An estimate of James and
    Stein's; of few trials there is none.
    """
    objectives, trials, draws = better.shape
    chance = better - better.mean(axis=2, keepdims=True)
    chance -= chance.mean(axis=1, keepdims=True)
    noise = np.tensordot(chance, chance, axes=((1, 2), (1, 2))) / draws
    sizes, axes = np.linalg.eigh(gaps @ gaps.T)
    root = axes / np.sqrt(np.maximum(sizes, 1e-12))
    parts, turned = np.linalg.eigh(root.T @ noise @ root)
    parts = np.minimum(parts * max(0, trials - objectives - 2) / max(1, trials - 1), 1 - LEAST_KEPT)
    found: Numbers = np.linalg.inv((root @ turned).T) * parts @ (root @ turned).T
    found[noise.diagonal() < 1e-15] = 0  # an objective that is taken as exact
    return found


def _beaten(points: Numbers) -> NDArray[np.bool_]:
    """(objectives, trials) -> which trials another is at least as good as in everything, and better in something."""
    no_worse = np.ones((points.shape[1],) * 2, np.bool_)
    better = np.zeros_like(no_worse)
    for values in points:
        no_worse &= values[:, None] >= values
        better |= values[:, None] > values
    return np.asarray((no_worse & better).any(axis=0))


def word(support: float) -> Support:
    """
    >>> word(0.85), word(0.3), word(0.005)
    ('clear', 'open', 'unlikely')
    """
    return "clear" if support >= CLEAR else "unlikely" if support < UNLIKELY else "open"


def alike(found: Mapping[str, BootstrapSamples], metrics: Sequence[str], trial: int) -> NDArray[np.bool_]:
    """The trials that these images cannot tell from one of them in any of the metrics."""
    same: Any = True
    for metric in metrics:
        gap, sd = found[JUDGED_BY.get(metric, metric)].against(trial)
        same = np.logical_and(same, np.less_equal(np.abs(gap), REACH * sd))
    return np.asarray(same)


def optimism(better: Numbers) -> float:
    """How much the best of these trials looks better than it is for having been chosen: (trials, draws), recentred."""
    winners = better.argmax(axis=0)
    chosen = better[winners, np.arange(better.shape[1])]
    return float((chosen - better.mean(axis=1)[winners]).mean())


def attained(
    better: Numbers, places: Numbers | None = None, levels: Sequence[float] = (0.1, 0.5, 0.9), points: int = 64
) -> tuple[Numbers, Numbers]:
    """Of two objectives: places along the first, and what share of draws' fronts reach in the second there.

    (points,) and (levels, points); -inf where fewer draws reach so far along the first.
    """
    first, second = better
    if places is None:
        other_end = first[second.argmax(axis=0), np.arange(first.shape[1])]
        places = np.linspace(np.quantile(other_end, levels[0]), np.quantile(first.max(axis=0), 1 - levels[0]), points)
    reached = np.stack([np.where(first >= place, second, -np.inf).max(axis=0) for place in places])
    return places, np.quantile(reached, 1 - np.array(levels), axis=1, method="lower")


Table = Mapping[tuple[str, int], BlockStats]  # by dataset and seed


def united(one: Table, other: Table) -> Table:
    """A trial's sums over other images with the same seeds, or with other seeds over the same images.

    Where only some seeds are the same, the other table alone.
    """
    if one.keys() != other.keys():
        return other if one.keys() & other.keys() else {**one, **other}
    return {key: _concatenated(one[key], other[key]) for key in one}


def _concatenated(*parts: BlockStats) -> BlockStats:
    size = max(part.size for part in parts)
    rows = [part.with_block_size(size) for part in parts]
    return BlockStats(size=size, **{name: np.concatenate([getattr(row, name) for row in rows]) for name in _ARRAYS})


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """The images and seeds that several trials have in common."""

    datasets: Mapping[str, BlockStats]  # whoever's: their digests tell which images
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, table: Mapping[tuple[str, int], BlockStats]) -> Common:
        """All that one trial has."""
        return cls({dataset: one for (dataset, _), one in table.items()}, tuple(sorted({seed for _, seed in table})))

    @property
    def images(self) -> dict[str, int]:
        return {dataset: one.total for dataset, one in self.datasets.items()}

    def shared(self, other: Common) -> Common:
        """What both have; perhaps nothing."""
        datasets = {}
        for name, one in self.datasets.items():
            with suppress(KeyError, InputError):  # another dataset, or other images
                datasets[name] = restrict_to_shared_blocks([one, other.datasets[name]])[0]
        return Common(datasets, tuple(seed for seed in self.seeds if seed in other.seeds))

    def taken(self, table: Mapping[tuple[str, int], BlockStats]) -> dict[tuple[str, int], BlockStats]:
        """A trial's sums over these images and seeds; nothing where it lacks one."""
        found = {}
        for name, known in self.datasets.items():
            for seed in self.seeds:
                one = table.get((name, seed))
                if one is None or known.size % one.size:
                    return {}
                coarse = one.with_block_size(known.size)
                found[name, seed] = part = coarse.take(np.isin(coarse.digests, known.digests))
                if len(part) != len(known):
                    return {}
        return found
