"""Metrics of the ranking of images by confidence: AUROC and FPR95 of right against wrong answers, accuracy at coverage.

These metrics are no means over images, so that they have no intervals and no tests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fpp_sweep.core.metrics import Predictions

Numbers = NDArray[np.float64]
Confidence = NDArray[np.float32]
Correct = NDArray[np.bool_]

RIGHT_SHARE = 0.95  # share of right answers that the threshold of FPR95 keeps


def right_above_wrong(confidence: Confidence, correct: Correct) -> float:
    """Return AUROC: how often a right answer has the higher confidence than a wrong one; a tie counts one half.

    Where all answers are right, or all are wrong, there is nothing to rank: one half.
    """
    right, wrong = np.sort(confidence[correct]), np.sort(confidence[~correct])
    if not len(right) or not len(wrong):
        return 0.5
    return float(_share_below(wrong, right).mean())


def wrong_above_threshold(confidence: Confidence, correct: Correct) -> float:
    """Return FPR95: the share of wrong answers at or above the confidence that 95 % of the right answers reach.

    Without wrong answers it is 0, without right ones 1.
    """
    if correct.all():
        return 0.0
    if not correct.any():
        return 1.0
    return float((confidence[~correct] >= _threshold_of_right(confidence, correct)).mean())


def accuracy_of_most_confident(confidence: Confidence, correct: Correct, coverage: float) -> float:
    """Return the accuracy of the most confident images: a share `coverage` of all, rounded up.

    Images that tie at the threshold count in part, so that their order does not matter.
    """
    count = math.ceil(coverage * len(confidence))
    threshold = np.sort(confidence)[::-1][count - 1]
    above = confidence > threshold
    tied = confidence == threshold
    hits = correct[above].sum() + (count - above.sum()) * correct[tied].mean()
    return float(hits / count)


def _share_below(ordered: Confidence, values: Confidence) -> Numbers:
    """Return for each value the share of `ordered` below it; equal ones count one half."""
    below = np.searchsorted(ordered, values, side="left")
    up_to = np.searchsorted(ordered, values, side="right")
    return np.asarray((below + up_to) / (2 * len(ordered)))


def _threshold_of_right(confidence: Confidence, correct: Correct) -> float:
    right = np.sort(confidence[correct])[::-1]
    return float(right[math.ceil(RIGHT_SHARE * len(right)) - 1])


# `spec.catalogue` names the next functions as the code of metrics; percent, except for AUROC


def auroc(predictions: Predictions) -> float:
    return right_above_wrong(predictions.confidence, predictions.correct)


def fpr95(predictions: Predictions) -> float:
    return 100 * wrong_above_threshold(predictions.confidence, predictions.correct)


def accuracy_at_80(predictions: Predictions) -> float:
    return 100 * accuracy_of_most_confident(predictions.confidence, predictions.correct, 0.8)


def accuracy_at_90(predictions: Predictions) -> float:
    return 100 * accuracy_of_most_confident(predictions.confidence, predictions.correct, 0.9)
