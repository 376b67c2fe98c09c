"""Metrics of the ranking of images by confidence: AUROC and FPR95 of right against wrong answers, accuracy at coverage.

These metrics are no means over images, so that they have no intervals and no tests. `spec.catalogue` names them
as code; they are in percent, except for AUROC.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fpp_sweep.core.metrics import Predictions

RIGHT_SHARE = 0.95  # share of right answers that the threshold of FPR95 keeps


def auroc(predictions: Predictions) -> float:
    """Return how often a right answer has the higher confidence than a wrong one; a tie counts one half.

    Where all answers are right, or all are wrong, there is nothing to rank: one half.
    """
    confidence, correct = predictions.confidence, predictions.correct
    if correct.all() or not correct.any():
        return 0.5
    right, wrong = np.sort(confidence[correct]), np.sort(confidence[~correct])
    below = np.searchsorted(wrong, right, side="left")
    up_to = np.searchsorted(wrong, right, side="right")  # equal ones count one half
    return float(((below + up_to) / (2 * len(wrong))).mean())


def fpr95(predictions: Predictions) -> float:
    """Return the share of wrong answers at or above the confidence that 95 % of the right answers reach.

    Without wrong answers it is 0, without right ones all.
    """
    confidence, correct = predictions.confidence, predictions.correct
    if correct.all() or not correct.any():
        return 0.0 if correct.all() else 100.0
    right = np.sort(confidence[correct])[::-1]
    threshold = right[math.ceil(RIGHT_SHARE * len(right)) - 1]
    return 100 * float((confidence[~correct] >= threshold).mean())


def _accuracy_at(coverage: float, predictions: Predictions) -> float:
    """Return the accuracy of the most confident images: a share `coverage` of all, rounded up.

    Images that tie at the threshold count in part, so that their order does not matter.
    """
    confidence, correct = predictions.confidence, predictions.correct
    count = math.ceil(coverage * len(confidence))
    threshold = np.sort(confidence)[::-1][count - 1]
    above, tied = confidence > threshold, confidence == threshold
    hits = correct[above].sum() + (count - above.sum()) * correct[tied].mean()
    return 100 * float(hits / count)


accuracy_at_80 = partial(_accuracy_at, 0.8)
accuracy_at_90 = partial(_accuracy_at, 0.9)
