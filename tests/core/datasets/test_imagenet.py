"""ImageNet and its shifts: complete sets of class folders, and class names from installed packages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fpp_sweep.core.datasets import Dataset, open_dataset
from fpp_sweep.core.datasets.catalogue import (
    imagenet_a_classes,
    imagenet_classes,
    imagenet_r_classes,
    imagenet_v2_classes,
)
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import build_folders, write_image

VAL = "imagenet/images/val"
TRAIN = "imagenet/images/train"
V2 = "imagenetv2/imagenetv2-matched-frequency-format-val"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data root with ImageNet and its shifts: all class folders, with one image in each."""
    root = tmp_path_factory.mktemp("data")
    wnids = list(imagenet_classes())
    build_folders(root / VAL, wnids, count=1)
    build_folders(root / "imagenet-sketch/images", wnids, count=1)
    build_folders(root / V2, map(str, range(1000)), count=1)
    build_folders(root / "imagenet-adversarial/imagenet-a", imagenet_a_classes(), count=1)
    build_folders(root / "imagenet-rendition/imagenet-r", imagenet_r_classes(), count=1)
    (root / "imagenet-adversarial/imagenet-a/README.txt").write_text("hello")
    return root


def names_by_folder(dataset: Dataset) -> dict[str, str]:
    """Return the class name of the images in each class folder."""
    folders = (sample.split("/")[0] for sample in dataset.ids)
    names = (dataset.classes[label] for label in dataset.labels)
    return dict(zip(folders, names, strict=True))


def test_class_names_equal_those_of_openais_notebook() -> None:
    classes = imagenet_classes()
    assert len(classes) == 1000
    assert classes["n01440764"] == "tench"
    assert classes["n01608432"] == "kite (bird of prey)"
    assert [*classes.values()].count("missile") == 2
    assert [*classes] == sorted(classes)


def test_imagenet_a_and_imagenet_r_have_their_200_published_classes() -> None:
    adversarial, rendition = imagenet_a_classes(), imagenet_r_classes()
    assert len(adversarial) == len(rendition) == 200
    # the first and last folders of both archives in the lists of their authors
    assert [*adversarial][:2] == ["n01498041", "n01531178"]
    assert [*adversarial][-1] == "n12267677"
    assert [*rendition][:2] == ["n01443537", "n01484850"]
    assert [*rendition][-1] == "n12267677"
    assert adversarial["n01498041"] == "stingray"
    assert rendition["n01443537"] == "goldfish"


@pytest.mark.parametrize(
    ("name", "classes"), [("imagenet", 1000), ("imagenet_a", 200), ("imagenet_r", 200), ("imagenet_sketch", 1000)]
)
def test_a_class_folder_gets_its_class_name_and_its_rank_as_label(root: Path, name: str, classes: int) -> None:
    dataset = open_dataset(name, "test", root)
    assert len(dataset.classes) == len(dataset) == classes
    assert names_by_folder(dataset).items() <= imagenet_classes().items()
    ranks = {folder: rank for rank, folder in enumerate(sorted(names_by_folder(dataset)))}
    assert [ranks[sample.split("/")[0]] for sample in dataset.ids] == dataset.labels.tolist()
    assert dataset.augmix == (name != "imagenet")


def test_v2_folders_sort_as_text_and_keep_their_names(root: Path) -> None:
    dataset = open_dataset("imagenet_v2", "test", root)
    openai = list(imagenet_classes().values())
    assert dataset.classes[:5] == (openai[0], openai[1], openai[10], openai[100], openai[101])
    assert names_by_folder(dataset) == {str(number): name for number, name in enumerate(openai)}
    assert list(imagenet_v2_classes())[:5] == ["0", "1", "10", "100", "101"]


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_v2", "imagenet_r", "imagenet_sketch"])
def test_the_shifts_have_only_a_test_split(root: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has only a test split, not 'val'"):
        open_dataset(name, "val", root)


def test_a_partial_tree_is_refused_with_a_count(tmp_path: Path) -> None:
    build_folders(tmp_path / VAL, list(imagenet_classes())[5:12], count=1)
    complaint = "holds 7 of the 1000 class folders and lacks n01440764, n01443537, ...; complete the download"
    with pytest.raises(InputError, match=complaint):
        open_dataset("imagenet", "test", tmp_path)


def test_images_that_are_not_sorted_into_class_folders_are_refused(tmp_path: Path) -> None:
    build_folders(tmp_path / "imagenet/images", ["val"])
    with pytest.raises(InputError, match="holds 0 of the 1000 class folders"):
        open_dataset("imagenet", "test", tmp_path)


def test_an_unknown_and_an_empty_class_folder_are_refused(root: Path) -> None:
    images = root / "imagenet-rendition/imagenet-r"
    unknown_folder = images / "n99999999"
    build_folders(images, [unknown_folder.name], count=1)
    try:
        with pytest.raises(InputError, match="holds folders that are not classes: n99999999"):
            open_dataset("imagenet_r", "test", root)
    finally:
        shutil.rmtree(unknown_folder)
    image = next((images / "n01443537").iterdir())
    content = image.read_bytes()
    image.unlink()
    try:
        with pytest.raises(InputError, match="n01443537 holds no image"):
            open_dataset("imagenet_r", "test", root)
    finally:
        write_image(image, content)


@pytest.mark.parametrize("split", ["train", "val"])
def test_without_the_train_folder_there_is_neither_train_nor_val(root: Path, split: str) -> None:
    with pytest.raises(InputError, match=f"imagenet: image folder {root / TRAIN} is not there"):
        open_dataset("imagenet", split, root)


def test_the_val_split_is_a_fixed_balanced_part_of_the_train_folder(tmp_path: Path) -> None:
    wnids = list(imagenet_classes())
    build_folders(tmp_path / TRAIN, wnids[1:], count=2)
    build_folders(tmp_path / TRAIN, wnids[:1], count=120)
    val = open_dataset("imagenet", "val", tmp_path)
    train = open_dataset("imagenet", "train", tmp_path)
    assert not set(val.ids) & set(train.ids)
    assert len(val) + len(train) == 999 * 2 + 120
    assert [(val.labels == label).sum() for label in range(3)] == [50, 1, 1]
    assert [(train.labels == label).sum() for label in range(3)] == [70, 1, 1]
    assert open_dataset("imagenet", "val", tmp_path).ids == val.ids
