"""Block statistics of records, resampled on the images that the records share."""

from dataclasses import replace

from fpp_sweep.records.measurements import measure
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
