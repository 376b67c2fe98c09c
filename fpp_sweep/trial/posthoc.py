"""Calibration after the fact of a trial: maps and conformal sets of the predictions of each dataset and seed.

On the test split they are fitted on all of the validation split, of the same method, dataset and seed. On the other
splits they are cross-fitted: the images are cut into folds, and those of a fold are mapped by a fit on the other folds.
So no image's label has a part in its own map or threshold, and a search that measures an objective after a map does not
overfit it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fpp_sweep.core.datasets import fair_order
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.conformal import COVERED, class_scores, fit_threshold, scores_of_labels
from fpp_sweep.statistics.posthoc_maps import (
    CONFORMAL_SETS,
    FOLDS,
    Integers,
    LabelledLogits,
    Numbers,
    TemperatureFit,
    fit_isotonic,
    fit_temperature,
    recalibrated,
    require_fittable,
    require_images,
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappedPredictions:
    """Predictions after each map by dataset and seed, and the temperatures that were fitted."""

    by_map: Mapping[str, PredictionsBySeed]
    fits: Sequence[MapFit]


class MappedDataset(NamedTuple):
    """One dataset's probabilities (N, K) after a map, and the fit of the map if it has temperatures."""

    probabilities: Numbers
    fit: MapFit | None = None


def needs_validation(names: Sequence[str], split: str) -> bool:
    """Return True if maps or conformal sets of a split are fitted on validation, and not on the split itself."""
    return split == "test" and any(is_fitted(name) for name in names)


def is_fitted(name: str) -> bool:
    """Return True if a map or a threshold of conformal sets is fitted on the validation split, or over folds."""
    return name in catalogue.CONFORMAL or catalogue.POSTHOC[name].fitted_on.startswith("val")


def apply_maps(
    maps: Sequence[str], measured: PredictionsBySeed, fitted_on: PredictionsBySeed | None = None
) -> MappedPredictions:
    """Return the measured predictions after each map; raise InputError if one cannot be fitted.

    `fitted_on` are the predictions of the validation split; none: maps are cross-fitted.
    """
    fits: list[MapFit] = []
    by_map: dict[str, PredictionsBySeed] = {}
    for name in maps:
        mapped = {}
        for key, predictions in measured.items():
            probabilities, fit = _map_dataset(name, key, measured, fitted_on)
            mapped[key] = recalibrated(predictions, probabilities)
            if fit is not None:
                fits.append(fit)
        by_map[name] = mapped
    return MappedPredictions(by_map=by_map, fits=fits)


def _map_dataset(
    name: str, key: DatasetSeed, measured: PredictionsBySeed, fitted_on: PredictionsBySeed | None
) -> MappedDataset:
    """Return one dataset's probabilities after a map, and the fit of the map if it has temperatures."""
    raw = measured[key]
    if name == "temperature_oracle":
        fit = fit_temperature([_labelled(raw)])
        probabilities = with_temperature(logits_of(raw), fit.temperature)
        return MappedDataset(probabilities, _map_fit(name, key, len(raw), [fit]))
    if name == "temperature_transfer":
        return _map_by_transfer(key, measured, fitted_on or measured)
    if fitted_on is None:
        return _map_by_folds(name, key, raw)
    return _map_by_validation(name, key, raw, fitted_on[key])


def _map_by_validation(name: str, key: DatasetSeed, raw: Predictions, source: Predictions) -> MappedDataset:
    """Map predictions by a fit on `source`, the predictions of the validation split."""
    require_fittable(f"{key[0]}, split {FITTED_SPLIT}", source.labels)
    probabilities, fit = _fit_and_map(name, _labelled(source), logits_of(raw))
    if fit is None:
        return MappedDataset(probabilities)
    return MappedDataset(probabilities, _map_fit(name, key, len(source), [fit]))


def _fit_and_map(name: str, source: LabelledLogits, logits: Numbers) -> tuple[Numbers, TemperatureFit | None]:
    """Return probabilities after a map that is fitted on `source`, and its temperature if it has one."""
    if name == "isotonic":
        return with_isotonic(logits, fit_isotonic(source)), None
    fit = fit_temperature([source])
    return with_temperature(logits, fit.temperature), fit


def _map_by_folds(name: str, key: DatasetSeed, raw: Predictions) -> MappedDataset:
    """Map the predictions of each fold by a fit on the other folds."""
    require_fittable(key[0], raw.labels)
    logits = logits_of(raw)
    folds = folds_of(key[0], raw.ids)
    probabilities = np.empty(logits.shape)
    fits = []
    for fold in range(FOLDS):
        others = folds != fold
        source = LabelledLogits(logits=logits[others], labels=raw.labels[others])
        probabilities[~others], fit = _fit_and_map(name, source, logits[~others])
        if fit is not None:
            fits.append(fit)
    if not fits:
        return MappedDataset(probabilities)
    return MappedDataset(probabilities, _map_fit(name, key, len(raw), fits))


def _map_by_transfer(key: DatasetSeed, measured: PredictionsBySeed, fitted_on: PredictionsBySeed) -> MappedDataset:
    """Map predictions by the temperature of the other datasets, of which each counts the same."""
    dataset, seed = key
    sources = []
    images = 0
    for (source, source_seed), predictions in fitted_on.items():
        if source != dataset and source_seed == seed:
            require_fittable(source, predictions.labels)
            sources.append(_labelled(predictions))
            images += len(predictions)
    fit = fit_temperature(sources)
    probabilities = with_temperature(logits_of(measured[key]), fit.temperature)
    return MappedDataset(probabilities, _map_fit("temperature_transfer", key, images, [fit]))


def folds_of(dataset: str, ids: Sequence[str]) -> Integers:
    """Return the fold (N,) of each sample, from its name alone: however the work is cut, the folds are the same."""
    order, _ = fair_order(dataset, ids)
    folds = np.empty(len(ids), np.int64)
    folds[order] = np.arange(len(ids)) % FOLDS
    return folds


def _map_fit(name: str, key: DatasetSeed, images: int, fits: Sequence[TemperatureFit]) -> MapFit:
    dataset, seed = key
    problems = [fit.problem for fit in fits if fit.problem]
    first_problem = ""
    if problems:
        first_problem = problems[0]
    return MapFit(
        posthoc=name,
        dataset=dataset,
        seed=seed,
        images=images,
        temperatures=tuple(fit.temperature for fit in fits),
        problem=first_problem,
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
