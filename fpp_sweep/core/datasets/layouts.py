"""Layouts of files on disk: class folders, as a user or ImageNet has them, and lists of images with their labels."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, BeforeValidator, InstanceOf

from fpp_sweep.core.datasets.dataset import (
    COMPLETE,
    SPLITS,
    FileImages,
    Group,
    ImageSource,
    as_sample_id,
    folders_in,
    ignored_in,
    images_in,
    read_text,
    require_folder,
    require_images,
    require_printable,
)
from fpp_sweep.space import work
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.validation import as_mapping, at_key, checked, known_name, require, shown

Renaming: TypeAlias = Mapping[str, str]  # a user's own class names, by their names in files


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """One split as a layout lists it, in the order of its file or folders."""

    classes: tuple[str, ...]
    ids: Sequence[str]
    labels: Sequence[int]
    source: ImageSource

    @classmethod
    def by_class(
        cls, classes: tuple[str, ...], images_by_class: Iterable[Sequence[str]], source: ImageSource
    ) -> Listing:
        """List the images of one class after the other; within a class, sort them by name."""
        ids: list[str] = []
        labels: list[int] = []
        for label, images in enumerate(images_by_class):
            ids.extend(sorted(images))
            labels.extend([label] * len(images))
        return cls(classes=classes, ids=ids, labels=labels, source=source)


class Layout(ABC):
    """A convention by which files on disk say which images exist and what they show."""

    @property
    def possible_splits(self) -> tuple[str, ...]:
        """The splits that this layout can have; `read` finds out which exist."""
        return SPLITS

    @abstractmethod
    def read(self, root: Path, split: str) -> Listing:
        """List a split whose images all exist; raise InputError for what is missing."""

    def ignored_files(self, root: Path, split: str) -> Sequence[str]:
        """Return the files beside the images of a split that are not images by their suffix; a list names none."""
        return ()


@checked
class DatasetSpec:
    """The description of a dataset: a row of the catalogue, or an entry of a user's own file."""

    layout: InstanceOf[Layout]
    group: Group
    root: Path | None = None  # the folder that paths of the layout start at; none: the data root
    augmix: bool = True  # the published protocol uses AugMix here
    flip: bool = True  # False where a mirror image shows another class
    aliases: tuple[str, ...] = ()
    test_size: int | None = None  # as published


def as_words(name: str) -> str:
    """Replace underscores by spaces, as all released repositories do.

    >>> as_words("maine_coon")
    'maine coon'
    """
    return " ".join(name.replace("_", " ").split())


def rename(names: Sequence[str], renaming: Renaming) -> tuple[str, ...]:
    """Return class names by label: the user's where there is one, else those of the files.

    >>> rename(["n01", "maine_coon"], {"n01": "tench"})
    ('tench', 'maine coon')
    """
    for name in renaming:
        if name not in names:
            raise unknown("class in `classes`", name, names)
    return tuple(renaming.get(name, as_words(name)) for name in names)


def _as_text(value: Any, key: str) -> str:
    with at_key(key):
        require(isinstance(value, str) and value.strip(), f"must be text, in quotes if need be ({shown(value)})")
        return _printable(value)


def _printable(text: str) -> str:
    return require_printable(text, "text")


def _as_renaming(value: Any) -> Renaming:
    return {_printable(old): as_words(_as_text(new, old)) for old, new in as_mapping(value).items()}


def _as_split_folders(value: Any) -> dict[str, str]:
    folders = {}
    for split, folder in as_mapping(value).items():
        known_name("split", split, SPLITS)
        folders[split] = as_sample_id(_as_text(folder, split), f"split {split}")
    return folders


UserPath = Annotated[work.UserPath, AfterValidator(_printable)]
ClassNames = Annotated[Renaming, BeforeValidator(_as_renaming)]

VAL_PER_CLASS = 50  # ImageNet has no labelled second test set: as many training images as its validation set has


