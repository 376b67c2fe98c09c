"""Fronts of resamples: the support of each trial for the Pareto front, and the region that the fronts reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.bootstrap import N_RESAMPLES, estimated_bias
from fpp_sweep.statistics.paired import MIN_IMAGES, SplitStatistics, goal_of

LIKELY, UNLIKELY = 0.8, 0.02  # shares of resamples in which a trial is on the front: at least, at most
SHARES = (0.1, 0.5, 0.9)  # shares of the resamples that reach the curves of a region
N_POSITIONS = 64
_NOISE_SEED = 20261123  # seed of the draws that stand for other pretraining seeds


def support_word(share: float) -> str:
    """Return in a word how sure a trial is on the front, from the share of resamples in which it is.

    >>> support_word(0.9), support_word(0.5), support_word(0.0)
    ('likely', 'uncertain', 'unlikely')
    """
    if share >= LIKELY:
        return "likely"
    return "unlikely" if share <= UNLIKELY else "uncertain"


def front_support(
    statistics: SplitStatistics, values: Mapping[str, Sequence[float]], metrics: Sequence[str]
) -> dict[str, float]:
    """Return the share of resamples in which each trial is on the front, of those that `values` names with all metrics.

    A trial of one seed varies as the mean over the others does. A metric that cannot be resampled counts as exact.
    """
    samples = statistics.samples
    compared = [name for name in values if name in samples.records]
    resampled = [metric for metric in metrics if all(metric in samples.records[name].metrics for name in compared)]
    has_too_few_images = min(samples.images.values(), default=0) < MIN_IMAGES
    if len(compared) < 2 or not resampled or has_too_few_images:  # without rivals every trial is on the front
        return {}
    points = list(resampled_points(statistics, compared, resampled))
    for index, metric in enumerate(metrics):
        if metric not in resampled:
            exact = np.array([values[name][index] for name in compared]) * catalogue.sign(goal_of(metric))
            points.append(np.broadcast_to(exact[:, None], points[0].shape))
    by_resample = np.ascontiguousarray(np.moveaxis(np.stack(points), 2, 0))  # (resamples, metrics, trials)
    times_dominated = np.sum([is_dominated(of_resample) for of_resample in by_resample], axis=0)
    shares = 1 - times_dominated / len(by_resample)
    return dict(zip(compared, shares.tolist(), strict=True))


def resampled_points(statistics: SplitStatistics, names: Sequence[str], metrics: Sequence[str]) -> Numbers:
    """Return (metrics, trials, resamples): debiased draws with the noise of seeds and of the biases; more is better."""
    generator = np.random.default_rng(_NOISE_SEED)
    rows = []
    for metric in metrics:
        draws = []
        noise_of_biases = generator.standard_normal(N_RESAMPLES)  # all trials share it: each bias may be off by half
        for name in names:
            record = statistics.samples.records[name]
            measured = record.metrics[metric]
            bias = estimated_bias(measured, metric)
            seed_deviation = np.sqrt(statistics.seeds(metric).of_mean(record, metric).value)
            seed_noise = seed_deviation * generator.standard_normal(N_RESAMPLES)
            around_value = measured.draws - measured.bias  # without the bootstrap's own bias
            draws.append(around_value - bias + bias / 2 * noise_of_biases + seed_noise)
        rows.append(np.stack(draws) * catalogue.sign(goal_of(metric)))
    return np.stack(rows)


def is_dominated(points: Numbers) -> NDArray[np.bool_]:
    """Return (trials,) from (metrics, trials): True if another trial is as good in every metric and better in one."""
    _, trials = points.shape
    no_worse = np.ones((trials, trials), np.bool_)  # row: at least as good as the column in every metric
    for values in points:
        no_worse &= values[:, None] >= values
    is_better = no_worse & ~no_worse.T  # also better in one: else the column would be as good as the row
    return np.asarray(is_better.any(axis=0))


# --- the region of the front in two objectives ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The part of a plane of two objectives through which the front runs in 10 to 90 % of the resamples."""

    xs: Sequence[float]
    best: Sequence[float | None]  # reached in 10 % of the resamples; None where fewer reach so far along x
    median: Sequence[float | None]
    worst: Sequence[float | None]  # reached in 90 %


def front_region(statistics: SplitStatistics, names: Sequence[str], metrics: Sequence[str]) -> Region | None:
    """Return the region of the front of trials in two metrics; None unless both are resampled for some of them."""
    records = statistics.samples.records
    compared = [name for name in names if name in records]
    for name in compared:
        if not set(metrics) <= records[name].metrics.keys():
            return None
    if len(metrics) != 2 or not compared:
        return None
    first_sign = catalogue.sign(goal_of(metrics[0]))
    second_sign = catalogue.sign(goal_of(metrics[1]))
    first, second = resampled_points(statistics, compared, metrics)  # (trials, resamples) each; more is better
    positions = _positions(first, second)
    best_second = []  # for each position the best second value of the trials that reach it, by resample
    for position in positions:
        best_second.append(np.where(first >= position, second, -np.inf).max(axis=0))
    # a share p of the resamples reaches the quantile of 1 - p; `lower` needs no mean of a finite and an infinite value
    reached = np.quantile(np.stack(best_second), 1 - np.array(SHARES), axis=1, method="lower")
    is_finite = np.isfinite(reached)
    # where fewer than 90 % of the resamples reach so far along x, the front may be as bad as anywhere
    reached[2, ~is_finite[2]] = reached.min(where=is_finite, initial=np.inf)
    curves = []
    for curve in second_sign * reached:
        curves.append([value if math.isfinite(value) else None for value in curve.tolist()])
    return Region(xs=(first_sign * positions).tolist(), best=curves[0], median=curves[1], worst=curves[2])


def _positions(first: Numbers, second: Numbers) -> Numbers:
    """Return positions between the two ends of the front that 10 % of the resamples exceed on either side."""
    best_in_second = second.argmax(axis=0)  # the trial, by resample
    first_at_that_end = first[best_in_second, np.arange(first.shape[1])]
    start = np.quantile(first_at_that_end, SHARES[0])
    stop = np.quantile(first.max(axis=0), 1 - SHARES[0])
    return np.linspace(start, stop, N_POSITIONS)
