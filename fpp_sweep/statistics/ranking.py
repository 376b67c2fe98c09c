"""Metrics of the ranking of images by confidence: AUROC and FPR95 of right against wrong answers, accuracy at coverage.

These metrics are no means over images. As for AURC, an image's contribution is the metric plus the image's influence
on it, the derivative by the image's weight (infinitesimal jackknife): the mean of the contributions is the metric, and
means over resampled images have its spread.
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
NEIGHBOURS = 0.1  # share of images whose confidences are nearest to a threshold, for the odds of right and wrong there
MIN_NEIGHBOURS = 10


def right_above_wrong(confidence: Confidence, correct: Correct) -> float:
    """Return AUROC: how often a right answer has the higher confidence than a wrong one; a tie counts one half.

    Where all answers are right, or all are wrong, there is nothing to rank: one half.
    """
    right, wrong = np.sort(confidence[correct]), np.sort(confidence[~correct])
    if not len(right) or not len(wrong):
        return 0.5
    return float(_share_below(wrong, right).mean())


def auroc_contributions(confidence: Confidence, correct: Correct) -> Numbers:
    value = right_above_wrong(confidence, correct)
    right, wrong = np.sort(confidence[correct]), np.sort(confidence[~correct])
    if not len(right) or not len(wrong):
        return np.full(len(confidence), value)
    share_of_right = len(right) / len(confidence)
    influence = np.empty(len(confidence))
    influence[correct] = (_share_below(wrong, confidence[correct]) - value) / share_of_right
    influence[~correct] = (1 - _share_below(right, confidence[~correct]) - value) / (1 - share_of_right)
    return _around(value, influence)


def wrong_above_threshold(confidence: Confidence, correct: Correct) -> float:
    """Return FPR95: the share of wrong answers at or above the confidence that 95 % of the right answers reach.

    Without wrong answers it is 0, without right ones 1.
    """
    if correct.all():
        return 0.0
    if not correct.any():
        return 1.0
    return float((confidence[~correct] >= _threshold_of_right(confidence, correct)).mean())


def fpr95_contributions(confidence: Confidence, correct: Correct) -> Numbers:
    value = wrong_above_threshold(confidence, correct)
    if correct.all() or not correct.any():
        return np.full(len(confidence), value)
    threshold = _threshold_of_right(confidence, correct)
    near = _nearest(confidence, threshold)
    odds = float((~correct[near]).sum() / max(correct[near].sum(), 1))  # wrong to right answers at the threshold
    is_above = confidence >= threshold
    share_of_wrong = 1 - correct.mean()
    # a further right answer above the threshold raises it, which takes wrong answers away, and one below lowers it
    influence = np.where(correct, -odds * (is_above - RIGHT_SHARE), is_above - value) / share_of_wrong
    return _around(value, influence)


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


def coverage_contributions(confidence: Confidence, correct: Correct, coverage: float) -> Numbers:
    value = accuracy_of_most_confident(confidence, correct, coverage)
    count = math.ceil(coverage * len(confidence))
    threshold = float(np.sort(confidence)[::-1][count - 1])
    accuracy_there = float(correct[_nearest(confidence, threshold)].mean())
    is_kept = confidence >= threshold
    influence = is_kept * (correct - accuracy_there) / coverage
    return _around(value, influence)


def _around(value: float, influence: Numbers) -> Numbers:
    """Return contributions whose mean is the value."""
    return np.asarray(value + influence - influence.mean())


def _share_below(ordered: Confidence, values: Confidence) -> Numbers:
    """Return for each value the share of `ordered` below it; equal ones count one half."""
    below = np.searchsorted(ordered, values, side="left")
    up_to = np.searchsorted(ordered, values, side="right")
    return np.asarray((below + up_to) / (2 * len(ordered)))


def _threshold_of_right(confidence: Confidence, correct: Correct) -> float:
    right = np.sort(confidence[correct])[::-1]
    return float(right[math.ceil(RIGHT_SHARE * len(right)) - 1])


def _nearest(confidence: Confidence, threshold: float) -> NDArray[np.int64]:
    """Return the positions of the images whose confidences are nearest to a threshold."""
    count = max(MIN_NEIGHBOURS, math.ceil(NEIGHBOURS * len(confidence)))
    return np.argsort(np.abs(confidence - threshold), kind="stable")[:count]


# `spec.catalogue` names the next functions as the code of metrics; percent, except for AUROC


def auroc(predictions: Predictions) -> float:
    return right_above_wrong(predictions.confidence, predictions.correct)


def fpr95(predictions: Predictions) -> float:
    return 100 * wrong_above_threshold(predictions.confidence, predictions.correct)


def accuracy_at_80(predictions: Predictions) -> float:
    return 100 * accuracy_of_most_confident(predictions.confidence, predictions.correct, 0.8)


def accuracy_at_90(predictions: Predictions) -> float:
    return 100 * accuracy_of_most_confident(predictions.confidence, predictions.correct, 0.9)
