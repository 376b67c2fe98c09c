"""The response surface of a sweep: a Gaussian process on its trials, with effects of settings and their uncertainty.

The kernel is a product over the settings, so that the mean of the surface over all values of a setting follows exactly.
A point that has `nan` for a setting stands for that mean: with all others `nan` it is the effect of one setting. The
scales of the kernel are not known either; they are drawn from their posterior by elliptical slice sampling (Murray,
Adams and MacKay, 2010), and every result is computed over all draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from fpp_sweep.statistics.block_stats import Integers, Numbers

N_SCALES = 8  # draws of the kernel's scales
WARM_UP = 30  # steps before the first draw that is used
THINNING = 3  # steps from one draw to the next
SURFACES_PER_SCALE = 16  # draws of the surface for each draw of the scales
JITTER = 1e-6  # added to variances, so that rounding leaves matrices positive
CONSTANT_VARIANCE = 1.0  # variance of the surface's mean, in variances of the trials' values
N_MEAN = 33  # points of a range that its mean is taken over
N_LOCATIONS = 32  # points of the space that shares of the variance are computed at

# means and standard deviations of the logarithms of the scales; lengths are in widths of a range, the others in
# standard deviations of the trials' values
LENGTH_PRIOR = (math.log(0.7), 1.0)
SURFACE_PRIOR = (0.0, 0.5)
NOISE_PRIOR = (math.log(0.3), 1.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Means and standard deviations of some numbers, in the unit of the trials' values."""

    mean: Numbers
    deviation: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of one setting at some points: the distinct values, and which of them each point has."""

    distinct: Numbers  # `nan` is the last
    rows: Integers | slice  # by point, index into `distinct`

    @classmethod
    def of(cls, values: Numbers) -> Column:
        distinct, rows = np.unique(values, return_inverse=True)
        if len(distinct) == len(values) and not np.isnan(distinct[-1]):
            return cls(values, slice(None))  # in the order of the points, so that kernels need not be sorted back
        return cls(distinct, rows)


def columns_of(points: Numbers) -> list[Column]:
    """Return the columns of points (points, settings), to share them: distinct values take as long as a kernel."""
    return [Column.of(values) for values in points.T]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One setting of the space: a range from 0 to 1, or choices that are numbered from 0."""

    choices: int = 0  # 0: a range

    def values(self) -> Numbers:
        """Return the values that a mean over the setting is taken over."""
        if self.choices:
            return np.arange(self.choices, dtype=float)
        return (np.arange(N_MEAN) + 0.5) / N_MEAN

    def distances(self, left: Numbers, right: Numbers) -> Numbers:
        """Return the distances (left, right) of values of the setting."""
        distances: Numbers = np.abs(left[:, None] - right[None, :])
        if self.choices:
            return np.minimum(distances, 1.0)  # all choices are equally far from each other
        return distances

    def kernel(self, left: Column, right: Column, length: float) -> Numbers:
        """Return the Matern 5/2 kernel of values of the setting; `nan` stands for the mean over all values."""
        of_distinct = self._kernel_of_distinct(left.distinct, right.distinct, length)
        kernel: Numbers = of_distinct[left.rows][:, right.rows]
        return kernel

    def variances(self, column: Column, length: float) -> Numbers:
        """Return the kernel of each value with itself."""
        variances = np.ones(len(column.distinct))
        if np.isnan(column.distinct[-1]):
            mean = column.distinct[-1:]
            variances[-1] = self._kernel_of_distinct(mean, mean, length).item()
        return variances[column.rows]

    def _kernel_of_distinct(self, left: Numbers, right: Numbers, length: float) -> Numbers:
        """Return the kernel (left, right) of distinct values, of which the last on either side may be `nan`."""
        if np.isnan(left[-1]):
            known = left[:-1]
            rows = self._kernel_of_distinct(np.concatenate([known, self.values()]), right, length)
            mean_row = rows[len(known) :].mean(axis=0)
            return np.vstack([rows[: len(known)], mean_row])
        if np.isnan(right[-1]):
            return self._kernel_of_distinct(right, left, length).T  # the kernel is symmetric
        return matern_kernel(self.distances(left, right)[None], np.array([length]))


def matern_kernel(distances: Numbers, lengths: Numbers) -> Numbers:
    """Return the product of the settings' Matern 5/2 kernels at distances (settings, ...)."""
    product, total = np.array(1.0), np.array(0.0)
    for of_setting, length in zip(distances, lengths, strict=True):
        scaled = of_setting * (math.sqrt(5) / length)
        product = product * (1 + scaled + scaled**2 / 3)
        total = total + scaled
    kernel: Numbers = product * np.exp(-total)
    return kernel


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """The trials under one draw of the scales, factorized."""

    lengths: Numbers
    variance: float  # variance of the surface around its mean
    factor: Numbers  # lower Cholesky factor of the trials' covariance
    weights: Numbers  # the inverse of the covariance, times the values


