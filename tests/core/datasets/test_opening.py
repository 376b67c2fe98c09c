"""Opening a dataset by its name: embedded datasets, data roots and splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.datasets.catalogue import RenderedImages
from fpp_sweep.spec.errors import InputError
from fpp_sweep.tiny.world import TINY_DATASETS
from tests.kit.datasets import build_coop


@pytest.mark.parametrize("name", TINY_DATASETS)
def test_an_embedded_dataset_opens_without_files(name: str) -> None:
    world = TINY_DATASETS[name]
    dataset = open_dataset(name, "val")
    assert (dataset.group, dataset.classes, dataset.flip) == ("tiny", world.classes, world.flip)
    assert sorted(dataset.ids) == [f"{n:06d}" for n in range(world.sizes["val"])]
    for sample, label in list(zip(dataset.ids, dataset.labels, strict=True))[:3]:
        assert label == world.labels("val")[int(sample)]
        rendered = np.asarray(dataset.source.image(sample))
        assert np.array_equal(rendered, world.render("val", int(sample)))


def test_the_fingerprint_of_a_rendered_image_is_the_renderers_version() -> None:
    version = RenderedImages("digits", "test").fingerprint("000000")
    assert len(version) == 16
    assert RenderedImages("scenes", "val").fingerprint("000001") == version


def test_an_alias_opens_a_dataset_under_its_main_name(tmp_path: Path) -> None:
    build_coop(tmp_path, "flowers102")
    dataset = open_dataset("FLW", "test", tmp_path)
    assert dataset.name == "flowers102"
    assert dataset.ids == open_dataset("flowers102", "test", tmp_path).ids


def test_a_missing_data_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pets: needs --data-root"):
        open_dataset("pets", "test")
    with pytest.raises(InputError, match=f"pets: data root {tmp_path}/none is not there"):
        open_dataset("pets", "test", tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        open_dataset("pets", "test", tmp_path / "file")


def test_an_unknown_split_or_dataset_and_a_group_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown split 'tset', did you mean 'test'"):
        open_dataset("digits", "tset")
    with pytest.raises(InputError, match="unknown dataset 'digit', did you mean 'digits'"):
        open_dataset("digit", "test")
    with pytest.raises(InputError, match="'tiny' means 3 datasets, expected one"):
        open_dataset("tiny", "test")


def test_the_digest_changes_with_the_size_of_an_image_file(tmp_path: Path) -> None:
    build_coop(tmp_path, "pets")
    dataset = open_dataset("pets", "test", tmp_path)
    before = dataset.digest()
    assert open_dataset("pets", "test", tmp_path).digest() == before
    image = tmp_path / "oxford_pets/images" / dataset.ids[0]
    image.write_bytes(image.read_bytes() + b"\0")
    assert dataset.digest() != before
