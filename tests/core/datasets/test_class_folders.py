"""The layout of datasets with one folder for each class."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fpp_sweep.core.datasets.layouts import ClassFolders, divide
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import build_folders, write_image

LAYOUT = ClassFolders(images="images")


def test_split_folders_are_recognised_by_name(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["train/cat", "train/big_dog", "test/cat"])
    listing = LAYOUT.read(tmp_path, "test")
    assert listing.classes == ("big dog", "cat")
    assert listing.ids == ["test/cat/cat_0.JPEG", "test/cat/cat_1.JPEG"]
    assert listing.labels == [1, 1]


def test_a_divided_folder_is_listed_by_class_and_name(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["cat", "dog"], count=20)
    listing = LAYOUT.read(tmp_path, "test")
    assert list(listing.ids) == sorted(listing.ids)
    assert len(listing.ids) == 12


def test_split_folders_may_have_other_names(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["training_set/cat", "held/out/cat"])
    layout = ClassFolders(images="images", splits={"train": "training_set", "test": "held/out"})
    assert layout.read(tmp_path, "test").ids[0] == "held/out/cat/cat_0.JPEG"
    with pytest.raises(InputError, match="has no val split, only train, test"):
        layout.read(tmp_path, "val")
    with pytest.raises(InputError, match=r"test folder .*/gone is not there"):
        ClassFolders(images="images", splits={"test": "gone"}).read(tmp_path, "test")


def test_folders_of_splits_and_classes_side_by_side_are_refused(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["train/cat", "validation/cat"])
    with pytest.raises(InputError, match=r"both 'train' and 'validation'.*`splits`, or rename a class to 'train_'"):
        LAYOUT.read(tmp_path, "train")


def test_images_in_the_folders_of_a_class_belong_to_it(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["test/cat/persian", "test/cat", "test/dog"], count=1)
    cats = ["test/cat/cat_0.JPEG", "test/cat/persian/persian_0.JPEG"]
    assert LAYOUT.read(tmp_path, "test").ids == [*cats, "test/dog/dog_0.JPEG"]


def test_a_class_that_is_called_like_a_split_keeps_its_name_behind_an_underscore(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["train_", "bus"])
    assert LAYOUT.read(tmp_path, "test").classes == ("bus", "train")


def test_class_folders_without_splits_are_divided_in_the_same_way_on_every_machine(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["cat", "dog"], count=10)
    parts = {split: LAYOUT.read(tmp_path, split) for split in ("train", "val", "test")}
    assert {split: Counter(part.labels) for split, part in parts.items()} == {
        "train": {0: 5, 1: 5},
        "val": {0: 2, 1: 2},
        "test": {0: 3, 1: 3},
    }
    assert len(set().union(*(part.ids for part in parts.values()))) == 20
    # recorded, because every machine and every version must divide in the same way
    assert parts["test"].ids[:3] == ["cat/cat_5.JPEG", "cat/cat_6.JPEG", "cat/cat_8.JPEG"]


@settings(deadline=None)
@given(count=st.integers(0, 300))
def test_dividing_loses_no_image_and_gives_test_at_least_one(count: int) -> None:
    images = [f"cat/{number}.jpg" for number in range(count)]
    parts = divide(images)
    assert sorted(itertools.chain(*parts.values())) == sorted(images)
    assert len(parts["test"]) >= min(count, 1)
    assert abs(len(parts["test"]) - 0.3 * count) <= 0.7
    assert abs(len(parts["val"]) - 0.2 * count) <= 0.5
    assert divide(images[::-1]) == parts


@pytest.mark.parametrize("kind", ["GIF", "JFIF"])
def test_gif_and_jfif_files_are_images(tmp_path: Path, kind: str) -> None:
    images = build_folders(tmp_path / "images", ["test/cat"], count=1)
    file = images / f"test/cat/tom.{kind}"
    Image.new("RGB", (8, 8), (200, 80, 40)).save(file)
    listing = LAYOUT.read(tmp_path, "test")
    assert listing.ids == ["test/cat/cat_0.JPEG", f"test/cat/tom.{kind}"]
    assert listing.source.image(listing.ids[1]).mode == "RGB"


def test_hidden_files_and_files_without_an_image_suffix_are_ignored(tmp_path: Path) -> None:
    images = build_folders(tmp_path / "images", ["test/cat"], count=1)
    for name in ("notes.txt", "Thumbs.db", "._cat_0.JPEG", ".DS_Store"):
        write_image(images / "test/cat" / name)
    (images / "test/.cache").mkdir()
    listing = LAYOUT.read(tmp_path, "test")
    assert (listing.ids, listing.classes) == (["test/cat/cat_0.JPEG"], ("cat",))


def test_a_file_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    build_folders(tmp_path / "images", ["test/cat"])
    (tmp_path / "images/test/cat").joinpath("b\udcff.jpg").touch()
    with pytest.raises(InputError, match="not valid UTF-8"):
        LAYOUT.read(tmp_path, "test")


def test_a_missing_image_folder_and_a_file_with_its_name_give_different_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"image folder .*/images is not there"):
        LAYOUT.read(tmp_path, "test")
    (tmp_path / "images").touch()
    with pytest.raises(InputError, match=r"image folder .*/images is not a folder"):
        LAYOUT.read(tmp_path, "test")