class Surface:
    """A Gaussian process on trials: points (trials, settings) and one value for each."""

    def __init__(self, dimensions: Sequence[Dimension], points: Numbers, values: Numbers, seed: int = 0) -> None:
        self.dimensions = tuple(dimensions)
        self._points = columns_of(points)
        # a Cholesky factor needs half of the covariance only: positions in the flattened matrix
        self._pairs = np.flatnonzero(np.tri(len(points)))
        self._distances = self._distances_of_pairs(points)
        self._center = float(values.mean())
        self._scale = float(values.std()) or 1.0  # all values may be equal
        self._values = (values - self._center) / self._scale
        self._rng = np.random.default_rng(seed)
        self._fits = [self._fit(scales) for scales in self._draw_scales()]

    def _distances_of_pairs(self, points: Numbers) -> Numbers:
        """Return the distances (settings, pairs) of the trials."""
        distances = []
        for dimension, values in zip(self.dimensions, points.T, strict=True):
            distances.append(dimension.distances(values, values).ravel()[self._pairs])
        return np.stack(distances)

    # -------------------------------------------------------- scales

    def _prior(self) -> tuple[Numbers, Numbers]:
        """Return means and standard deviations of the logarithms: lengths, then the surface's and the noise's."""
        priors = [*[LENGTH_PRIOR] * len(self.dimensions), SURFACE_PRIOR, NOISE_PRIOR]
        table = np.array(priors)
        return table[:, 0], table[:, 1]

    def _draw_scales(self) -> list[Numbers]:
        """Return draws of the logarithms of the scales from their posterior."""
        mean, deviation = self._prior()
        current = np.zeros(len(mean))  # in standard deviations from the prior's mean
        likelihood = self._log_likelihood(mean)
        draws = []
        for step in range(WARM_UP + N_SCALES * THINNING):
            current, likelihood = self._slice_step(current, likelihood, mean, deviation)
            if step >= WARM_UP and (step - WARM_UP) % THINNING == 0:
                draws.append(mean + deviation * current)
        return draws

    def _slice_step(
        self, current: Numbers, likelihood: float, mean: Numbers, deviation: Numbers
    ) -> tuple[Numbers, float]:
        """Return the next draw and its likelihood: a point of an ellipse through the current one and a new one."""
        direction = self._rng.standard_normal(len(current))
        threshold = likelihood + math.log(self._rng.uniform())
        angle = self._rng.uniform(0, 2 * math.pi)
        low, high = angle - 2 * math.pi, angle
        while True:
            proposed = current * math.cos(angle) + direction * math.sin(angle)
            proposed_likelihood = self._log_likelihood(mean + deviation * proposed)
            if proposed_likelihood > threshold or high - low < 1e-9:
                return proposed, proposed_likelihood
            if angle < 0:
                low = angle
            else:
                high = angle
            angle = self._rng.uniform(low, high)

    def _log_likelihood(self, scales: Numbers) -> float:
        fit = self._fit(scales)
        return float(-0.5 * self._values @ fit.weights - np.log(np.diag(fit.factor)).sum())

    def _fit(self, scales: Numbers) -> _Fit:
        """Factorize the trials' covariance under some scales, which are logarithms in the order of `_prior`."""
        lengths = np.exp(scales[:-2])
        variance = math.exp(2 * scales[-2])
        noise_variance = math.exp(2 * scales[-1])
        n = len(self._values)
        flat_covariance = np.zeros(n * n)
        flat_covariance[self._pairs] = variance * matern_kernel(self._distances, lengths) + CONSTANT_VARIANCE
        flat_covariance[:: n + 1] += noise_variance + JITTER  # the diagonal
        factor = cholesky(flat_covariance.reshape(n, n), lower=True)
        return _Fit(lengths, variance, factor, cho_solve((factor, True), self._values))

    def _kernel(self, left: Sequence[Column], right: Sequence[Column], lengths: Numbers, variance: float) -> Numbers:
        kernel = np.array(variance)
        for dimension, left_column, right_column, length in zip(self.dimensions, left, right, lengths, strict=True):
            kernel = kernel * dimension.kernel(left_column, right_column, length)
        return kernel + CONSTANT_VARIANCE

    # -------------------------------------------------------- the surface

    def at(self, locations: Numbers) -> Estimate:
        """Return the surface at locations (locations, settings), without noise; see the module for `nan`."""
        means, variances = [], []
        columns = columns_of(locations)
        for fit in self._fits:
            to_trials, half = self._condition(fit, columns)
            means.append(to_trials @ fit.weights)
            variances.append(self._variances(fit, columns) - (half**2).sum(axis=0))
        variance = np.mean(variances, axis=0) + np.var(means, axis=0)
        return Estimate(
            mean=self._center + self._scale * np.mean(means, axis=0),
            deviation=self._scale * np.sqrt(np.maximum(variance, 0.0)),
        )

    def _posterior(self, fit: _Fit, locations: Sequence[Column]) -> tuple[Numbers, Numbers]:
        """Return mean and covariance of the surface at locations."""
        to_trials, half = self._condition(fit, locations)
        covariance = self._kernel(locations, locations, fit.lengths, fit.variance) - half.T @ half
        return to_trials @ fit.weights, covariance

    def _condition(self, fit: _Fit, locations: Sequence[Column]) -> tuple[Numbers, Numbers]:
        """Return the covariance with the trials, and a factor of the covariance that the trials explain."""
        to_trials = self._kernel(locations, self._points, fit.lengths, fit.variance)
        half: Numbers = solve_triangular(fit.factor, to_trials.T, lower=True)
        return to_trials, half

    def _variances(self, fit: _Fit, locations: Sequence[Column]) -> Numbers:
        """Return the variance of the surface at locations before any trial."""
        variances = np.array(fit.variance)
        for dimension, column, length in zip(self.dimensions, locations, fit.lengths, strict=True):
            variances = variances * dimension.variances(column, length)
        return variances + CONSTANT_VARIANCE

    def locations_of(self, values_by_dimension: Mapping[int, Numbers]) -> Numbers:
        """Return locations with these values of some settings, where the surface is the mean over all others."""
        count = len(next(iter(values_by_dimension.values())))
        locations = np.full((count, len(self.dimensions)), np.nan)
        for index, values in values_by_dimension.items():
            locations[:, index] = values
        return locations

    def variance_shares(self) -> Numbers:
        """Return draws (draws, settings) of the total-effect Sobol index of each setting.

        The index is the share of the surface's variance that a mean over the setting removes. With interactions the
        indices of a draw add up to more than 1.
        """
        locations = self._random_locations()
        blocks = [locations]  # then the same locations with the mean over one setting, for each setting
        for index in range(len(self.dimensions)):
            without_setting = locations.copy()
            without_setting[:, index] = np.nan
            blocks.append(without_setting)
        columns = columns_of(np.concatenate(blocks))
        draws = []
        for fit in self._fits:
            surfaces = self._draw_surfaces(fit, columns, len(blocks) * N_LOCATIONS)
            by_block = surfaces.reshape(len(blocks), N_LOCATIONS, SURFACES_PER_SCALE)
            variances = by_block.var(axis=1)
            total = np.maximum(variances[0], JITTER)
            draws.append(1 - variances[1:] / total)
        shares: Numbers = np.clip(np.concatenate(draws, axis=1).T, 0.0, 1.0)
        return shares

    def _draw_surfaces(self, fit: _Fit, columns: Sequence[Column], count: int) -> Numbers:
        """Return draws (locations, draws) of the surface at `count` locations."""
        mean, covariance = self._posterior(fit, columns)
        covariance[np.diag_indices_from(covariance)] += JITTER * 10
        factor = cholesky(covariance, lower=True)
        noise = self._rng.standard_normal((count, SURFACES_PER_SCALE))
        surfaces: Numbers = mean[:, None] + factor @ noise
        return surfaces

    def _random_locations(self) -> Numbers:
        """Return locations (locations, settings) at which the settings hardly correlate.

        A correlation would go into every draw's difference of two variances, and so its interval would not show it.
        """
        locations = uncorrelated_hypercube(N_LOCATIONS, len(self.dimensions), self._rng)
        for index, dimension in enumerate(self.dimensions):
            if dimension.choices:
                locations[:, index] = np.floor(locations[:, index] * dimension.choices)
        return locations


def uncorrelated_hypercube(n_points: int, n_columns: int, rng: np.random.Generator) -> Numbers:
    """Return a random Latin hypercube (points, columns) whose columns hardly correlate, by Owen's ranked regression.

    Columns of a few random points correlate by chance. Each column gets the ranks of what its regression on the columns
    before leaves; ranks correlate a little again, so this is done twice.
    """
    ranks = np.empty((n_points, n_columns))
    for index in range(n_columns):
        ranks[:, index] = rng.permutation(n_points)
    centre = (n_points - 1) / 2
    for _ in range(2):
        for index in range(1, n_columns):
            before = ranks[:, :index] - centre
            column = ranks[:, index] - centre
            coefficients = np.linalg.lstsq(before, column)[0]
            rest = column - before @ coefficients
            ranks[:, index] = rest.argsort().argsort()
    points: Numbers = (ranks + rng.random(ranks.shape)) / n_points
    return points
