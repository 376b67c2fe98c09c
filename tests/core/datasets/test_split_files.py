"""Layouts with lists of the splits in text files: CoOp's JSON files and FGVC-Aircraft's lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fpp_sweep.core.datasets import fair_order, open_dataset
from fpp_sweep.core.datasets.layouts import SplitJson, read_split_file
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import AIRCRAFT, CLASSES, COOP, PARTS, build_aircraft, build_coop, write_image

LAYOUT = SplitJson(images="images", split_file="split.json")


def write_split(root: Path, document: Any, images: tuple[str, ...] = ()) -> None:
    """Write a split file with this content, and images with these paths."""
    (root / "images").mkdir(exist_ok=True)
    (root / "split.json").write_text(json.dumps(document))
    for image in images:
        write_image(root / "images" / image)


@pytest.mark.parametrize("name", COOP)
@pytest.mark.parametrize("split", PARTS)
def test_each_dataset_of_coop_opens_from_its_published_folders(tmp_path: Path, name: str, split: str) -> None:
    rows = json.loads(build_coop(tmp_path, name).read_text())[split]
    dataset = open_dataset(name, split, tmp_path)
    assert dataset.classes == ("maine coon", "zebra", "acorn")
    assert len(dataset) == len(CLASSES) * PARTS[split]
    assert dict(zip(dataset.ids, dataset.labels.tolist(), strict=True)) == {path: label for path, label, _ in rows}
    assert dataset.source.image(dataset.ids[0]).size == (12, 8)
    assert (dataset.group, dataset.augmix, dataset.flip) == ("fine_grained", True, True)


def test_the_order_of_samples_does_not_depend_on_the_order_of_the_split_file(tmp_path: Path) -> None:
    file = build_coop(tmp_path, "dtd")
    ids = open_dataset("dtd", "test", tmp_path).ids
    document = json.loads(file.read_text())
    document["test"].reverse()
    file.write_text(json.dumps(document))
    assert open_dataset("dtd", "test", tmp_path).ids == ids
    assert fair_order("dtd", ids)[0].tolist() == list(range(len(ids)))


def test_a_class_that_occurs_in_one_split_only_is_a_class_of_all_splits(tmp_path: Path) -> None:
    document = {"train": [["a.jpg", 1, "b"]], "test": [["c.jpg", 0, "a"]]}
    write_split(tmp_path, document, ("a.jpg", "c.jpg"))
    assert LAYOUT.read(tmp_path, "test").classes == ("a", "b")


def test_image_paths_are_normalised(tmp_path: Path) -> None:
    write_split(tmp_path, {"test": [["./cat//one.jpg", 0, "cat"]]}, ("cat/one.jpg",))
    assert LAYOUT.read(tmp_path, "test").ids == ["cat/one.jpg"]


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "must hold an object with the keys train, val, test"),
        ({}, "no 'test' split, only nothing"),
        ({"train": []}, "no 'test' split, only train"),
        ({"test": {}}, "test must be a list"),
        ({"test": ["a.jpg"]}, r"test\[0\] must be \[path, label, class name\]"),
        ({"test": [["a.jpg", 0]]}, r"test\[0\] must be"),
        ({"test": [["a.jpg", 0, "a"], ["b.jpg", "1", "b"]]}, r"test\[1\] must be"),
        ({"test": [["a.jpg", True, "a"]]}, r"test\[0\] must be"),
        ({"test": [["a.jpg", 0.0, "a"]]}, r"test\[0\] must be"),
        ({"test": [["a.jpg", -1, "a"]]}, r"test\[0\] must be"),
        ({"test": [[None, 0, "a"]]}, r"test\[0\] must be"),
        ({"test": [["a.jpg", 0, "a\nb"]]}, "control character"),
        ({"test": [["a\ud800.jpg", 0, "a"]]}, "not valid UTF-8"),
        ({"test": [["a.jpg", 0, "a"], ["b.jpg", 0, "b"]]}, "label 0 is both 'a' and 'b'"),
        ({"train": [["b.jpg", 0, "b"]], "test": [["a.jpg", 0, "a"]]}, "label 0 is both 'b' and 'a'"),
        ({"test": [["a.jpg", 1, "a"]]}, "no image has label 0"),
        ({"test": [["a.jpg", 0, "a"], ["b.jpg", 2, "b"]]}, "no image has label 1"),
        ({"test": [["a.jpg", 0, "a"], ["./a.jpg", 0, "a"]]}, "lists a.jpg twice"),
        ({"test": [["", 0, "a"]]}, "the image path is empty"),
        ({"test": [["/etc/passwd", 0, "a"]]}, "leaves the image folder"),
        ({"test": [["cat/../../a.jpg", 0, "a"]]}, "leaves the image folder"),
        ({"test": [["cat\\a.jpg", 0, "a"]]}, "has a backslash"),
        ({"test": [["x" * 300 + "/a.jpg", 0, "a"]]}, "cannot list .*: File name too long"),
    ],
)
def test_each_error_in_a_split_file_is_reported_in_one_line(tmp_path: Path, document: Any, complaint: str) -> None:
    write_split(tmp_path, document, ("a.jpg", "b.jpg"))
    with pytest.raises(InputError, match=complaint) as refusal:
        LAYOUT.read(tmp_path, "test")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not valid JSON"),
        (b'{"test": [', "not valid JSON"),
        (b"\xff\xfe\x00", "not UTF-8 text: byte 0"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"test": ' + b"9" * 5_000 + b"}", "not valid JSON"),
    ],
)
def test_invalid_json_is_reported_in_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "split.json").write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_split_file(tmp_path / "split.json")


def test_a_missing_split_file_is_named_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "eurosat/split_zhou_EuroSAT.json"
    with pytest.raises(InputError, match=f"^eurosat: split file {path} is not there"):
        open_dataset("SAT", "test", tmp_path)
    path.mkdir(parents=True)
    with pytest.raises(InputError, match=f"cannot read split file {path}: Is a directory; give another file"):
        open_dataset("SAT", "test", tmp_path)


def test_missing_images_are_counted_and_two_are_named(tmp_path: Path) -> None:
    build_coop(tmp_path, "caltech101")
    images = tmp_path / "caltech-101/101_ObjectCategories"
    for image in [*(images / "zebra").iterdir(), images / "acorn/image_0018.jpg"]:
        image.unlink()
    (images / "zebra").rmdir()
    complaint = "3 of 6 images are not in .*, such as zebra/image_0015.jpg and zebra/image_0016.jpg"
    with pytest.raises(InputError, match=complaint):
        open_dataset("caltech101", "test", tmp_path)


def test_a_missing_image_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text('{"test": [["a.jpg", 0, "a"]]}')
    with pytest.raises(InputError, match=f"image folder {tmp_path / 'images'} is not there"):
        LAYOUT.read(tmp_path, "test")


def test_an_empty_split_is_an_error(tmp_path: Path) -> None:
    build_coop(tmp_path, "dtd", parts={"train": 1, "val": 0, "test": 0})
    with pytest.raises(InputError, match="dtd: the val split is empty"):
        open_dataset("dtd", "val", tmp_path)


# --- split files with any content

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=5,
)
hostile_paths = st.sampled_from(
    ["a.jpg", "cat/b.jpg", "../a.jpg", "/a.jpg", "a.jpg/b.jpg", "a\0.jpg", "\udcff", ".", "", "~"]
) | st.text(st.characters(), max_size=8)
entries = st.tuples(hostile_paths, st.integers(-1, 3), st.sampled_from(["a", "b", "\n", ""]))
rows = entries.map(list) | st.lists(anything, min_size=3, max_size=3) | anything
split_lists = st.lists(rows, max_size=4) | st.lists(entries.map(list), max_size=4) | anything
documents = st.dictionaries(st.sampled_from(["train", "val", "test"]), split_lists) | anything


# --- FGVC-Aircraft


@pytest.mark.parametrize(("split", "count"), [("train", 12), ("val", 4), ("test", 8)])
def test_an_aircrafts_label_is_the_line_number_of_its_variant(tmp_path: Path, split: str, count: int) -> None:
    folder = build_aircraft(tmp_path)
    dataset = open_dataset("aircraft", split, tmp_path)
    assert dataset.classes == AIRCRAFT
    assert len(dataset) == count
    lines = (folder / f"images_variant_{split}.txt").read_text().splitlines()
    expected = {line[:7] + ".jpg": AIRCRAFT.index(line[8:]) for line in lines}
    assert dict(zip(dataset.ids, dataset.labels.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("images_variant_test.txt", "0034321 C-48", "line 9: unknown variant .* mean 'C-47'"),
        ("images_variant_test.txt", "0034321", "line 9: unknown variant ''"),
        ("images_variant_test.txt", "../x C-47", "leaves the image folder"),
        ("images_variant_test.txt", "7 C-47", "1 of 9 images are not in .*, such as 7.jpg"),
    ],
)
def test_an_error_in_an_aircraft_list_names_the_line(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    folder = build_aircraft(tmp_path)
    with (folder / file).open("a") as text:
        text.write(line + "\n")
    with pytest.raises(InputError, match=complaint):
        open_dataset("aircraft", "test", tmp_path)
