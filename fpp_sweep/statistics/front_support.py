"""Support of trials for the Pareto front: likely, uncertain or unlikely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.bootstrap import SplitSamples, estimated_bias
from fpp_sweep.statistics.paired import MIN_IMAGES, SeedVariances, goal_of, pairwise_differences

LIKELY = 0.8  # share of resamples in which a trial is on the front
CLEARLY_AHEAD = 2.33  # standard deviations, in every objective: 99 % one-sided
_NOISE_SEED = 20261123  # seed of the draws that stand for other pretraining seeds

Word = Literal["likely", "uncertain", "unlikely"]
_WORDS: tuple[Word, ...] = ("unlikely", "uncertain", "likely")  # the weakest support first


@dataclass(frozen=True, slots=True)
class Support:
    """Support of one trial."""

    word: Word
    share: float  # share of resamples in which the trial is on the front
    beaten_by: str = ""  # the trial that is clearly ahead in every objective; of unlikely trials only

    def weaker(self, other: Support | None) -> Support:
        """Return the weaker support of two, such as of two stages of a sweep."""
        if other is None:
            return self
        return min(self, other, key=lambda support: (_WORDS.index(support.word), support.share))


@dataclass(frozen=True, slots=True, eq=False)
class FrontSupport:
    """Support of all trials that were compared."""

    trials: Mapping[str, Support] = field(default_factory=dict)

    def word(self, name: str) -> str:
        """Return the word for a trial; empty if the trial was not compared."""
        if name not in self.trials:
            return ""
        return self.trials[name].word


def front_support(
    samples: SplitSamples,
    values: Mapping[str, Sequence[float]],
    metrics: Sequence[str],
    seeds: Mapping[str, SeedVariances],
) -> FrontSupport:
    """Return the support of trials on the front of those that `values` names, with their values of all metrics.

    `seeds` has the variance of seeds by metric; trials of one seed vary as the pooled estimate says. A metric that
    cannot be resampled counts as exact.
    """
    compared = [name for name in values if name in samples.records]
    resampled = _metrics_of_all(samples, compared, metrics)
    has_too_few_images = min(samples.images.values(), default=0) < MIN_IMAGES
    if len(compared) < 2 or not resampled or has_too_few_images:  # without rivals every trial is on the front
        return FrontSupport()
    points = resampled_points(samples, compared, resampled, seeds)
    ahead = clearly_ahead(samples, compared, resampled, seeds)
    for index, metric in enumerate(metrics):
        if metric in resampled:
            continue
        exact = np.array([values[name][index] for name in compared]) * catalogue.sign(goal_of(metric))
        same_in_each_resample = np.broadcast_to(exact[:, None], points.shape[1:])
        points = np.concatenate([points, same_in_each_resample[None]])
        ahead &= exact[:, None] > exact
    shares = share_on_front(points)
    support = {}
    for index, name in enumerate(compared):
        rivals = np.flatnonzero(ahead[:, index])
        share = float(shares[index])
        if len(rivals):
            support[name] = Support("unlikely", share, compared[rivals[0]])
        elif share >= LIKELY:
            support[name] = Support("likely", share)
        else:
            support[name] = Support("uncertain", share)
    return FrontSupport(support)


def _metrics_of_all(samples: SplitSamples, names: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """Return the metrics that are resampled for every record."""
    shared = []
    for metric in metrics:
        if all(metric in samples.records[name].metrics for name in names):
            shared.append(metric)
    return shared


def resampled_points(
    samples: SplitSamples, names: Sequence[str], metrics: Sequence[str], seeds: Mapping[str, SeedVariances]
) -> Numbers:
    """Return (metrics, trials, resamples): debiased draws with the noise of seeds added; more is better."""
    generator = np.random.default_rng(_NOISE_SEED)
    rows = []
    for metric in metrics:
        draws = []
        for name in names:
            record = samples.records[name]
            measured = record.metrics[metric]
            debiased = measured.recentred_draws - estimated_bias(measured, metric)
            seed_deviation = np.sqrt(seeds[metric].variance_of_mean(record).value)
            draws.append(debiased + seed_deviation * generator.standard_normal(len(debiased)))
        rows.append(np.stack(draws) * catalogue.sign(goal_of(metric)))
    return np.stack(rows)


def share_on_front(points: Numbers) -> Numbers:
    """Return (trials,): the share of resamples in which each trial is on the front.

    `points` is (metrics, trials, resamples); more is better.
    """
    _, trials, resamples = points.shape
    times_dominated = np.zeros(trials)
    for values in np.ascontiguousarray(np.moveaxis(points, 2, 0)):
        times_dominated += is_dominated(values)
    return np.asarray(1 - times_dominated / resamples)


def is_dominated(points: Numbers) -> NDArray[np.bool_]:
    """Return (trials,) from (metrics, trials): True if another trial is as good in every metric and better in one."""
    _, trials = points.shape
    no_worse = np.ones((trials, trials), np.bool_)  # row: at least as good as the column in every metric
    for values in points:
        no_worse &= values[:, None] >= values
    is_better = no_worse & ~no_worse.T  # also better in one: else the column would be as good as the row
    return np.asarray(is_better.any(axis=0))


def clearly_ahead(
    samples: SplitSamples, names: Sequence[str], metrics: Sequence[str], seeds: Mapping[str, SeedVariances]
) -> NDArray[np.bool_]:
    """Return (trials, trials): True where the row's trial is clearly ahead of the column's in every metric."""
    ahead = ~np.eye(len(names), dtype=np.bool_)
    for metric in metrics:
        values, errors = pairwise_differences(samples, names, metric, seeds[metric])
        gains = values * catalogue.sign(goal_of(metric))
        ahead &= gains > CLEARLY_AHEAD * np.maximum(errors, 1e-9)
    return ahead
