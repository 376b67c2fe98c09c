"""Reliability diagrams: the file of the picture."""

import numpy as np
import pytest

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.trial.diagram import write_reliability_diagrams


def predictions_of(confidence, labels):
    """Return predictions among two classes in which class 0 has these probabilities."""
    probabilities = np.array([[value, 1 - value] for value in confidence], np.float32)
    return Predictions.of([str(i) for i in range(len(labels))], np.array(labels), probabilities)


FOUR = predictions_of([0.8125, 0.8125, 0.84375, 1.0], [0, 1, 1, 0])


@pytest.mark.parametrize(
    "predictions",
    [
        predictions_of([1.0], [0]),
        predictions_of([0.5], [1]),
        Predictions.of(["a"], np.array([0]), np.zeros((1, 2), np.float32)),
    ],
)
def test_a_single_sample_is_drawn(tmp_path, predictions):
    write_reliability_diagrams({"one": predictions}, tmp_path / "a.png", title="one")
    assert (tmp_path / "a.png").exists()


def test_equal_predictions_give_equal_bytes(tmp_path):
    (tmp_path / "b.png").write_text("old")
    for name in ("a", "b"):
        write_reliability_diagrams({"same": FOUR}, tmp_path / f"{name}.png", title="same")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
