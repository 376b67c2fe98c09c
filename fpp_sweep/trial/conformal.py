"""Conformal sets of a trial's predictions (`work.columns`, or a metric such as `lac_90_size`).

Thresholds are fitted where post-hoc maps are (`trial.posthoc`): for the test split on all of the validation split, of
the same method, dataset and seed; on other splits over folds of images. So no label has a part in its own threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.conformal import COVERED, class_scores, fit_threshold, scores_of_labels
from fpp_sweep.statistics.posthoc_maps import CONFORMAL_SETS, FOLDS, Integers, Numbers, require_images, softmax
from fpp_sweep.trial.posthoc import FITTED_SPLIT, PredictionsBySeed, folds_of, logits_of


def with_conformal_sets(
    names: Sequence[str], measured: PredictionsBySeed, fitted_on: PredictionsBySeed | None
) -> dict[DatasetSeed, Predictions]:
    """Return the predictions with the size of each image's sets, and whether the sets hold the label.

    `fitted_on` are the predictions of the validation split; none: thresholds are cross-fitted. Raise InputError if
    there are too few images.
    """
    results = {}
    for (dataset, seed), predictions in measured.items():
        columns: dict[str, Any] = dict(predictions.columns)
        for name in names:
            source = None
            if fitted_on is not None:
                source = fitted_on[dataset, seed]
            is_in_set = _class_sets(catalogue.CONFORMAL[name], dataset, predictions, source)
            columns[name] = is_in_set.sum(axis=1)
            columns[name + COVERED] = is_in_set[np.arange(len(is_in_set)), predictions.labels]
        results[dataset, seed] = replace(predictions, columns=columns)
    return results


def _class_sets(row: catalogue.ConformalRow, dataset: str, predictions: Predictions, source: Predictions | None) -> Any:
    """Return an array (N, K) of booleans: True for the classes in the set of an image.

    The threshold is fitted on `source`; without it, on the predictions themselves, over folds.
    """
    scores = _scores(row, predictions)
    if source is not None:
        require_images(f"{dataset}, split {FITTED_SPLIT}", len(source), CONFORMAL_SETS)
        return scores <= _threshold(row, _scores(row, source), source.labels)
    require_images(dataset, len(predictions), CONFORMAL_SETS)
    folds = folds_of(dataset, predictions.ids)
    is_in_set = np.empty(scores.shape, bool)
    for fold in range(FOLDS):
        others = folds != fold
        is_in_set[~others] = scores[~others] <= _threshold(row, scores[others], predictions.labels[others])
    return is_in_set


def _scores(row: catalogue.ConformalRow, predictions: Predictions) -> Numbers:
    return class_scores(row.form, softmax(logits_of(predictions)))


def _threshold(row: catalogue.ConformalRow, scores: Numbers, labels: Integers) -> float:
    return fit_threshold(scores_of_labels(scores, labels), row.percent)
