"""The response surface: means over settings, and intervals that contain the truth of planted worlds."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import Matern

from fpp_sweep.statistics.surface import Dimension, Surface, matern_kernel, uncorrelated_hypercube


@pytest.fixture(scope="module")
def surface():
    """A surface over a range and three choices, the second of which is better."""
    rng = np.random.default_rng(0)
    points = np.stack([rng.random(40), rng.integers(3, size=40).astype(float)], axis=1)
    values = 70 + 3 * points[:, 0] + 2 * (points[:, 1] == 1) + 0.2 * rng.standard_normal(40)
    return Surface([Dimension(), Dimension(choices=3)], points, values)


def test_nan_stands_for_the_mean_over_all_values_of_a_setting(surface):
    choices, values = Dimension(choices=3).values(), Dimension().values()
    of_choices = surface.at(np.array([[0.25, choice] for choice in choices]))
    of_range = surface.at(np.array([[value, 2.0] for value in values]))
    averaged = surface.at(np.array([[0.25, np.nan], [np.nan, 2.0], [np.nan, np.nan]]))
    assert averaged.mean[:2] == pytest.approx([of_choices.mean.mean(), of_range.mean.mean()], abs=1e-8)
    everywhere = np.array([[value, choice] for value in values for choice in choices])
    assert averaged.mean[2] == pytest.approx(surface.at(everywhere).mean.mean(), abs=1e-8)


def test_the_surface_finds_the_effects_of_a_range_and_of_choices(surface):
    low, high = surface.at(surface.locations_of({0: np.array([0.05, 0.95])})).mean
    choices = surface.at(surface.locations_of({1: np.array([0.0, 1.0, 2.0])})).mean
    assert high - low == pytest.approx(2.7, abs=0.4)
    assert choices[1] - choices[0] == pytest.approx(2, abs=0.3)
    assert choices[1] - choices[2] == pytest.approx(2, abs=0.3)


def test_uncertainty_grows_away_from_the_trials():
    points = np.linspace(0, 0.5, 30)[:, None]
    values = np.sin(6 * points[:, 0])
    near, far = Surface([Dimension()], points, values).at(np.array([[0.25], [1.0]])).deviation
    assert far > 5 * near


def test_the_kernel_equals_that_of_a_matern_covariance():
    distances, length = np.linspace(0, 3, 7), 0.7
    actual = matern_kernel(distances[None], np.array([length]))
    np.testing.assert_allclose(actual, Matern(length_scale=length, nu=2.5)(distances[:, None], [[0.0]])[:, 0])


def test_all_choices_are_equally_far_from_each_other():
    numbers = np.array([0.0, 1.0, 2.0])
    assert np.array_equal(Dimension(choices=3).distances(numbers, numbers), 1 - np.eye(3))


def test_equal_trials_give_equal_numbers(surface):
    rng = np.random.default_rng(1)
    points, values = rng.random((12, 2)), rng.random(12)
    first, second = (Surface([Dimension()] * 2, points, values) for _ in range(2))
    assert np.array_equal(first.variance_shares(), second.variance_shares())


def test_shares_of_an_additive_world_are_those_of_its_terms():
    """Noise is small, so that the shares are as exact as the points that they are computed at."""
    weights = np.array([2.0, 1.0, 0.5, 0.25])
    truth = np.square(weights) / np.square(weights).sum()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        points = rng.random((40, 4))
        values = points @ weights + 0.02 * rng.standard_normal(40)
        surface = Surface([Dimension()] * 4, points, values, seed)
        assert np.median(surface.variance_shares(), axis=0) == pytest.approx(truth, abs=0.03)


@pytest.mark.parametrize("n_columns", [1, 2, 6, 12])
def test_columns_of_the_hypercube_are_strata_that_hardly_correlate(n_columns):
    points = uncorrelated_hypercube(32, n_columns, np.random.default_rng(0))
    strata = np.sort(np.floor(points * 32), axis=0)
    assert (strata == np.arange(32)[:, None]).all()
    correlations = np.corrcoef(points, rowvar=False).reshape(n_columns, n_columns)
    np.fill_diagonal(correlations, 0.0)
    assert abs(correlations).max() < 0.13  # of random points 0.18 is one standard deviation


def test_more_columns_than_points_are_possible():
    points = uncorrelated_hypercube(4, 9, np.random.default_rng(0))
    assert points.shape == (4, 9)
    assert (np.sort(np.floor(points * 4), axis=0) == np.arange(4)[:, None]).all()