@checked
class ClassFolders(Layout):
    """`images/SPLIT/CLASS/...`, or `images/CLASS/...`, which `divide` cuts into splits.

    A label is the rank of the class folder's name among those of all splits.
    """

    images: UserPath
    # folders of splits that are not called train, val, test
    splits: Annotated[Mapping[str, str], BeforeValidator(_as_split_folders)] = field(default_factory=dict)
    classes: ClassNames = field(default_factory=dict)

    def read(self, root: Path, split: str) -> Listing:
        images = root / self.images
        require_folder(images, "image folder")
        split_folders = self._split_folders_in(images)
        if not split_folders:
            classes = folders_in(images)
            images_by_class = [divide(images_in(images, name))[split] for name in classes]
        elif split in split_folders:
            require_folder(images / split_folders[split], f"{split} folder")
            classes = _classes_in(images, split_folders.values())
            images_by_class = [images_in(images, f"{split_folders[split]}/{name}") for name in classes]
        else:
            splits = ", ".join(split_folders)
            problem = f"{images} has no {split} split, only {splits}"
            raise InputError(f"{problem}; add a folder of this name, or another split")
        return Listing.by_class(rename(classes, self.classes), images_by_class, FileImages(images))

    def ignored_files(self, root: Path, split: str) -> list[str]:
        images = root / self.images
        parent = self._split_folders_in(images).get(split, ".")
        ignored = []
        for name in folders_in(images / parent):
            ignored += ignored_in(images, f"{parent}/{name}")
        return ignored

    def _split_folders_in(self, images: Path) -> Mapping[str, str]:
        """Return the folders of splits, by split; none if the classes are in `images` itself."""
        return self.splits or _find_split_folders(images)

    def require_classes(self) -> None:
        """Raise InputError unless there are two classes or more, each with an image in some split."""
        images = Path(self.images)
        parents = list(self._split_folders_in(images).values()) or ["."]
        classes = _classes_in(images, parents)
        if len(classes) < 2:
            number = "one class folder" if classes else "no class folders"
            raise InputError(f"{images} has {number}, but needs two or more; sort the images into FOLDER/CLASS/")
        for name in classes:
            if not any(images_in(images, f"{parent}/{name}") for parent in parents):
                raise InputError(f"{images}: class {name!r} has no image; add some, or remove its folder")


def _find_split_folders(images: Path) -> dict[str, str]:
    """Return the folders that are called like splits; none if the folders are classes."""
    folders = folders_in(images)
    splits = {name: name for name in SPLITS if name in folders}
    classes = [name for name in folders if name not in splits]
    if splits and classes:
        split = next(iter(splits))
        raise InputError(
            f"{images} holds both {split!r} and {classes[0]!r}: splits or classes? Name the folders of splits in "
            f"`splits`, or rename a class to '{split}_', which prompts read as {split!r}"
        )
    return splits


def _classes_in(images: Path, parents: Iterable[str]) -> list[str]:
    """Return the names of class folders in some folders below `images`."""
    names: set[str] = set()
    for parent in parents:
        names.update(folders_in(images / parent))
    return sorted(names)


