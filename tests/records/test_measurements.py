"""Block statistics of records, resampled on the images that the records share."""

from dataclasses import replace

import numpy as np

from fpp_sweep.records.measurements import block_stats_file, measure, read_block_stats
from fpp_sweep.statistics.block_stats import to_bytes
from tests.kit.measured import World, write_measured_sweep


def test_records_are_measured_on_the_images_of_the_record_with_the_most_predictions(tmp_path):
    world = World(80)
    records = []
    for name, images, seeds in (("trial-0003", 80, (0,)), ("trial-0002", 50, (0, 1, 2))):
        folder = write_measured_sweep(tmp_path / "sweep", world, {name: (0.7, 0.1)}, limit=images, seeds=seeds)
        record = folder.trial(name)
        result = replace(record.results["val"], samples=images * len(world.datasets))
        records.append(replace(record, results={"val": result}))
    samples = measure(folder, records, "val", ["accuracy"]).samples
    assert list(samples.records) == ["trial-0002"]
    assert samples.images == {"digits": 50, "scenes": 50}


def test_a_file_is_read_again_once_its_folder_has_changed(tmp_path):
    for accuracy in (0.7, 0.5):
        folder = write_measured_sweep(tmp_path / "sweep", World(200, seed=1), {"trial-0002": (accuracy, 0.1)})
        samples = measure(folder, folder.trials(), "val", ["accuracy"]).samples
        measured = samples.metric("trial-0002", "accuracy")
        assert abs(measured.value - folder.trial("trial-0002").values[0]) < 1e-6


def test_statistics_after_a_map_are_of_the_same_datasets_and_seeds(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(80), {"trial-0002": (0.7, 0.1)}, seeds=(0, 1))
    table = dict(read_block_stats(folder.artifacts("trial-0002"), "val"))
    file = folder.artifacts("trial-0002") / "val" / block_stats_file("sals")
    file.write_bytes(to_bytes(table))
    measured = measure(folder, folder.trials(), "val", ["accuracy", "ece@sals"])
    assert {"accuracy", "ece@sals"} <= set(measured.samples.records["trial-0002"].metrics)
    del table["digits", 1]
    file.write_bytes(to_bytes(table))
    measured = measure(folder, folder.trials(), "val", ["accuracy", "ece@sals"])
    assert measured.samples.records == {}
    assert measured.notes == [
        "trial-0002: block statistics of split val are ignored: block_stats@sals.npz is of other images than "
        "block_stats.npz"
    ]


def test_a_file_without_images_is_ignored_with_a_note(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(80), {"trial-0002": (0.7, 0.1), "trial-0003": (0.6, 0.1)})
    file = folder.artifacts("trial-0002") / "val" / block_stats_file("")
    arrays = dict(np.load(file))
    np.savez_compressed(file, **(arrays | {"counts": np.zeros_like(arrays["counts"])}))
    measured = measure(folder, folder.trials(), "val", ["accuracy"])
    assert set(measured.samples.records) == {"trial-0003"}
    assert measured.notes == [
        "trial-0002: block statistics of split val are ignored: not a file of block statistics: "
        "a block has no image, or more than its size"
    ]
