"""A post-hoc map is fitted on other images than it maps, and changes no predicted class."""

import json

import numpy as np
import pytest

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import measured_value
from fpp_sweep.records.measurements import measure
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.paired import Interval, SplitStatistics
from fpp_sweep.statistics.posthoc import (
    ALL_RIGHT,
    FOLDS,
    LabelledLogits,
    fit_isotonic,
    fit_temperature,
    softmax,
    with_isotonic,
    with_temperature,
)
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.posthoc import folds_of, map_predictions, needs_validation
from fpp_sweep.trial.trial import run_trial
from tests.kit.names import ZERO_SHOT
from tests.kit.workers import inline, plan_of

IMAGES = 60  # images in each split
MAPS = tuple(catalogue.POSTHOC)
QUICK = preset("tiny").replace({"views.count": 2, "prompt": "a photo of a"})


def overconfident_predictions(samples=200, classes=4, seed=0, *, right=False):
    """Return overconfident predictions with their logits; with `right`, every predicted class is correct."""
    random = np.random.default_rng(seed)
    logits = 6 * random.normal(size=(samples, classes))
    labels = (logits / 4 + random.gumbel(size=logits.shape)).argmax(axis=1)
    if right:
        labels = logits.argmax(axis=1)
    ids = [f"{seed}/{number}" for number in range(samples)]
    return Predictions.of(ids, labels, softmax(logits).astype(np.float32), {"logits": logits.astype(np.float32)})


def labelled_logits(predictions, chosen=slice(None)):
    return LabelledLogits(
        logits=predictions.columns["logits"][chosen].astype(np.float64), labels=predictions.labels[chosen]
    )


def confidences(probabilities):
    return probabilities.max(axis=1).astype(np.float32)


def test_a_map_for_the_test_split_is_fitted_on_the_whole_validation_split():
    test, val = overconfident_predictions(seed=1), overconfident_predictions(seed=2)
    mapped, record = map_predictions("temperature_val", ("dtd", 0), {("dtd", 0): test}, {("dtd", 0): val})
    fit = fit_temperature([labelled_logits(val)])
    expected = with_temperature(test.columns["logits"], fit.temperature)
    np.testing.assert_allclose(mapped.confidence, confidences(expected), rtol=1e-6)
    assert (record.temperatures, record.images) == ((fit.temperature,), 200)


def test_on_validation_the_map_of_an_image_ignores_its_own_label():
    raw = overconfident_predictions()
    folds = folds_of("dtd", raw.ids)
    assert np.bincount(folds).tolist() == [200 // FOLDS] * FOLDS
    mapped, record = map_predictions("temperature_val", ("dtd", 0), {("dtd", 0): raw})
    assert len(record.temperatures) == FOLDS
    for fold in range(FOLDS):
        fit = fit_temperature([labelled_logits(raw, folds != fold)])
        expected = with_temperature(raw.columns["logits"][folds == fold], fit.temperature)
        np.testing.assert_allclose(mapped.confidence[folds == fold], confidences(expected), rtol=1e-6)


@pytest.mark.parametrize("name", MAPS)
def test_a_map_keeps_the_class_that_is_predicted_where_two_classes_tie_in_half_precision(name):
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 200)
    logits = np.zeros((200, 5), np.float32)
    logits[np.arange(200), labels] = random.uniform(1.0, 1.6, 200)  # right and hardly confident: maps raise confidence
    logits[0] = [5.0, 5.0001, 2.0, 2.0, 1.0]
    probabilities = softmax(logits.astype(np.float64)).astype(np.float16).astype(np.float32)
    raw = Predictions.of([str(number) for number in range(200)], labels, probabilities, {"logits": logits})
    assert raw.predicted[0] == 0
    run = {("dtd", 0): raw, ("pets", 0): raw}
    mapped, _ = map_predictions(name, ("dtd", 0), run)
    assert mapped.predicted.tolist() == raw.predicted.tolist()


def test_a_transferred_temperature_uses_no_label_of_the_dataset_that_it_scales():
    datasets = {
        ("dtd", 0): overconfident_predictions(seed=1),
        ("pets", 0): overconfident_predictions(seed=2, classes=7),
        ("dtd", 1): overconfident_predictions(seed=3),
    }
    datasets["pets", 1] = overconfident_predictions(seed=4, classes=7)
    fits = {key: map_predictions("temperature_transfer", key, datasets)[1].temperatures[0] for key in datasets}
    assert fits["dtd", 1] == fit_temperature([labelled_logits(datasets["pets", 1])]).temperature
    assert fits["pets", 0] == fit_temperature([labelled_logits(datasets["dtd", 0])]).temperature


