"""Conformal sets: the classes that a set must hold so that it holds the label of 90 or 95 % of images.

A threshold is fitted on the scores of the labels of some images (split-conformal prediction); the set of another image
holds the classes whose scores are at most the threshold. Two scores are known:

- LAC (Sadinle et al., 2019): one minus the probability of the class. A set may be empty.
- APS (Romano et al., 2020): the probability of all classes that rank above the class. It is deterministic: no part of
  the class's own probability is added at random. The most probable class is in every set.

Among equal probabilities the earlier class ranks first. Shapes: N samples, K classes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.spec.catalogue import ConformalForm

if TYPE_CHECKING:
    from fpp_sweep.core.metrics import Predictions

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

COVERED = "_covered"  # ends the name of the column that says whether a set holds the label


def class_scores(form: ConformalForm, probabilities: Numbers) -> Numbers:
    """Return the scores (N, K) of all classes; likely classes have low ones."""
    if form == "lac":
        return np.asarray(1 - probabilities)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    up_to_rank = np.cumsum(ranked, axis=1)
    above_rank = np.concatenate([np.zeros((len(ranked), 1)), up_to_rank[:, :-1]], axis=1)
    scores = np.empty(probabilities.shape)
    np.put_along_axis(scores, order, above_rank, axis=1)
    return scores


def fit_threshold(label_scores: Numbers, percent: int) -> float:
    """Return the threshold that the score of another image's label does not exceed in at least `percent` of cases.

    The threshold is the score of rank ceil((N + 1) * percent / 100) among the N scores, as in split-conformal
    prediction. Too few scores have no such rank: the threshold is then infinite, so that sets hold all classes.

    >>> fit_threshold(np.arange(1.0, 100.0), 90), fit_threshold(np.arange(8.0), 90)
    (90.0, inf)
    """
    rank = math.ceil((len(label_scores) + 1) * percent / 100)
    if rank > len(label_scores):
        return math.inf
    return float(np.sort(label_scores)[rank - 1])


def scores_of_labels(scores: Numbers, labels: Integers) -> Numbers:
    """Return the score (N,) of each label."""
    return np.asarray(scores[np.arange(len(labels)), labels])


def _mean_size(column: str, predictions: Predictions) -> float:
    return float(np.mean(predictions.columns[column]))


def _coverage(column: str, predictions: Predictions) -> float:
    return 100 * float(np.mean(predictions.columns[column + COVERED]))


# `spec.catalogue` names these functions as the code of metrics
lac_90_size = partial(_mean_size, "lac_90")
lac_90_coverage = partial(_coverage, "lac_90")
lac_95_size = partial(_mean_size, "lac_95")
lac_95_coverage = partial(_coverage, "lac_95")
aps_90_size = partial(_mean_size, "aps_90")
aps_90_coverage = partial(_coverage, "aps_90")
aps_95_size = partial(_mean_size, "aps_95")
aps_95_coverage = partial(_coverage, "aps_95")
