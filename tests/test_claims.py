import numpy as np
import pytest

from benchmarks.claims import DRAWS, differences, terms_of
from fpp_sweep.core.metrics import Predictions, score


def side(seed, images=60, confidence=0.8):
    """Predictions of two classes, and the same as terms."""
    generator = np.random.default_rng(seed)
    high = generator.uniform(0.5, 1, images).astype(np.float32) * np.float32(confidence)
    probabilities = np.stack([np.maximum(high, 1 - high), np.minimum(high, 1 - high)], axis=1)
    labels = generator.integers(0, 2, images)
    made = Predictions.of([str(image) for image in range(images)], labels, probabilities)
    return score(made), terms_of(made.confidence, made.correct)


def test_the_first_value_is_the_difference_of_the_metrics():
    (first, left), (second, right), (third, other) = side(0), side(1), side(2)
    accuracy, ece = differences([[left, other]], [[right, right]])
    assert len(accuracy) == len(ece) == 1 + DRAWS
    assert accuracy[0] == pytest.approx((first["accuracy"] + third["accuracy"]) / 2 - second["accuracy"])
    assert ece[0] == pytest.approx((first["ece"] + third["ece"]) / 2 - second["ece"])


def test_a_side_does_not_differ_from_itself_on_any_resample():
    _, terms = side(0)
    accuracy, ece = differences([[terms], [terms]], [[terms], [terms]])
    assert not accuracy.any()
    assert not ece.any()
