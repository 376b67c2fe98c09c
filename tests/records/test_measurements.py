"""Block statistics of records, resampled on the images that the records share."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.records.measurements import block_stats_file, chosen_by, is_deterministic, measure, read_block_stats
from fpp_sweep.report.writing import write_results
from fpp_sweep.statistics.block_stats import to_bytes
from fpp_sweep.statistics.paired import SplitStatistics
from tests.kit.measured import World, split_samples, write_block_stats, write_measured_sweep
from tests.kit.records import sweep_info, trial


@pytest.mark.parametrize(
    ("images_by_trial", "measured", "images"),
    [
        ({"trial-0002": 80, "trial-0003": 50, "trial-0004": 50}, ["trial-0003", "trial-0004"], 50),
        ({"trial-0002": 50, "trial-0003": 80}, ["trial-0003"], 80),
    ],
    ids=["most records", "a tie"],
)
def test_records_are_measured_on_the_images_of_most_records(tmp_path, images_by_trial, measured, images):
    """A record with another image, such as one that the others could not read, does not decide for all."""
    world = World(80)
    for name, limit in images_by_trial.items():
        folder = write_measured_sweep(tmp_path / "sweep", world, {name: (0.7, 0.1)}, limit=limit)
    measurements = measure(folder, folder.trials(), "val", ["accuracy"])
    assert list(measurements.records) == measured
    assert measurements.images == {"digits": images, "scenes": images}
    assert measurements.notes == ["split val: no intervals of trial-0002, measured on other images than most records"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"prompt": "a photo of a", "method": "tpt"}, True),
        ({"prompt": "fpp", "method": "tpt"}, False),
        ({"prompt": "a photo of a", "method": "tda", "adapt.order": "shuffled"}, False),
        ({"prompt": "a photo of a", "method": "tda", "adapt.order": "fair"}, True),
        ({"prompt": "a photo of a", "method": "tpt", "adapt.order": "shuffled"}, True),
    ],
)
def test_a_record_of_one_seed_is_certain_if_the_seed_draws_nothing(settings, expected):
    record = trial(2)
    assert is_deterministic(replace(record, config=record.config | settings), [0]) == expected
    assert not is_deterministic(replace(record, config=record.config | settings), [0, 1])
    assert not is_deterministic(replace(record, config={"method": "import"}, origin="imported"), [0])


def test_statistics_after_a_map_are_of_the_same_datasets_and_seeds(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(80), {"trial-0002": (0.7, 0.1)}, seeds=(0, 1))
    table = dict(read_block_stats(folder.artifacts("trial-0002"), "val"))
    file = folder.artifacts("trial-0002") / "val" / block_stats_file("isotonic")
    file.write_bytes(to_bytes(table))
    measured = measure(folder, folder.trials(), "val", ["accuracy", "ece@isotonic"])
    assert {"accuracy", "ece@isotonic"} <= set(measured.records["trial-0002"].metrics)
    del table["digits", 1]
    file.write_bytes(to_bytes(table))
    measured = measure(folder, folder.trials(), "val", ["accuracy", "ece@isotonic"])
    assert measured.records == {}
    assert measured.notes == [
        "trial-0002: block statistics of split val are ignored: block_stats@isotonic.npz is of other images than "
        "block_stats.npz"
    ]


@pytest.mark.parametrize("damage", ["another image", "no dataset"])
def test_a_record_whose_seeds_have_different_images_is_ignored_with_a_note(tmp_path, damage):
    """One seed could not read an image that the other has seen, or has no result of a dataset."""
    folder = write_measured_sweep(
        tmp_path / "sweep", World(80), {"trial-0002": (0.7, 0.1), "trial-0003": (0.6, 0.1)}, seeds=(0, 1)
    )
    table = dict(read_block_stats(folder.artifacts("trial-0002"), "val"))
    stats = table.pop(("digits", 1))
    if damage == "another image":
        table["digits", 1] = replace(stats, digests=np.append(stats.digests[:-1], stats.digests[-1] ^ 1))
    write_block_stats(folder, "trial-0002", "val", table)
    measured = measure(folder, folder.trials(), "val", ["accuracy"])
    assert set(measured.records) == {"trial-0003"}
    assert measured.notes == ["trial-0002: block statistics of split val are ignored: its seeds have different images"]


def test_the_results_have_the_intervals_of_metrics_that_only_some_records_have(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(400), {"trial-0002": (0.7, 0.2), "trial-0003": (0.6, 0.1)})
    record = folder.trial("trial-0003")
    result = record.results["val"]
    accuracy_only = replace(result, average={"accuracy": result.average["accuracy"]})
    folder.write_trial(replace(record, results={"val": accuracy_only}))
    first, second = json.loads(write_results(folder).read_text())["trials"]
    assert {"low", "high"} <= first["intervals"]["ece"].keys()
    assert "ece" not in second["intervals"]


# ------------------------------------------------------------ luck of the search

INFO = sweep_info()  # searches val with seed 0
TRIAL = replace(trial(1, 60.0, 5.0), config={"prompt": "fpp"})


def statistics_of(seeds, digest):
    samples = split_samples({TRIAL.name: {"accuracy": [60.0] * len(seeds)}})
    record = replace(samples.records[TRIAL.name], seeds=seeds)
    return SplitStatistics(replace(samples, records={TRIAL.name: record}, digests={"dtd": digest}))


@pytest.mark.parametrize(
    ("split", "digest", "luck"), [("val", b"a", "images"), ("test", b"a", "images"), ("test", b"b", "")]
)
def test_images_of_the_search_chose_its_trials_under_any_name_of_the_split(split, digest, luck):
    splits = {"val": statistics_of((0,), b"a"), split: statistics_of((1,), digest)}
    assert chosen_by(INFO, splits, split, TRIAL) == luck


def test_images_of_a_split_without_statistics_are_not_known_to_be_of_the_search():
    assert chosen_by(INFO, {"val": statistics_of((0,), b"a")}, "test", TRIAL) == ""


@pytest.mark.parametrize(("seeds", "luck"), [((0, 1, 2), "seeds"), ((4, 5, 6), "")])
def test_prompts_of_the_seeds_of_the_search_chose_a_trial(seeds, luck):
    splits = {"val": statistics_of((0,), b"a"), "test": statistics_of(seeds, b"b")}
    assert chosen_by(INFO, splits, "test", TRIAL) == luck
    words = replace(TRIAL, config={"prompt": "a photo of a"})  # its seeds draw views only
    assert chosen_by(INFO, splits, "test", words) == ""


def test_without_statistics_of_the_search_its_planned_seeds_count():
    assert chosen_by(INFO, {"test": statistics_of((0, 1), b"b")}, "test", TRIAL) == "seeds"