@pytest.mark.parametrize("name", MAPS)
def test_no_map_changes_a_predicted_class(name):
    measured = {("dtd", 0): overconfident_predictions(seed=1), ("pets", 0): overconfident_predictions(seed=2)}
    for run, raw in measured.items():
        mapped, _ = map_predictions(name, run, measured)
        assert mapped.predicted.tolist() == raw.predicted.tolist()
        assert mapped.ids == raw.ids


def test_a_map_that_finds_no_temperature_reports_it_and_changes_nothing():
    raw = overconfident_predictions(right=True)
    mapped, fit = map_predictions("temperature_oracle", ("dtd", 0), {("dtd", 0): raw})
    assert fit.sentence == f"temperature_oracle, dtd, seed 0: no temperature, so T = 1 ({ALL_RIGHT})"
    np.testing.assert_allclose(mapped.confidence, raw.confidence, rtol=1e-6)


def test_too_few_images_are_refused():
    with pytest.raises(InputError, match="dtd: 30 images are too few for a post-hoc map"):
        map_predictions("isotonic", ("dtd", 0), {("dtd", 0): overconfident_predictions(30)})


def test_only_the_test_split_needs_the_validation_split():
    assert needs_validation(["temperature_val"], "test")
    assert not needs_validation(["temperature_val"], "val")
    assert not needs_validation(["temperature_oracle"], "test")


@pytest.fixture(scope="module")
def worker(make_worker):
    return make_worker(limit=IMAGES)


@pytest.fixture(scope="module")
def measured(worker, tmp_path_factory):
    """A trial on two datasets of the test split with all maps, in a sweep's folder."""
    folder = SweepFolder(tmp_path_factory.mktemp("sweep"))
    plan = plan_of(worker, datasets=("digits", "scenes"), splits=("test", "val"), columns=("logits",), posthoc=MAPS)
    result, datasets = run_trial(
        plan, QUICK.replace({"method": "zero_mean"}), "test", inline(worker, plan, folder.tasks)
    )
    write_artifacts(folder.artifacts("trial-0000"), datasets, "test", "title")
    record = TrialRecord(name="trial-0000", kind="trial", state="complete", results={"test": result})
    return folder, record, datasets, plan


def test_a_trial_has_every_metric_after_every_map_but_accuracy(measured):
    _, record, datasets, _ = measured
    result = record.results["test"]
    for name in MAPS:
        assert measured_value(result, f"ece@{name}") != measured_value(result, "ece")
        assert f"accuracy@{name}" not in result.average
        values = [measured_value(result, f"nll@{name}/{part.dataset.name}") for part in datasets]
        assert measured_value(result, f"nll@{name}") == pytest.approx(np.mean(values))
    assert result.average["nll@temperature_oracle"] < result.average["nll@temperature_val"]
    assert result.average["nll@temperature_oracle"] < result.average["nll"]


def test_the_fits_and_the_block_statistics_of_every_map_are_files(measured):
    folder, record, _, _ = measured
    fits = json.loads((folder.artifacts("trial-0000") / "test/posthoc.json").read_text())
    assert {fit["posthoc"] for fit in fits} == {name for name in MAPS if "temp" in name}
    assert {fit["images"] for fit in fits} == {IMAGES}
    samples = measure(folder, [record], "test", ["ece", "ece@temperature_val", "nll@isotonic"])
    for metric in ("nll@isotonic", "nll@isotonic/digits"):
        interval = SplitStatistics(samples).interval("trial-0000", metric)
        assert isinstance(interval, Interval), interval
        assert interval.value == pytest.approx(measured_value(record.results["test"], metric), abs=1e-6)
    value = samples.records["trial-0000"].metrics["ece@temperature_val"].value
    assert value == pytest.approx(measured_value(record.results["test"], "ece@temperature_val"), abs=1e-6)


def test_isotonic_maps_on_validation_are_cross_fitted_by_a_trial(worker, tmp_path):
    plan = plan_of(worker, columns=("logits",), posthoc=("isotonic",))
    _, (part,) = run_trial(plan, QUICK.replace({"method": ZERO_SHOT}), "val", inline(worker, plan, tmp_path))
    mapped = part.mapped["isotonic"]
    folds = folds_of("digits", part.predictions.ids)
    fit = fit_isotonic(labelled_logits(part.predictions, folds != 2))
    expected = with_isotonic(part.predictions.columns["logits"][folds == 2].astype(np.float64), fit)
    np.testing.assert_allclose(mapped.confidence[folds == 2], confidences(expected), rtol=1e-6)


def test_folds_depend_on_the_names_of_images_only():
    ids = [f"image {number}" for number in range(101)]
    folds = folds_of("dtd", ids)
    order = np.random.default_rng(0).permutation(101)
    assert folds_of("dtd", [ids[index] for index in order]).tolist() == folds[order].tolist()
