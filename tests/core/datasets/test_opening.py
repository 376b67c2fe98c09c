"""From a name to a dataset: embedded ones, roots, splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.datasets.embedded import Drawings
from fpp_sweep.spec.errors import InputError
from fpp_sweep.tiny.world import TINY_DATASETS
from tests.builders import build_coop


@pytest.mark.parametrize("name", TINY_DATASETS)
def test_embedded_datasets_are_always_there(name: str) -> None:
    world = TINY_DATASETS[name]
    dataset = open_dataset(name, "val")
    assert (dataset.group, dataset.classes, dataset.flip) == ("tiny", world.classes, world.flip)
    assert sorted(dataset.ids) == [f"{n:06d}" for n in range(world.sizes["val"])]
    for sample, label in list(zip(dataset.ids, dataset.labels, strict=True))[:3]:
        assert label == world.label("val", int(sample))
        drawn = np.asarray(dataset.source.image(sample))
        assert np.array_equal(drawn, world.render("val", int(sample)))


def test_embedded_splits_show_different_pictures() -> None:
    pictures = [open_dataset("objects", split).source.image("000000") for split in ("val", "test")]
    assert pictures[0].tobytes() != pictures[1].tobytes()


def test_the_fingerprint_of_a_drawing_is_that_of_the_renderer() -> None:
    version = Drawings("digits", "test").fingerprint("000000")
    assert len(version) == 16
    assert Drawings("scenes", "val").fingerprint("000001") == version


def test_the_name_of_an_opened_dataset_is_ours_whatever_it_was_called(tmp_path: Path) -> None:
    build_coop(tmp_path, "flowers102")
    dataset = open_dataset("FLW", "test", tmp_path)
    assert dataset.name == "flowers102"
    assert dataset.ids == open_dataset("flowers102", "test", tmp_path).ids


def test_the_data_root_must_be_given_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pets: needs --data-root"):
        open_dataset("pets", "test")
    with pytest.raises(InputError, match=f"pets: data root {tmp_path}/none is not there"):
        open_dataset("pets", "test", tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        open_dataset("pets", "test", tmp_path / "file")


def test_names_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown split 'tset', did you mean 'test'"):
        open_dataset("digits", "tset")
    with pytest.raises(InputError, match="unknown dataset 'digit', did you mean 'digits'"):
        open_dataset("digit", "test")
    with pytest.raises(InputError, match="'tiny' means 5 datasets, expected one"):
        open_dataset("tiny", "test")


def test_the_digest_notices_another_image_of_another_size(tmp_path: Path) -> None:
    build_coop(tmp_path, "pets")
    dataset = open_dataset("pets", "test", tmp_path)
    before = dataset.digest()
    assert open_dataset("pets", "test", tmp_path).digest() == before
    image = tmp_path / "oxford_pets/images" / dataset.ids[0]
    image.write_bytes(image.read_bytes() + b"\0")
    assert dataset.digest() != before
