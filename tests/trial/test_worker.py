"""What a worker says of its data, and what it computes; the results are test_trial.py's."""

import json

import pytest
import torch

from fpp_sweep.core.models.clip import Clip
from fpp_sweep.trial.results import WorkerSpec
from fpp_sweep.trial.worker import Worker
from tests.builders import jpeg, write_image
from tests.trial.made import evaluation

LISTING = [["1.jpg", 0, "cat"], ["2.jpg", 1, "dog"], ["3.jpg", 1, "dog"]]
SPLITS = {"train": LISTING, "val": LISTING, "test": [["1.jpg", 0, "cat"], ["2.jpg", 0, "cat"], ["3.jpg", 1, "dog"]]}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """On a dataset whose splits are the same images, with another label in one of them."""
    folder = tmp_path_factory.mktemp("data")
    for number in range(1, 4):
        write_image(folder / f"images/{number}.jpg", jpeg((60 * number, 0, 0)))
    (folder / "split.json").write_text(json.dumps(SPLITS))
    (folder / "mine.yaml").write_text("pets_of_mine: {layout: split_json, images: images, split_file: split.json}")
    threads = torch.get_num_threads()
    spec = WorkerSpec(model="tiny", dataset_file=str(folder / "mine.yaml"), cache=str(folder / "cache"), device="cpu")
    yield Worker(spec)
    torch.set_num_threads(threads)


def test_data_with_other_labels_are_other_data(worker):
    digests = {part: worker.describe(["pets_of_mine"], part)[0].digest for part in SPLITS}
    assert digests["train"] == digests["val"] != digests["test"]


def test_zero_shot_computes_one_view_of_each_image(worker, monkeypatch):
    computed = []
    image_features = Clip.image_features

    def counted(self, pixels, **how):
        computed.append(len(pixels))
        return image_features(self, pixels, **how)

    monkeypatch.setattr(Clip, "image_features", counted)
    settings = {"views.count": 4, "adapt.selection": 0.5}
    for seed, method in enumerate(["zero_shot", "tpt"]):  # another seed has views of its own
        worker.run(evaluation(dataset="pets_of_mine", split="test", seed=seed, stop=3, method=method, **settings))
    one, all_views = computed
    assert all_views == 4 * one
