"""A user's own datasets, described in a YAML file or given as folders by path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fpp_sweep.core.datasets import custom_datasets, expand, folder_dataset, open_dataset, read_custom
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import build_folders, write_image


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def test_paths_are_relative_to_the_dataset_file_and_need_no_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_folders(tmp_path / "photos", ["test/cat", "test/big_dog"])
    write(tmp_path, "zoo: {layout: folders, images: photos, augmix: false, flip: false}")
    monkeypatch.chdir(tmp_path)
    custom = read_custom(Path("mine.yaml"))
    monkeypatch.chdir("/")
    dataset = open_dataset("zoo", "test", None, custom)
    assert (dataset.name, dataset.group) == ("zoo", "custom")
    assert (dataset.augmix, dataset.flip) == (False, False)
    assert dataset.classes == ("big dog", "cat")
    assert dataset.source.image(dataset.ids[0]).mode == "RGB"


def test_a_custom_dataset_may_have_a_split_file(tmp_path: Path) -> None:
    write_image(tmp_path / "data/photos/1.jpg")
    split = {"train": [["2.jpg", 1, "n02"]], "test": [["1.jpg", 0, "n01"]]}
    (tmp_path / "data/split.json").write_text(json.dumps(split))
    file = write(
        tmp_path,
        f"zoo: {{layout: split_json, images: {tmp_path}/data/photos,"
        " split_file: data/split.json, classes: {n01: great tench}}",
    )
    dataset = open_dataset("zoo", "test", None, read_custom(file))
    assert (dataset.ids, dataset.classes) == (("1.jpg",), ("great tench", "n02"))
    assert (dataset.augmix, dataset.flip) == (True, True)


@pytest.mark.parametrize("layout", ["folders", "split_json, split_file: split.json"])
def test_a_dataset_of_one_class_is_refused(tmp_path: Path, layout: str) -> None:
    build_folders(tmp_path / "photos", ["test/cat"])
    (tmp_path / "split.json").write_text(json.dumps({"test": [["test/cat/cat_0.JPEG", 0, "cat"]]}))
    file = write(tmp_path, f"zoo: {{layout: {layout}, images: photos}}")
    with pytest.raises(InputError, match=r"^zoo: has one class \('cat'\), but needs two or more; add another class$"):
        open_dataset("zoo", "test", None, read_custom(file))


def test_classes_can_be_renamed(tmp_path: Path) -> None:
    build_folders(tmp_path / "photos", ["test/n01", "test/n02"])
    file = write(tmp_path, "zoo: {layout: folders, images: photos, classes: {n02: hot_dog}}")
    assert open_dataset("zoo", "test", None, read_custom(file)).classes == ("n01", "hot dog")
    file = write(tmp_path, "zoo: {layout: folders, images: photos, classes: {n03: cat}}")
    with pytest.raises(InputError, match="zoo: unknown class in `classes` 'n03', did you mean 'n0"):
        open_dataset("zoo", "test", None, read_custom(file))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "mine.yaml:1: must map dataset names to their descriptions"),
        ("[zoo]", "mine.yaml:1: must map dataset names to their descriptions"),
        ("zoo: [", "mine.yaml:1: not valid YAML"),
        ("zoo: !!python/object/apply:os.system [echo]", "not valid YAML: tag !!python/object/apply:os.system is not"),
        ("zoo: {layout: folders}\nzoo: {layout: folders}", "mine.yaml:2: key 'zoo' comes twice"),
        ("zoo: {layout: folders, layout: folders}", "key 'zoo.layout' comes twice"),
        ("[" * 1000, "not valid YAML"),
        ("../zoo: {layout: folders}", "dataset name '../zoo' must be letters, digits"),
        ("Pets: {layout: folders}", "'Pets' is already the name of a dataset or group"),
        ("tiny: {layout: folders}", "'tiny' is already the name"),
        ("zoo:", "mine.yaml:1: zoo: must be a mapping"),
        ("zoo: {images: photos}", "zoo: needs the key 'layout'"),
        ("zoo: {layout: folder, images: x}", "zoo.layout: unknown layout 'folder', did you mean 'folders'"),
        ("zoo: {layout: [folders], images: x}", "zoo.layout: must be text"),
        ("zoo:\n  layout: folders\n  image: x", "mine.yaml:3: zoo.image: unknown key 'image', did you mean 'images'"),
        ("zoo: {layout: folders, images: x, 1: 2}", "zoo.1: unknown key '1'"),
        ("zoo: {layout: folders, images: x, split_file: y}", "unknown key 'split_file'"),
        ("zoo: {layout: folders}", "zoo: needs the key 'images'"),
        ("zoo: {layout: split_json, images: x}", "zoo: needs the key 'split_file'"),
        ("zoo: {layout: folders, images: 7}", r"zoo.images: must be text \(7\)"),
        ("zoo: {layout: folders, images: ''}", r"zoo.images: must be text \(''\)"),
        ('zoo: {layout: folders, images: "a\\0b"}', "zoo.images: .* has a control character"),
        ("zoo: {layout: folders, images: x, flip: maybe}", "zoo.flip: must be true or false"),
        ("zoo: {layout: folders, images: x, augmix: 1}", "zoo.augmix: must be true or false"),
        ("zoo: {layout: folders, images: x, classes: [cat]}", "zoo.classes: must be a mapping"),
        ("zoo: {layout: folders, images: x, classes: {a: 1}}", "zoo.classes.a: must be text"),
        ("zoo: {layout: folders, images: x, splits: {tets: a}}", "zoo.splits: unknown split 'tets', did you mean"),
        ("zoo: {layout: folders, images: x, splits: {test: ../a}}", "leaves the image folder"),
        ("zoo: &a {layout: folders, <<: *a}", r"alias \*a is not allowed here; write the value out"),
        ("zoo: {layout: folders, images: x, ? [a] : b}", "a key must be a word, not a sequence"),
    ],
)
def test_an_error_in_a_dataset_file_is_one_line_that_names_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InputError, match=complaint) as refusal:
        read_custom(file)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dataset file .*none\.yaml does not exist"):
        read_custom(tmp_path / "none.yaml")


WORDS = (  # separated by |
    "zoo: {layout: folders, images: x, |layout|folders|split_json|images|classes|splits|flip|test|yes|: |, |{|}|[|]|"
    "\n|  |- |&a |*a|!!set |!!binary |'|\"|<<: |? |0x|1e9|~|\t|>\n"
)
words = st.sampled_from(WORDS.split("|"))


def test_a_folder_given_by_path_opens_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_folders(tmp_path / "photos", ["cat", "big_dog"], count=10)
    monkeypatch.chdir(tmp_path)
    name, spec = folder_dataset("mine=photos")
    monkeypatch.chdir("/")
    dataset = open_dataset("mine", "test", None, {name: spec})
    assert (dataset.name, dataset.group, dataset.classes) == ("mine", "custom", ("big dog", "cat"))
    assert len(dataset) == 6


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("mine", "mine: no path; write NAME=PATH"),
        ("mine=", "mine=: no path; write NAME=PATH"),
        ("=photos", "=photos: dataset name '' must be letters"),
        ("a/b=photos", "dataset name 'a/b' must be letters"),
        ("pets=photos", "'pets' is already the name of a dataset"),
        ("mine=absent", "mine: image folder .*/absent is not there"),
        ("mine=file", "mine: image folder .*/file is not a folder"),
        ("mine=photos", "mine: .*/photos has no class folders, but needs two or more; sort the images into"),
        ("mine=flat", "mine: .*/flat has no class folders"),
        ("mine=one", "mine: .*/one has one class folder, but needs two or more"),
        ("mine=hollow", "mine: .*/hollow: class 'dog' has no image; add some, or remove its folder"),
        ("mine=split", "mine: .*/split: class 'dog' has no image"),
        ("mine=mixed", "mine: .*/mixed holds both 'test' and 'cat': splits or classes"),
    ],
)
def test_a_folder_that_cannot_be_a_dataset_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, complaint: str
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "file").touch()
    build_folders(tmp_path, ["flat", "one/cat", "hollow/cat", "split/test/cat", "mixed/test/cat", "mixed/cat"])
    (tmp_path / "hollow/dog").mkdir()
    (tmp_path / "split/train/dog").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=complaint) as refusal:
        folder_dataset(argument)
    assert "\n" not in str(refusal.value)


def test_folders_given_by_path_are_added_to_the_datasets_of_the_file(tmp_path: Path) -> None:
    for folder in ("zoo", "mine", "other"):
        build_folders(tmp_path / folder, ["cat", "dog"], count=10)
    file = write(tmp_path, "zoo: {layout: folders, images: zoo}")
    names = ["dtd", f"mine={tmp_path}/mine,other={tmp_path}/other", "custom"]
    custom = custom_datasets(names, str(file))
    assert list(custom) == ["zoo", "mine", "other"]
    assert expand(names, custom) == ["dtd", "mine", "other", "zoo"]
    assert custom_datasets(["dtd", "pets"], None) == {}


@pytest.mark.parametrize("name", ["zoo", "mine"])
def test_two_datasets_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    build_folders(tmp_path / "zoo", ["cat", "dog"])
    file = write(tmp_path, "zoo: {layout: folders, images: zoo}")
    names = [f"mine={tmp_path}/zoo", f"{name}={tmp_path}/zoo"]
    with pytest.raises(InputError, match=f"{name!r} is the name of another dataset as well; choose another name"):
        custom_datasets(names, str(file))
