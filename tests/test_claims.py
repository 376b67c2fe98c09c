import numpy as np
import pytest

from benchmarks.claims import differences, shown
from fpp_sweep.core.metrics import Predictions, score
from fpp_sweep.statistics.block_stats import BlockStats
from fpp_sweep.statistics.old_bootstrap import Interval


def side(seed, images=60, confidence=0.8):
    """Predictions of two classes: their metrics, and their sums."""
    generator = np.random.default_rng(seed)
    high = generator.uniform(0.5, 1, images).astype(np.float32) * np.float32(confidence)
    probabilities = np.stack([np.maximum(high, 1 - high), np.minimum(high, 1 - high)], axis=1)
    labels = generator.integers(0, 2, images)
    made = Predictions.of([str(image) for image in range(images)], labels, probabilities)
    return score(made), BlockStats.of_predictions("toy", made)


def test_a_difference_is_that_of_the_metrics_the_mean_over_seeds():
    (first, left), (second, right), (third, other) = side(0), side(1), side(2)
    gaps = differences({"toy": [left, other]}, {"toy": [right, right]})
    for metric, name in (("accuracy", "accuracy"), ("ece", "debiased_ece")):
        expected = (first[name] + third[name]) / 2 - second[name]
        assert gaps[metric].value == pytest.approx(expected)
        assert gaps[metric].low < expected < gaps[metric].high


def test_a_side_does_not_differ_from_itself_on_any_resample():
    _, sums = side(0)
    gaps = differences({"toy": [sums]}, {"toy": [sums]})
    assert all(gap.value == 0 for gap in gaps.values())
    assert gaps["ece"].sd == 0


def test_an_interval_stands_behind_its_difference():
    assert shown(Interval(-1.25, 0.5)) == "-1.25 [-2.23, -0.27]"
