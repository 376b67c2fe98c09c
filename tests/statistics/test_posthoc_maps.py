"""Post-hoc maps reproduce golden numbers, find the exact temperature, and keep the predicted class."""

import numpy as np
import pytest
from scipy.optimize import brentq

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.posthoc import (
    ALL_RIGHT,
    NO_SIGNAL,
    IsotonicFit,
    LabelledLogits,
    fit_isotonic,
    fit_temperature,
    recalibrated,
    require_fittable,
    softmax,
    with_isotonic,
    with_temperature,
)
from tests.golden import read

GOLDEN, _ = read("posthoc_small")


def golden_logits(name):
    return LabelledLogits(
        logits=GOLDEN[f"{name}/val_logits"].numpy().astype(np.float64),
        labels=GOLDEN[f"{name}/val_labels"].numpy().astype(np.int64),
    )


def random_logits(samples=200, classes=5, seed=0, scale=3.0):
    random = np.random.default_rng(seed)
    logits = scale * random.normal(size=(samples, classes))
    gumbel = random.gumbel(size=(samples, classes))
    return LabelledLogits(logits=logits, labels=(logits / 2 + gumbel).argmax(axis=1))


def loss(dataset, temperature):
    probabilities = with_temperature(dataset.logits, temperature)
    return -np.log(probabilities[np.arange(len(dataset.labels)), dataset.labels]).mean()


def slope(dataset, inverse):
    """Return the derivative of the loss with respect to 1 / T."""
    expected = (softmax(inverse * dataset.logits) * dataset.logits).sum(axis=1)
    return (expected - dataset.logits[np.arange(len(expected)), dataset.labels]).mean()


@pytest.mark.parametrize("name", ["ts_val", "ts_val_over", "ts_val_under"])
def test_the_temperature_equals_the_golden_one(name):
    fit = fit_temperature([golden_logits(name)])
    assert fit.temperature == pytest.approx(float(GOLDEN[f"{name}/temperature"]), rel=1e-6)
    assert loss(golden_logits(name), fit.temperature) == pytest.approx(float(GOLDEN[f"{name}/val_nll"]), abs=1e-6)
    assert not fit.problem


@pytest.mark.parametrize("seed", range(5))
def test_the_temperature_equals_that_of_an_exact_minimiser(seed):
    dataset = random_logits(seed=seed, scale=2.0**seed)
    exact = brentq(lambda b: slope(dataset, b), 1e-4, 1e4, xtol=1e-14, rtol=1e-14)
    temperature = fit_temperature([dataset]).temperature
    assert temperature == pytest.approx(1 / exact, rel=1e-6)
    # logits times c need a temperature times c
    scaled = LabelledLogits(logits=7 * dataset.logits, labels=dataset.labels)
    assert fit_temperature([scaled]).temperature == pytest.approx(7 * temperature, rel=1e-9)


def test_a_temperature_of_several_datasets_weights_each_equally():
    few, many = random_logits(samples=60, classes=4, seed=1), random_logits(samples=600, seed=2, scale=9.0)
    temperature = fit_temperature([few, many]).temperature
    at_optimum = loss(few, temperature) + loss(many, temperature)
    for factor in (0.999, 1.001):
        assert loss(few, factor * temperature) + loss(many, factor * temperature) > at_optimum


@pytest.mark.parametrize(("name", "problem"), [("ts_separable", ALL_RIGHT), ("ts_inverted", NO_SIGNAL)])
def test_a_minimiser_that_does_not_exist_is_reported(name, problem):
    fit = fit_temperature([golden_logits(name)])
    assert (fit.temperature, fit.problem) == (1.0, problem)


def test_isotonic_regression_maps_the_top_confidence_and_scales_the_other_classes():
    dataset = random_logits(samples=400)
    fit = fit_isotonic(dataset)
    assert (np.diff(fit.values) >= 0).all()
    assert fit.values.min() > 0
    assert fit.values.max() < 1
    raw = softmax(dataset.logits)
    mapped = with_isotonic(dataset.logits, fit)
    np.testing.assert_allclose(mapped.sum(axis=1), 1)
    first, second = 1 - np.eye(5)[raw.argmax(axis=1)], raw.argmax(axis=1)
    others, mapped_others = raw * first, mapped * first
    ratios = mapped_others / others.clip(1e-300)
    assert (ratios.max(axis=1) - np.where(first > 0, ratios, np.inf).min(axis=1)).max() < 1e-9
    assert (mapped.argmax(axis=1) == second).all()


def test_isotonic_regression_is_less_certain_the_fewer_images_it_saw():
    logits = np.array([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    fit = fit_isotonic(LabelledLogits(logits=logits, labels=np.array([0, 0, 1, 1])))
    np.testing.assert_allclose(fit.values, [1 / 6, 1 / 6, 5 / 6, 5 / 6])


def test_isotonic_regression_never_lets_the_second_class_overtake():
    to_zero = IsotonicFit(confidences=np.array([0.0, 1.0]), values=np.array([0.01, 0.01]))
    logits = np.array([[3.0, 2.9, -5.0], [900.0, 0.0, 0.0], [0.1, 0.0, 0.05]])
    mapped = with_isotonic(logits, to_zero)
    assert mapped.argmax(axis=1).tolist() == [0, 0, 0]
    np.testing.assert_allclose(mapped.sum(axis=1), 1)


def test_a_map_that_changes_the_predicted_class_is_refused():
    probabilities = np.array([[0.6, 0.4], [0.3, 0.7]])
    raw = Predictions.of(["a", "b"], np.array([0, 1]), probabilities.astype(np.float32))
    assert recalibrated(raw, np.array([[0.9, 0.1], [0.45, 0.55]])).predicted.tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="changed the predicted class of sample 'b'"):
        recalibrated(raw, np.array([[0.9, 0.1], [0.55, 0.45]]))


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.arange(49) % 2, r"^dtd: 49 images are too few for a post-hoc map, which needs 50; raise work.limit"),
        (np.zeros(60, np.int64), "^dtd: its images have one class, and a post-hoc map needs two"),
    ],
)
def test_a_map_needs_fifty_images_of_two_classes(labels, problem):
    with pytest.raises(InputError, match=problem):
        require_fittable("dtd", labels)


def test_a_map_can_be_fitted_on_fifty_images_of_two_classes():
    require_fittable("digits", np.array([0, 1] * 25))
