"""Attainment of two objectives: how far the fronts of the resamples reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.front_support import resampled_points
from fpp_sweep.statistics.paired import SeedVariances, goal_of

SHARES = (0.1, 0.5, 0.9)  # shares of the resamples
N_POSITIONS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Attainment:
    """The attainment surface of two objectives: how good the second one is at given values of the first.

    Each curve has the value that the fronts of a share of the resamples reach. The value is infinite where fewer
    resamples have a trial that is as good in the first objective.
    """

    positions: Numbers  # (positions,) values of the first objective
    best: Numbers  # (positions,) value of the second that 10 % of the resamples reach
    median: Numbers  # that half of them reach
    worst: Numbers  # that 90 % reach


def attainment(
    samples: SplitSamples, names: Sequence[str], metrics: Sequence[str], seeds: Mapping[str, SeedVariances]
) -> Attainment | None:
    """Return the attainment of trials in two metrics; None unless both are resampled for some of the trials."""
    compared = [name for name in names if name in samples.records]
    for name in compared:
        if not set(metrics) <= samples.records[name].metrics.keys():
            return None
    if len(metrics) != 2 or not compared:
        return None
    first_sign = catalogue.sign(goal_of(metrics[0]))
    second_sign = catalogue.sign(goal_of(metrics[1]))
    first, second = resampled_points(samples, compared, metrics, seeds)  # (trials, resamples) each; more is better
    positions = first_sign * _positions(first, second)
    best_second = []  # for each position the best second value of the trials that reach it, by resample
    for position in first_sign * positions:
        best_second.append(np.where(first >= position, second, -np.inf).max(axis=0))
    # a share p of the resamples reaches the quantile of 1 - p; `lower` needs no mean of a finite and an infinite value
    reached = np.quantile(np.stack(best_second), 1 - np.array(SHARES), axis=1, method="lower")
    best, median, worst = second_sign * reached
    return Attainment(positions, best, median, worst)


def _positions(first: Numbers, second: Numbers) -> Numbers:
    """Return positions between the two ends of the front that 10 % of the resamples exceed on either side."""
    best_in_second = second.argmax(axis=0)  # the trial, by resample
    first_at_that_end = first[best_in_second, np.arange(first.shape[1])]
    start = np.quantile(first_at_that_end, SHARES[0])
    stop = np.quantile(first.max(axis=0), 1 - SHARES[0])
    return np.linspace(start, stop, N_POSITIONS)
