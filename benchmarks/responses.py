"""Artificial responses for benchmarks.search: two objectives as functions of settings, with known true values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.spec.catalogue import Goal

GOALS: tuple[Goal, ...] = ("max", "min")  # accuracy and ECE
ANCHORS = 600  # number of points at which a smooth response is drawn; it is interpolated between them
# number of random points; their worse quartiles are the corner, and their front's hypervolume is 100 %
REFERENCE_POINTS = 4000
# percentage points of accuracy and ECE: the noise of a difference of two trials on 5 x 1,000 images
IMAGE_NOISE = np.array([0.7, 0.6])
NEAREST_TRIALS = 5  # number of trials of a cloud whose differences between seeds are the noise at a point
TREES = 100  # trees of a random forest


class Response(ABC):
    """Two objectives as functions on the unit cube; `quality` measures a set of trials by the true values."""

    def __init__(self, seed: int, dims: int) -> None:
        points = np.random.default_rng([seed, 1]).random((REFERENCE_POINTS, dims))
        values = self.true_values(points)
        self.corner = [float(np.quantile(values[:, 0], 0.25)), float(np.quantile(values[:, 1], 0.75))]
        self._attainable = hypervolume(values.tolist(), GOALS, self.corner)

    @abstractmethod
    def true_values(self, points: np.ndarray) -> np.ndarray:
        """Return the two objectives at each point."""

    @abstractmethod
    def noise(self, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the noise of one observation at a point."""

    def quality(self, seen: np.ndarray, true_values: np.ndarray) -> float:
        """Return the hypervolume of the true values of the points that are on the front by the values seen, in %."""
        chosen: Sequence[int] = front(seen.tolist(), GOALS)
        return 100 * hypervolume(true_values[chosen].tolist(), GOALS, self.corner) / self._attainable


class SmoothResponse(Response):
    """Two draws from a Gaussian process, scaled to accuracy 65 +- 5 and ECE 8 +- 2.5; noise is the same everywhere."""

    def __init__(self, seed: int, dims: int, noise_scale: float) -> None:
        rng = np.random.default_rng(seed)
        self._anchors = rng.random((ANCHORS, dims))
        self._kernel = Matern(rng.uniform(0.3, 1.5, dims), nu=1.5)
        covariance = self._kernel(self._anchors) + 1e-8 * np.eye(ANCHORS)
        draws = np.linalg.cholesky(covariance) @ rng.normal(size=(ANCHORS, 2))
        self._weights = np.linalg.solve(covariance, draws)
        self._deviations = noise_scale * IMAGE_NOISE
        super().__init__(seed, dims)

    def true_values(self, points: np.ndarray) -> np.ndarray:
        standard = self._kernel(points, self._anchors) @ self._weights
        return np.array([65.0, 8.0]) + np.array([5.0, 2.5]) * standard

    def noise(self, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._deviations * rng.normal(size=2)


class SurrogateResponse(Response):
    """A regression on real trials: means over seeds are the truth, and differences between seeds are the noise."""

    def __init__(self, kind: str, points: np.ndarray, values: np.ndarray, noise_scale: float) -> None:
        """Fit a model of a kind (`forest` or `process`) to values by trial, seed and objective."""
        self._points = points
        means = values.mean(axis=1)
        seeds = values.shape[1]
        self._residuals = noise_scale * (values - means[:, None]) * np.sqrt(seeds / (seeds - 1))
        self._models = [fit_model(kind, points, column) for column in means.T]
        super().__init__(0, points.shape[1])

    def true_values(self, points: np.ndarray) -> np.ndarray:
        return np.stack([model.predict(points) for model in self._models], axis=1)

    def _nearest(self, point: np.ndarray) -> np.ndarray:
        distances = np.linalg.norm(self._points - point, axis=1)
        return np.argsort(distances, kind="stable")[:NEAREST_TRIALS]

    def noise(self, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        trial = rng.choice(self._nearest(point))
        residual: np.ndarray = rng.choice(self._residuals[trial])
        return residual


def fit_model(kind: str, points: np.ndarray, values: np.ndarray) -> RandomForestRegressor | GaussianProcessRegressor:
    """Return a random forest (kind `forest`) or a Gaussian process (kind `process`) that is fitted to the values."""
    if kind == "forest":
        return RandomForestRegressor(TREES, min_samples_leaf=2, random_state=0).fit(points, values)
    kernel = ConstantKernel(1.0) * Matern(np.ones(points.shape[1]), (0.1, 20), nu=2.5) + WhiteKernel(0.1, (1e-3, 1))
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(points, values)
