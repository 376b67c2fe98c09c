"""Calibration after the fact of a trial: maps and conformal sets of the predictions of each dataset and seed.

On the test split they are fitted on all of the validation split, of the same method, dataset and seed. On the other
splits they are cross-fitted: the images are cut into folds, and those of a fold are mapped by a fit on the other folds.
So no image's label has a part in its own map or threshold, and a search that measures an objective after a map does not
overfit it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fpp_sweep.core.datasets import fair_order
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.posthoc import (
    CONFORMAL_SETS,
    COVERED,
    FOLDS,
    Integers,
    LabelledLogits,
    Numbers,
    TemperatureFit,
    class_scores,
    fit_isotonic,
    fit_temperature,
    fit_threshold,
    recalibrated,
    require_fittable,
    require_images,
    scores_of_labels,
    softmax,
    with_isotonic,
    with_temperature,
)

LOGITS = "logits"  # the column of predictions that maps need
FITTED_SPLIT = "val"  # the split that maps of the test split are fitted on
PredictionsBySeed = Mapping[DatasetSeed, Predictions]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFit:
    """The temperature of a map on one dataset and seed, or why it has none."""

    posthoc: str
    dataset: str
    seed: int
    images: int  # images that it was fitted on
    temperatures: tuple[float, ...]  # one, or one for each fold
    problem: str = ""  # why a fit has no temperature
    n_without: int = 0  # fits without a temperature

    @property
    def sentence(self) -> str:
        """The problem as a line of a report."""
        folds = ""
        if len(self.temperatures) > 1:
            folds = f" in {self.n_without} of {len(self.temperatures)} folds"
        return f"{self.posthoc}, {self.dataset}, seed {self.seed}: no temperature{folds}, so T = 1 ({self.problem})"


def needs_validation(names: Sequence[str], split: str) -> bool:
    """Return True if maps or conformal sets of a split are fitted on validation, and not on the split itself."""
    return split == "test" and any(is_fitted(name) for name in names)


def is_fitted(name: str) -> bool:
    """Return True if a map or a threshold of conformal sets is fitted on the validation split, or over folds."""
    return name in catalogue.CONFORMAL or catalogue.POSTHOC[name].fitted_on.startswith("val")


def map_predictions(
    name: str, key: DatasetSeed, measured: PredictionsBySeed, validation: PredictionsBySeed | None = None
) -> tuple[Predictions, MapFit | None]:
    """Return the predictions of one dataset and seed after a map, and the fit of the map if it has temperatures.

    `validation` are the predictions of that split; none: the map is cross-fitted. Raise InputError if it cannot be
    fitted.
    """
    dataset, _ = key
    raw = measured[key]
    source = None
    if name == "temperature_transfer":
        others = _of_other_datasets(key, validation or measured)
        fit = fit_temperature([_labelled(other) for other in others])
        probabilities, fits = with_temperature(logits_of(raw), fit.temperature), [fit]
        images = sum([len(other) for other in others])
    else:
        if name == "temperature_oracle":
            source = raw
        elif validation is None:
            require_fittable(dataset, raw.labels)
        else:
            source = validation[key]
            require_fittable(f"{dataset}, split {FITTED_SPLIT}", source.labels)
        apply = _apply_isotonic if name == "isotonic" else _apply_temperature
        probabilities, fits = _fit_and_apply(apply, dataset, raw, source)
        images = len(raw if source is None else source)
    return recalibrated(raw, probabilities), _map_fit(name, key, images, fits)


def _of_other_datasets(key: DatasetSeed, predictions: PredictionsBySeed) -> list[Predictions]:
    """Return the predictions of the other datasets with the same seed, of which each counts the same."""
    dataset, seed = key
    others = []
    for (other, other_seed), of_other in predictions.items():
        if other != dataset and other_seed == seed:
            require_fittable(other, of_other.labels)
            others.append(of_other)
    return others


# images that a fit is made on, and logits (n, K) -> values (n, K) for these logits, and the temperature if there is one
Apply = Callable[[LabelledLogits, Numbers], tuple[Numbers, TemperatureFit | None]]


def _apply_temperature(source: LabelledLogits, logits: Numbers) -> tuple[Numbers, TemperatureFit]:
    fit = fit_temperature([source])
    return with_temperature(logits, fit.temperature), fit


def _apply_isotonic(source: LabelledLogits, logits: Numbers) -> tuple[Numbers, None]:
    return with_isotonic(logits, fit_isotonic(source)), None


def _fit_and_apply(
    apply: Apply, dataset: str, raw: Predictions, source: Predictions | None
) -> tuple[Numbers, list[TemperatureFit]]:
    """Return values (N, K) by a fit on `source`, or without it for each fold by a fit on the other folds."""
    logits = logits_of(raw)
    if source is not None:
        values, fit = apply(_labelled(source), logits)
        return values, [fit] if fit else []
    folds = folds_of(dataset, raw.ids)
    values = np.empty(logits.shape)
    fits = []
    for fold in range(FOLDS):
        others = folds != fold
        of_others = LabelledLogits(logits=logits[others], labels=raw.labels[others])
        values[~others], fit = apply(of_others, logits[~others])
        if fit is not None:
            fits.append(fit)
    return values, fits


def folds_of(dataset: str, ids: Sequence[str]) -> Integers:
    """Return the fold (N,) of each sample, from its name alone: however the work is cut, the folds are the same."""
    order, _ = fair_order(dataset, ids)
    folds = np.empty(len(ids), np.int64)
    folds[order] = np.arange(len(ids)) % FOLDS
    return folds


def _map_fit(name: str, key: DatasetSeed, images: int, fits: Sequence[TemperatureFit]) -> MapFit | None:
    """Return the temperatures of a map; None for a map without temperatures."""
    if not fits:
        return None
    dataset, seed = key
    problems = [fit.problem for fit in fits if fit.problem]
    return MapFit(
        posthoc=name,
        dataset=dataset,
        seed=seed,
        images=images,
        temperatures=tuple(fit.temperature for fit in fits),
        problem=next(iter(problems), ""),
        n_without=len(problems),
    )


def _labelled(predictions: Predictions) -> LabelledLogits:
    return LabelledLogits(logits=logits_of(predictions), labels=predictions.labels)


def logits_of(predictions: Predictions) -> Numbers:
    """Return the logits (N, K) of predictions that have that column; the predicted class has the largest one.

    In half precision the probabilities of two classes may tie where their logits differ, and the first class is
    predicted. The two logits are swapped then, so that no map predicts another class.
    """
    column: Any = predictions.columns[LOGITS]
    logits = np.array(column, np.float64)
    rows = np.arange(len(logits))
    predicted, best = predictions.predicted, logits.argmax(axis=1)
    of_predicted, of_best = logits[rows, predicted], logits[rows, best]
    logits[rows, best] = of_predicted
    logits[rows, predicted] = of_best
    return logits


def with_conformal_sets(
    names: Sequence[str], dataset: str, predictions: Predictions, source: Predictions | None
) -> Predictions:
    """Return the predictions with the size of each image's sets, and whether the sets hold the label.

    `source` are the predictions of the validation split; none: thresholds are cross-fitted. Raise InputError if there
    are too few images.
    """
    columns: dict[str, Any] = dict(predictions.columns)
    for name in names:
        is_in_set = _class_sets(catalogue.CONFORMAL[name], dataset, predictions, source)
        columns[name] = is_in_set.sum(axis=1)
        columns[name + COVERED] = is_in_set[np.arange(len(is_in_set)), predictions.labels]
    return replace(predictions, columns=columns)


def _class_sets(row: catalogue.ConformalRow, dataset: str, predictions: Predictions, source: Predictions | None) -> Any:
    """Return an array (N, K) of booleans: True for the classes in the set of an image."""

    def sets(fitted_on: LabelledLogits, logits: Numbers) -> tuple[Any, None]:
        scores = scores_of_labels(class_scores(row.form, softmax(fitted_on.logits)), fitted_on.labels)
        return class_scores(row.form, softmax(logits)) <= fit_threshold(scores, row.percent), None

    if source is None:
        require_images(dataset, len(predictions), CONFORMAL_SETS)
    else:
        require_images(f"{dataset}, split {FITTED_SPLIT}", len(source), CONFORMAL_SETS)
    is_in_set, _ = _fit_and_apply(sets, dataset, predictions, source)
    return is_in_set.astype(bool)
