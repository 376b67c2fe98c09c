"""The objectives' samples that a trial writes when it ends: equal to those computed from its block statistics."""

import base64
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.front import metric_of
from fpp_sweep.records.measurements import BLOCK_STATS_FILE, accuracies_of, measure, read_block_stats
from fpp_sweep.records.objective_samples import FILE, VERSION, write_objective_samples
from fpp_sweep.space.objectives import Objective
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, to_bytes
from fpp_sweep.statistics.bootstrap import NO_MAP
from tests.kit.measured import World, write_block_stats, write_measured_sweep

OBJECTIVES = ["accuracy", "ece", "nll/digits"]
TRIALS = {"trial-0002": (0.7, 0.1), "trial-0003": (0.6, 0.2), "trial-0004": (0.5, 0.3)}
SIDES = {**TRIALS, "baseline-zero_shot": (0.55, 0.25)}


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


def values_of(numbers):
    """Return the values of a metric in a file, on all images and on each resample."""
    return np.frombuffer(base64.b64decode(numbers["values"]))


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


def statistics_text(folder):
    """Return all statistics of a sweep that a report shows, as text."""
    statistics = statistics_of(folder, folder.info(), folder.trials())
    facts = [statistics.notes, statistics.answer, sorted(statistics.support.trials.items())]
    for split, of_split in statistics.splits.items():
        facts += [split, list(of_split.samples.images.items()), sorted(of_split.samples.records), of_split.seeds]
        for record in statistics.front.compared:
            facts += [statistics.interval(record, split, metric) for metric in ("accuracy", "ece", "ece/digits")]
    return "\n".join(map(repr, facts))


def require_same_without_files(folder):
    """Compare the statistics of a sweep with those that are computed without the objectives' samples."""
    with_files = statistics_text(folder)
    for record in folder.trials():
        (folder.path / "artifacts" / record.name / "val" / FILE).unlink(missing_ok=True)
    assert with_files == statistics_text(folder)


def block_stats_of(folder, name="trial-0003"):
    return folder.artifacts(name) / "val" / BLOCK_STATS_FILE


def change_nothing(folder):
    pass


def change_record(folder):
    record = folder.trial("trial-0003")
    result = record.results["val"]
    dataset = next(iter(result.datasets))
    datasets = {**result.datasets, dataset: {**result.datasets[dataset], "accuracy": 1.0}}
    folder.write_trial(replace(record, results={"val": replace(result, datasets=datasets)}))


def change_block_stats(folder):
    block_stats_of(folder).write_bytes(block_stats_of(folder, "trial-0004").read_bytes())


def change_a_loss(folder):
    """Change block statistics, but not the accuracy, by which files of other records are known."""
    table = read_block_stats(folder.artifacts("trial-0003"), "val")
    changed = {key: replace(stats, nll=2 * stats.nll, residuals=0 * stats.residuals) for key, stats in table.items()}
    block_stats_of(folder).write_bytes(to_bytes(changed))


def damage_block_stats(folder):
    block_stats_of(folder).write_bytes(block_stats_of(folder).read_bytes()[:-1000])


def lose_block_stats(folder):
    block_stats_of(folder).unlink()


def move_artifacts_out(folder):
    path = folder.artifacts("trial-0003")
    path.rename(folder.path.parent / "elsewhere")
    path.symlink_to(folder.path.parent / "elsewhere")


def leave_images_out(folder):
    """Give a trial the samples and block statistics of fewer images."""
    table = World(160).block_stats(0.6, 0.2)
    write_block_stats(folder, "trial-0003", "val", table)
    write_objective_samples(folder.artifacts("trial-0003"), "val", {NO_MAP: table}, OBJECTIVES)
    record = folder.trial("trial-0003")
    datasets = {dataset: {"accuracy": accuracy} for (dataset, _), accuracy in accuracies_of(table).items()}
    folder.write_trial(replace(record, results={"val": replace(record.results["val"], datasets=datasets)}))


def lose_block_stats_of_the_front(folder):
    """Leave only trials whose samples come from files."""
    for name in ("trial-0002", "baseline-zero_shot"):
        block_stats_of(folder, name).unlink()


CHANGES = [
    change_nothing,
    change_record,
    change_block_stats,
    change_a_loss,
    damage_block_stats,
    lose_block_stats,
    move_artifacts_out,
    leave_images_out,
    lose_block_stats_of_the_front,
]


@pytest.mark.parametrize("objectives", [("accuracy", "ece"), ("ece", "nll/digits"), ("accuracy", "mce")], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_the_statistics_of_a_sweep_are_the_same_without_the_files(tmp_path, change, objectives):
    goals = tuple(Objective(metric=metric) for metric in objectives)
    folder = write_measured_sweep(tmp_path / "sweep", World(200), SIDES, objectives=goals)
    for record in folder.trials():
        values = [metric_of(record.results["val"], metric) or 0.0 for metric in objectives]  # none has MCE
        folder.write_trial(replace(record, values=values))
    write_files(folder, objectives)
    change(folder)
    require_same_without_files(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"version": VERSION + 1},
        {"split": "test"},
        {"seed": None},
        {"images": []},
        {"block_stats": {}},
        {"images": {"digits": {"count": 200, "correct": 100, "digest": "x"}}},
        {"images": {"digits": {"count": 0, "correct": 0, "digest": ""}}},
        {"images": {"digits": {"count": 200, "correct": float("nan"), "digest": ""}}},
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
    document["metrics"]["ece"][key] = number
    file_of(folder).write_text(json.dumps(document))
    assert not is_from_file(measure_rivals(folder))


@pytest.mark.parametrize("change", ["not finite", "one less", "not base64"])
def test_other_values_than_a_trial_writes_are_not_used(folder, change):
    document = json.loads(file_of(folder).read_text())
    numbers = document["metrics"]["ece"]
    values = values_of(numbers).copy()
    if change == "not finite":
        values[7] = np.nan
    if change == "one less":
        values = values[1:]
    numbers["values"] = base64.b64encode(values.tobytes()).decode()
    if change == "not base64":
        numbers["values"] = "-" + numbers["values"]
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
        rounded += [*values_of(numbers), numbers["calibrated_bias"], numbers["residual_bias"], numbers["blocks"]]
    text = " ".join(f"{number:.6g}" for number in rounded)
    assert (VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "fd67d69f7057201d")
