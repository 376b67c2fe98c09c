"""Intervals by resampling: how far accuracy and calibration error of so few samples can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpp_sweep import catalogue
from fpp_sweep.core.metrics import BINS, BLOCK, Predictions, accuracy, bin_of, expected_error, on_grid
from fpp_sweep.errors import InputError


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, in the metric's own unit."""

    low: float
    high: float


def intervals(
    datasets: Sequence[Predictions], *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval]:
    """Intervals of accuracy and ECE, in percent, of the unweighted mean of some datasets, each resampled on its own.

    Accuracy: percentiles. ECE: percentiles of the error, reversed, and extended to hold the estimate. Few samples
    inflate an ECE and resampling inflates it once more, so plain percentiles miss the truth: of 95 % intervals with 200
    samples, none held a true ECE of 5 and 54 in 100 an ECE of 10; reversed, 88 in 100 did in both cases.

    >>> probabilities = np.array([[0.75, 0.25], [0.75, 0.25]], np.float32)
    >>> intervals([Predictions.of(["a", "b"], np.array([0, 1]), probabilities)])["accuracy"]
    Interval(low=0.0, high=100.0)
    """
    if not 0 < level < 1:
        raise InputError(f"the bootstrap level must lie between 0 and 1, got {level}")
    # seeds one apart: datasets of a size must not be resampled alike, or their errors would not average out
    drawn = [resampled(each, draws=draws, seed=seed + place) for place, each in enumerate(datasets)]
    accuracies, errors = np.mean(drawn, axis=0)
    right = math.fsum(map(accuracy, datasets)) / len(datasets)
    estimate = math.fsum(map(expected_error, datasets)) / len(datasets)
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    low, high = np.quantile(accuracies, tails).tolist()
    least, most = (2 * estimate - np.quantile(errors, tails[::-1])).tolist()
    return {
        catalogue.ACCURACY: Interval(min(low, right), max(high, right)),
        catalogue.ECE: Interval(max(0.0, min(least, estimate)), max(most, estimate)),
    }


def resampled(predictions: Predictions, *, draws: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accuracy and ECE, in percent, of each of `draws` samples with replacement."""
    if draws < 1:
        raise InputError(f"bootstrap draws must be >= 1, got {draws}")
    samples = len(predictions)
    terms = _terms(predictions)
    sums = 100 / samples * np.concatenate([weights @ terms for weights in _resamples(samples, draws, seed)])
    return sums[:, BINS], np.abs(sums[:, :BINS]).sum(axis=1)


def _terms(predictions: Predictions) -> NDArray[np.float64]:
    """(N, BINS + 1): correctness minus confidence, in the column of the bin; then correctness.

    Weighted sums of the columns are all that accuracy and ECE need, and as the entries are on the
    grid, the order in which a matrix product adds them does not matter.
    """
    bins = bin_of(predictions.confidence)
    inside = np.flatnonzero(bins >= 0)
    terms = np.zeros((len(predictions), BINS + 1))
    terms[inside, bins[inside]] = (predictions.correct - on_grid(predictions.confidence))[inside]
    terms[:, BINS] = predictions.correct
    return terms


def _resamples(samples: int, draws: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each draw takes each sample, a few draws at a time to bound the memory."""
    generator = np.random.default_rng(seed)
    rows = max(1, BLOCK // samples)
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        drawn = generator.integers(0, samples, size=(count, samples))
        drawn += np.arange(count)[:, None] * samples
        weights = np.bincount(drawn.ravel(), minlength=count * samples)
        yield weights.reshape(count, samples).astype(np.float64)
