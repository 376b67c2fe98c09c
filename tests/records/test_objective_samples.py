"""The objectives' samples that a trial writes when it ends: equal to those computed from its block statistics."""

import hashlib
import json

import numpy as np
import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.measurements import measure, read_block_stats
from fpp_sweep.records.objective_samples import FILE, VERSION, write_objective_samples
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS
from fpp_sweep.statistics.bootstrap import NO_MAP
from tests.kit.measured import World, write_measured_sweep

OBJECTIVES = ["accuracy", "ece", "nll/digits"]
TRIALS = {"trial-0002": (0.7, 0.1), "trial-0003": (0.6, 0.2), "trial-0004": (0.5, 0.3)}


@pytest.fixture
def folder(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(200), TRIALS)
    write_files(folder)
    return folder


def write_files(folder, objectives=OBJECTIVES):
    for record in folder.trials():
        if record.state == "complete":
            table = read_block_stats(folder.artifacts(record.name), "val")
            write_objective_samples(folder.artifacts(record.name), "val", {NO_MAP: table}, objectives)


def file_of(folder, name="trial-0002"):
    return folder.artifacts(name) / "val" / FILE


def measure_rivals(folder):
    """Return the samples of trials of which the objectives are needed only."""
    return measure(folder, [], "val", OBJECTIVES, rivals=folder.trials(), objectives=OBJECTIVES).samples


def is_from_file(samples, name="trial-0002"):
    return set(samples.records[name].metrics) == set(OBJECTIVES)


def test_samples_from_files_equal_those_from_block_statistics(folder):
    stored = measure_rivals(folder)
    computed = measure(folder, folder.trials(), "val", OBJECTIVES).samples
    assert (stored.images, stored.digests) == (computed.images, computed.digests)
    assert stored.records.keys() == computed.records.keys()
    for name, record in stored.records.items():
        assert is_from_file(stored, name)
        assert record.seeds == computed.records[name].seeds
        assert record.deterministic == computed.records[name].deterministic
        for metric, samples in record.metrics.items():
            expected = computed.records[name].metrics[metric]
            assert np.array_equal(samples.by_seed, expected.by_seed)
            for key in ("points_per_image", "blocks", "rarer_answers", "calibrated_bias", "residual_bias"):
                assert getattr(samples, key) == getattr(expected, key)


def test_the_statistics_of_a_sweep_are_the_same_without_the_files(folder):
    info, records = folder.info(), folder.trials()
    with_files = statistics_of(folder, info, records)
    for record in records:
        file_of(folder, record.name).unlink(missing_ok=True)
    without_files = statistics_of(folder, info, records)
    assert len(with_files.support.trials) == len(TRIALS)
    assert with_files.support.trials == without_files.support.trials
    for record in with_files.front.compared:
        for metric in ("accuracy", "ece", "ece/digits"):
            assert with_files.interval(record, "val", metric) == without_files.interval(record, "val", metric)


@pytest.mark.parametrize(
    "change",
    [
        {"version": VERSION + 1},
        {"split": "test"},
        {"seed": None},
        {"images": []},
        {"images": {"digits": {"count": 200, "digest": "x"}}},
        {"metrics": {}},
        {"metrics": {metric: {"values": [1.0]} for metric in OBJECTIVES}},
        {"metrics": []},
    ],
    ids=str,
)
def test_a_damaged_file_or_one_of_other_code_is_not_used(folder, change):
    document = json.loads(file_of(folder).read_text())
    file_of(folder).write_text(json.dumps(document | change))
    samples = measure_rivals(folder)
    assert not is_from_file(samples)
    assert is_from_file(samples, "trial-0003")
    assert set(OBJECTIVES) <= samples.records["trial-0002"].metrics.keys()


@pytest.mark.parametrize("key", ["values", "points_per_image", "calibrated_bias", "residual_bias"])
@pytest.mark.parametrize("number", [float("nan"), 1e400, 10**400, "x", None, {}], ids=str)
def test_numbers_that_no_trial_writes_are_not_used(folder, key, number):
    document = json.loads(file_of(folder).read_text())
    numbers = document["metrics"]["ece"]
    if key == "values":
        numbers["values"][7] = number
    else:
        numbers[key] = number
    file_of(folder).write_text(json.dumps(document))
    assert not is_from_file(measure_rivals(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff"], ids=repr)
def test_a_file_that_is_no_document_is_not_used(folder, content):
    file_of(folder).write_bytes(content)
    assert not is_from_file(measure_rivals(folder))


def test_a_file_that_leads_out_of_the_folder_is_not_read(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere.json"
    file_of(folder).rename(elsewhere)
    file_of(folder).symlink_to(elsewhere)
    assert not is_from_file(measure_rivals(folder))


def test_the_file_of_another_record_is_not_used(folder):
    file_of(folder).write_bytes(file_of(folder, "trial-0003").read_bytes())
    assert not is_from_file(measure_rivals(folder))


def test_a_trial_with_several_seeds_has_no_file(tmp_path):
    """The variance of seeds is estimated from its values on each dataset, too."""
    folder = write_measured_sweep(tmp_path / "sweep", World(80), TRIALS, seeds=(0, 1))
    write_files(folder)
    assert not file_of(folder).exists()


def test_code_that_computes_other_samples_has_another_version(folder):
    """If this digest changes, raise VERSION: folders hold the samples of earlier code."""
    write_files(folder, list(BLOCKWISE_METRICS))
    rounded = []
    for numbers in json.loads(file_of(folder).read_text())["metrics"].values():
        rounded += [*numbers["values"], numbers["calibrated_bias"], numbers["residual_bias"], numbers["blocks"]]
    text = " ".join(f"{number:.6g}" for number in rounded)
    assert (VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "fd67d69f7057201d")