def divide(images: list[str]) -> dict[str, list[str]]:
    """Divide the images of a class by hash into CoOp's shares: test 30 %, val 20 %, train the rest.

    >>> {split: len(part) for split, part in divide([f"cat/{n}.jpg" for n in range(10)]).items()}
    {'train': 5, 'val': 2, 'test': 3}
    """
    shuffled = _shuffled(images)
    test = max(1, (3 * len(images) + 5) // 10)  # rounded; the only image of a class goes to test
    val = (2 * len(images) + 5) // 10
    return {"train": shuffled[test + val :], "val": shuffled[test : test + val], "test": shuffled[:test]}


def _shuffled(names: Iterable[str]) -> list[str]:
    """Return names in a random order that is the same on every machine."""
    return sorted(names, key=lambda name: hashlib.sha256(f"split/{name}".encode()).digest())


@dataclass(frozen=True, slots=True)
class ImageNetFolders(Layout):
    """Folders named by WordNet ids, or by ImageNet-V2's numbers.

    A label is the rank of the folder's name. A tree that lacks folders is refused: other repositories would number
    its classes in another way, and results could not be compared.
    """

    test: str
    classes: Callable[[], dict[str, str]]  # class name by folder, in the order of labels
    train: str | None = None

    @property
    def possible_splits(self) -> tuple[str, ...]:
        if self.train is None:
            return ("test",)
        return SPLITS

    def read(self, root: Path, split: str) -> Listing:
        folder = self.test
        if self.train is not None and split != "test":
            folder = self.train
        images = root / folder
        classes = self.classes()
        _require_class_folders(images, list(classes))
        images_by_class = []
        for class_folder in classes:
            images_of_split = _images_of_split(images_in(images, class_folder), split)
            if not images_of_split:
                raise InputError(f"{images / class_folder} holds no image; {COMPLETE}")
            images_by_class.append(images_of_split)
        return Listing.by_class(tuple(classes.values()), images_by_class, FileImages(images))


def _require_class_folders(images: Path, expected: list[str]) -> None:
    require_folder(images, "image folder", COMPLETE)
    present = folders_in(images)
    missing = sorted(set(expected) - set(present))
    if missing:
        count = len(expected) - len(missing)
        raise InputError(
            f"{images} holds {count} of the {len(expected)} class folders and lacks {_first_two(missing)}; {COMPLETE}"
        )
    extra = sorted(set(present) - set(expected))
    if extra:
        raise InputError(f"{images} holds folders that are not classes: {_first_two(extra)}; move them out")


def _first_two(names: list[str]) -> str:
    if len(names) > 2:
        return f"{names[0]}, {names[1]}, ..."
    return ", ".join(names)


def _images_of_split(images: list[str], split: str) -> list[str]:
    """Hold `val` out of the training images of a class; `test` is all that its folder holds."""
    if split == "test":
        return images
    shuffled = _shuffled(images)
    held_out = min(VAL_PER_CLASS, len(images) // 2)
    if split == "val":
        return shuffled[:held_out]
    return shuffled[held_out:]


class Entry(NamedTuple):
    """One image of a JSON split file."""

    path: str
    label: int
    name: str  # name of the class


@checked
class SplitJson(Layout):
    """An image folder with a JSON split file, as CoOp made them for nine fine-grained datasets.

    The file is `{"train": [[path, label, class name], ...], "val": [...], "test": [...]}`. Both paths are relative to
    the data root unless absolute.
    """

    images: UserPath
    split_file: UserPath
    classes: ClassNames = field(default_factory=dict)

    def read(self, root: Path, split: str) -> Listing:
        path = root / self.split_file
        images = root / self.images
        entries = read_split_file(path)
        if split not in entries:
            raise InputError(f"{path} has no {split!r} split, only {', '.join(entries) or 'nothing'}")
        classes = rename(names_by_label(path, entries), self.classes)
        ids = [entry.path for entry in entries[split]]
        for sample, count in Counter(ids).items():
            if count > 1:
                raise InputError(f"{path}: {split} lists {sample} twice")
        require_images(images, ids)
        labels = [entry.label for entry in entries[split]]
        return Listing(classes=classes, ids=ids, labels=labels, source=FileImages(images))


def read_split_file(path: Path) -> dict[str, list[Entry]]:
    """Return the checked entries of every split in a JSON split file."""
    text = read_text(path, "split file")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"split file {path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"split file {path} must hold an object with the keys {', '.join(SPLITS)}")
    return {split: list(_entries(path, split, document[split])) for split in SPLITS if split in document}


def _entries(path: Path, split: str, rows: Any) -> Iterator[Entry]:
    if not isinstance(rows, list):
        raise InputError(f"{path}: {split} must be a list of [path, label, class name]")
    for number, row in enumerate(rows):
        where = f"{path}: {split}[{number}]"
        match row:
            case [str(image), int(label), str(name)] if label >= 0 and not isinstance(label, bool):
                yield Entry(as_sample_id(image, where), label, require_printable(name, where))
            case _:
                raise InputError(f"{where} must be [path, label, class name], such as ['cat/1.jpg', 0, 'cat']")


def names_by_label(path: Path, entries: dict[str, list[Entry]]) -> list[str]:
    """Return class names by label; all splits together must name every label from 0 on, each with one name."""
    names: dict[int, str] = {}
    for rows in entries.values():
        for entry in rows:
            first_name = names.setdefault(entry.label, entry.name)
            if first_name != entry.name:
                raise InputError(f"{path}: label {entry.label} is both {first_name!r} and {entry.name!r}")
    for label in range(len(names)):
        if label not in names:
            raise InputError(f"{path}: labels must run from 0 without a gap; no image has label {label}")
    return [names[label] for label in range(len(names))]


@dataclass(frozen=True, slots=True)
class Aircraft(Layout):
    """FGVC-Aircraft as its authors distribute it.

    A label is a line of `variants.txt`, `images_variant_SPLIT.txt` has a variant for each image in `images/`.
    """

    folder: str

    def read(self, root: Path, split: str) -> Listing:
        folder = root / self.folder
        variants = read_variants(folder / "variants.txt")
        labels_by_id = read_variant_list(folder / f"images_variant_{split}.txt", variants)
        ids = list(labels_by_id)
        require_images(folder / "images", ids)
        return Listing(
            classes=tuple(as_words(variant) for variant in variants),
            ids=ids,
            labels=list(labels_by_id.values()),
            source=FileImages(folder / "images"),
        )


def read_variants(path: Path) -> dict[str, int]:
    """Return the label of each variant of aircraft, in the order of the file."""
    variants = [variant for _, variant in _lines(path)]
    for variant, count in Counter(variants).items():
        if count > 1:  # labels of later variants would shift
            raise InputError(f"{path}: {variant!r} is listed twice; take one out")
    return {variant: label for label, variant in enumerate(variants)}


def read_variant_list(path: Path, variants: dict[str, int]) -> dict[str, int]:
    """Return the label of each sample of a split, from lines of an image's number and its variant."""
    labels: dict[str, int] = {}
    for where, line in _lines(path):
        image, _, variant = line.partition(" ")
        if variant not in variants:
            raise InputError(f"{where}: {unknown('variant', variant, variants)}")
        labels[as_sample_id(f"{image}.jpg", where)] = variants[variant]
    return labels


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not blank, after the file and number of the line."""
    for number, line in enumerate(read_text(path, "split file").splitlines(), start=1):
        text = line.strip()
        if text:
            where = f"{path}, line {number}"
            yield where, require_printable(text, where)
