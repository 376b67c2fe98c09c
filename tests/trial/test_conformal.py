"""Conformal sets of a trial: thresholds are fitted on other images; metrics are the sets' sizes and coverage."""

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
from fpp_sweep.statistics.paired import SplitStatistics
from fpp_sweep.statistics.posthoc import COVERED, FOLDS, class_scores, fit_threshold, scores_of_labels, softmax
from fpp_sweep.trial.artifacts import prediction_files, read_predictions, write_artifacts
from fpp_sweep.trial.posthoc import folds_of, with_conformal_sets
from fpp_sweep.trial.trial import run_trial
from tests.kit.names import ZERO_SHOT
from tests.kit.workers import inline, plan_of

SETS = tuple(catalogue.CONFORMAL)
QUICK = preset("tiny").replace({"views.count": 1, "prompt": "a photo of a", "method": ZERO_SHOT})


def random_predictions(seed, samples=100, classes=6):
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(samples, classes))
    labels = (logits / 2 + random.gumbel(size=logits.shape)).argmax(axis=1)
    ids = [f"{seed}/{number}" for number in range(samples)]
    return Predictions.of(ids, labels, softmax(logits).astype(np.float32), {"logits": logits.astype(np.float32)})


def conformal_scores(form, predictions):
    return class_scores(form, softmax(predictions.columns["logits"].astype(np.float64)))


def fitted_threshold(row, predictions, chosen=slice(None)):
    labels = predictions.labels[chosen]
    return fit_threshold(scores_of_labels(conformal_scores(row.form, predictions)[chosen], labels), row.percent)


@pytest.mark.parametrize("name", SETS)
def test_the_threshold_for_the_test_split_is_fitted_on_the_validation_split(name):
    test, val = random_predictions(1), random_predictions(2)
    found = with_conformal_sets([name], "dtd", test, val)
    row = catalogue.CONFORMAL[name]
    is_in_set = conformal_scores(row.form, test) <= fitted_threshold(row, val)
    assert found.columns[name].tolist() == is_in_set.sum(axis=1).tolist()
    assert found.columns[name + COVERED].tolist() == [is_in_set[i, label] for i, label in enumerate(test.labels)]


def test_on_validation_the_threshold_of_an_image_ignores_its_own_label():
    raw = random_predictions(3)
    found = with_conformal_sets(["aps_90"], "dtd", raw, None)
    folds = folds_of("dtd", raw.ids)
    row = catalogue.CONFORMAL["aps_90"]
    for fold in range(FOLDS):
        is_in_set = conformal_scores("aps", raw)[folds == fold] <= fitted_threshold(row, raw, folds != fold)
        assert found.columns["aps_90"][folds == fold].tolist() == is_in_set.sum(axis=1).tolist()


@pytest.mark.parametrize("source", [random_predictions(4, 49), None])
def test_too_few_images_are_refused(source):
    with pytest.raises(InputError, match=r"dtd.*: 49 images are too few for a conformal threshold, which needs 50"):
        with_conformal_sets(["lac_90"], "dtd", random_predictions(5, 49), source)


@pytest.fixture(scope="module")
def measured(make_worker, tmp_path_factory):
    """A trial on the test split with all conformal sets, in a sweep's folder."""
    worker = make_worker(limit=60)
    folder = SweepFolder(tmp_path_factory.mktemp("sweep"))
    plan = plan_of(worker, splits=("test", "val"), columns=SETS)
    result, datasets = run_trial(plan, QUICK, "test", inline(worker, plan, folder.tasks))
    write_artifacts(folder.artifacts("trial-0000"), datasets, "test", "title")
    return folder, TrialRecord(name="trial-0000", kind="trial", state="complete", results={"test": result}), datasets


def test_a_trial_has_size_and_coverage_of_every_set(measured):
    _, record, (part,) = measured
    own = with_conformal_sets(SETS, part.dataset.name, part.predictions, part.fitted_on)
    for name in SETS:
        size, coverage = (measured_value(record.results["test"], f"{name}_{metric}") for metric in ("size", "coverage"))
        assert size == np.mean(own.columns[name])
        assert coverage == 100 * np.mean(own.columns[name + COVERED])
    averages = record.results["test"].average
    assert averages["lac_90_size"] <= averages["lac_95_size"]
    assert 0 < averages["lac_95_size"] < len(part.dataset.classes)


def test_the_sets_of_every_image_are_in_the_predictions_file(measured):
    folder, _, (part,) = measured
    (file,) = prediction_files(folder.artifacts("trial-0000"), "test")
    rows = read_predictions(file)
    sizes = dict(zip(part.predictions.ids, part.predictions.columns["aps_95"], strict=True))
    assert rows["aps_95"].tolist() == [sizes[name] for name in rows["id"]]
    assert rows["aps_95_covered"].dtype == bool


def test_sizes_have_no_interval_and_a_reason_for_it(measured):
    folder, record, _ = measured
    samples = measure(folder, [record], "test", ["ece", "lac_90_size"])
    reason = SplitStatistics(samples).why_no_interval("trial-0000", "lac_90_size")
    assert reason.startswith("lac_90_size cannot be computed from block statistics")


def test_a_trial_without_a_request_makes_no_sets(make_worker, tmp_path):
    worker = make_worker(limit=60)
    plan = plan_of(worker)
    result, (part,) = run_trial(plan, QUICK, "val", inline(worker, plan, tmp_path))
    assert not part.predictions.columns
    assert not any(name.startswith(("lac", "aps")) for name in result.average)
