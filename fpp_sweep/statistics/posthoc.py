"""Calibration after the fact: maps of the confidence of predictions, and conformal sets of classes.

A map is fitted on logits and labels, and applied to other logits; it never changes the predicted class. The threshold
of conformal sets is fitted on scores of labels (split-conformal prediction): the set of another image holds the classes
whose scores are at most the threshold, and so the image's label in 90 or 95 % of cases. Everything is in float64.

Shapes: N samples, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy  # loads `scipy.optimize` when it is used: most processes of a sweep fit no map
from numpy.typing import NDArray

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.space.space import MIN_MAPPED_IMAGES
from fpp_sweep.spec.catalogue import ConformalForm
from fpp_sweep.spec.errors import InputError

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

CONFORMAL_SETS = "a conformal threshold"  # in messages
COVERED = "_covered"  # ends the name of the column that says whether a set holds the label
FOLDS = 5  # folds of a map that is fitted and applied on the same split
TOLERANCE = 1e-13  # relative, of the inverse temperature
ALL_RIGHT = "every label has the largest logit, so that T goes to 0"
NO_SIGNAL = "labels have no larger logits than other classes on average, so that T goes to infinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureFit:
    """The temperature of least negative log-likelihood; 1 with the reason if there is none."""

    temperature: float
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IsotonicFit:
    """A rising function of confidence, linear between its knots and constant beyond them."""

    confidences: Numbers
    values: Numbers


def softmax(logits: Numbers) -> Numbers:
    """Return probabilities (N, K)."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def require_fittable(where: str, labels: Integers) -> None:
    """Raise InputError unless a map can be fitted on samples with these labels."""
    require_images(where, len(labels))
    if len(np.unique(labels)) < 2:
        raise InputError(f"{where}: its images have one class, and a post-hoc map needs two; leave the dataset out")


def require_images(where: str, images: int, fitted: str = "a post-hoc map") -> None:
    """Raise InputError if there are too few images for what is fitted on them."""
    if images < MIN_MAPPED_IMAGES:
        problem = f"{images} images are too few for {fitted}, which needs {MIN_MAPPED_IMAGES}"
        raise InputError(f"{where}: {problem}; raise work.limit, or leave it out")


# --- temperature -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledLogits:
    """Logits of one dataset with the labels of its samples."""

    logits: Numbers  # (N, K)
    labels: Integers  # (N,)


def fit_temperature(datasets: Sequence[LabelledLogits]) -> TemperatureFit:
    """Return the T that minimises the negative log-likelihood of logits / T, a mean over datasets of means.

    The loss is convex in b = 1 / T: its slope is the mean of E[z] - z_label under softmax(b z). There is no minimiser
    if the slope is positive at b = 0, or negative for every b.
    """
    parts = [_margins(dataset) for dataset in datasets]
    if sum(float(margins.max(axis=1).mean()) for margins in parts) <= 0:
        return TemperatureFit(temperature=1.0, problem=ALL_RIGHT)
    if sum(float(margins.mean()) for margins in parts) >= 0:
        return TemperatureFit(temperature=1.0, problem=NO_SIGNAL)

    def slope(inverse: float) -> float:
        return sum(float((softmax(inverse * margins) * margins).sum(axis=1).mean()) for margins in parts)

    high = 1.0
    while slope(high) < 0:
        high *= 2
    inverse = scipy.optimize.brentq(slope, 0.0, high, xtol=TOLERANCE**2, rtol=TOLERANCE)
    return TemperatureFit(temperature=1 / inverse)


def _margins(dataset: LabelledLogits) -> Numbers:
    """Return (N, K): how much larger each logit is than that of the label."""
    logits = np.asarray(dataset.logits, np.float64)
    rows = np.arange(len(logits))
    return np.asarray(logits - logits[rows, dataset.labels][:, None])


def with_temperature(logits: Numbers, temperature: float) -> Numbers:
    """Return probabilities (N, K)."""
    return softmax(np.asarray(logits, np.float64) / temperature)


# --- isotonic regression of the confidence ---------------------------------------------------------


def fit_isotonic(dataset: LabelledLogits) -> IsotonicFit:
    """Return the rising function that fits correctness to confidence best, by least squares.

    Its values keep 1 / (N + 2) from 0 and 1, as N images never show that a prediction is certain; the choice is ours.
    """
    probabilities = softmax(np.asarray(dataset.logits, np.float64))
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == dataset.labels
    distinct, position = np.unique(confidence, return_inverse=True)
    counts = np.bincount(position).astype(np.float64)
    hits = np.bincount(position, weights=correct)
    values = scipy.optimize.isotonic_regression(hits / counts, weights=counts).x
    least = 1 / (len(confidence) + 2)
    return IsotonicFit(confidences=distinct, values=np.clip(values, least, 1 - least))


def with_isotonic(logits: Numbers, fit: IsotonicFit) -> Numbers:
    """Return probabilities (N, K): the top one is mapped, the others are scaled to the remainder.

    The top probability stays at or above the value at which the second class would overtake, so that the predicted
    class does not change.
    """
    probabilities = softmax(np.asarray(logits, np.float64))
    rows = np.arange(len(probabilities))
    top = probabilities.argmax(axis=1)
    confidence = probabilities[rows, top]
    others = probabilities.copy()
    others[rows, top] = 0.0
    remainder = others.sum(axis=1)
    is_certain = remainder <= 0  # the other probabilities underflow: they share the remainder evenly
    others[is_certain] = 1 / (probabilities.shape[1] - 1)
    others[rows, top] = 0.0
    others /= others.sum(axis=1, keepdims=True)
    second = others.max(axis=1)
    mapped = np.interp(confidence, fit.confidences, fit.values)
    mapped = np.maximum(mapped, second / (1 + second) * (1 + 1e-6))
    result = others * (1 - mapped)[:, None]
    result[rows, top] = mapped
    return np.asarray(result)


# --- predictions ------------------------------------------------------------------------------------


def recalibrated(raw: Predictions, probabilities: Numbers) -> Predictions:
    """Return predictions with other probabilities and the same predicted classes.

    Raise RuntimeError if the probabilities predict another class: no map may do that.
    """
    top = probabilities.max(axis=1)
    of_predicted = probabilities[np.arange(len(raw)), raw.predicted]
    wrong = np.flatnonzero(of_predicted < top)
    if wrong.size:
        raise RuntimeError(f"a post-hoc map changed the predicted class of sample {raw.ids[wrong[0]]!r}")
    mapped = Predictions.of(raw.ids, raw.labels, probabilities.astype(np.float32))
    return replace(mapped, predicted=raw.predicted, in_top5=raw.in_top5)


# --- conformal sets ----------------------------------------------------------------------------------


def class_scores(form: ConformalForm, probabilities: Numbers) -> Numbers:
    """Return the scores (N, K) of all classes; likely classes have low ones.

    - LAC (Sadinle et al., 2019): one minus the probability of the class. A set may be empty.
    - APS (Romano et al., 2020): the probability of all classes that rank above the class. It is deterministic: no part
      of the class's own probability is added at random. The most probable class is in every set.

    Among equal probabilities the earlier class ranks first.
    """
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
