"""Layouts with one folder for each class: a user's own images, and ImageNet with its shifts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fpp_sweep.core.datasets.dataset import SPLITS
from fpp_sweep.core.datasets.files import COMPLETE, FileImages, folders_in, ignored_in, images_in, require_folder
from fpp_sweep.core.datasets.layout import Layout, Listing, Renaming, rename
from fpp_sweep.core.datasets.open_clip_lists import installed_file, openai_names
from fpp_sweep.spec.errors import InputError

VAL_PER_CLASS = 50  # ImageNet has no labelled second test set: as many training images as its validation set has


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFolders(Layout):
    """`images/SPLIT/CLASS/...`, or `images/CLASS/...`, which `divide` cuts into splits.

    A label is the rank of the class folder's name among those of all splits.
    """

    images: str
    split_folders: Mapping[str, str] = field(default_factory=dict)  # where they are not called train, val, test
    renaming: Renaming = ()

    def read(self, root: Path, split: str) -> Listing:
        images = root / self.images
        require_folder(images, "image folder")
        split_folders = self._split_folders_in(images)
        if split_folders:
            classes, images_by_class = _read_split_folder(images, split_folders, split)
        else:
            classes = folders_in(images)
            images_by_class = [divide(images_in(images, name))[split] for name in classes]
        if self.renaming and not isinstance(self.renaming, Mapping):
            _require_order_of_numbers(images, classes)
        return Listing.by_class(rename(classes, self.renaming), images_by_class, FileImages(images))

    def ignored_files(self, root: Path, split: str) -> list[str]:
        images = root / self.images
        parent = self._split_folders_in(images).get(split, ".")
        ignored = []
        for name in folders_in(images / parent):
            ignored += ignored_in(images, f"{parent}/{name}")
        return ignored

    def _split_folders_in(self, images: Path) -> Mapping[str, str]:
        """Return the folders of splits, by split; none if the classes are in `images` itself."""
        return self.split_folders or _find_split_folders(images)

    def require_classes(self) -> None:
        """Raise InputError unless there are two classes or more, each with an image in some split."""
        images = Path(self.images)
        parents = list(self._split_folders_in(images).values()) or ["."]
        count_by_class: dict[str, int] = {}
        for parent in parents:
            for name in folders_in(images / parent):
                count = len(images_in(images, f"{parent}/{name}"))
                count_by_class[name] = count_by_class.get(name, 0) + count
        if len(count_by_class) < 2:
            number = "one class folder" if count_by_class else "no class folders"
            raise InputError(f"{images} has {number}, but needs two or more; sort the images into FOLDER/CLASS/")
        empty = [name for name, count in count_by_class.items() if not count]
        if empty:
            raise InputError(f"{images}: class {empty[0]!r} has no image; add some, or remove its folder")


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


def _read_split_folder(images: Path, split_folders: Mapping[str, str], split: str) -> tuple[list[str], list[list[str]]]:
    """Return the class folders of all splits, and the images of this split in each of them."""
    if split not in split_folders:
        splits = ", ".join(split_folders)
        raise InputError(f"{images} has no {split} split, only {splits}; add a folder of this name, or another split")
    folder = split_folders[split]
    require_folder(images / folder, f"{split} folder")
    classes: set[str] = set()
    for other_folder in split_folders.values():
        classes.update(folders_in(images / other_folder))
    images_by_class: dict[str, list[str]] = {name: [] for name in sorted(classes)}
    for name in folders_in(images / folder):
        images_by_class[name] = images_in(images, f"{folder}/{name}")
    return list(images_by_class), list(images_by_class.values())


def _require_order_of_numbers(images: Path, classes: list[str]) -> None:
    """Raise InputError if the folders are numbers that sort differently as text: a list of names would be misread."""
    if not all(name.isdecimal() for name in classes):
        return
    for name, by_number in zip(classes, sorted(classes, key=int), strict=True):
        if name != by_number:
            raise InputError(
                f"{images}: class folder {name!r} sorts before {by_number!r}, as text does, so that a list in "
                f"`classes` may name the wrong classes; write a mapping, such as {{{name!r}: NAME}}"
            )


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
    def splits(self) -> tuple[str, ...]:
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


@cache
def imagenet_classes() -> dict[str, str]:
    """Return the name that OpenAI's prompts use for each WordNet id, in the order of labels."""
    return dict(zip(_timm_lines("imagenet_synsets"), openai_names(), strict=True))


@cache
def imagenet_v2_classes() -> dict[str, str]:
    """Return names by folder of ImageNet-V2: labels in decimal, sorted as text (0, 1, 10, 100, 101, ...)."""
    names = openai_names()
    folders = sorted(str(label) for label in range(len(names)))
    return {folder: names[int(folder)] for folder in folders}


@cache
def imagenet_a_classes() -> dict[str, str]:
    """Return the 200 classes of ImageNet-A."""
    return _subset("imagenet_a_indices")


@cache
def imagenet_r_classes() -> dict[str, str]:
    """Return the 200 classes of ImageNet-R."""
    return _subset("imagenet_r_indices")


def _subset(indices: str) -> dict[str, str]:
    classes = list(imagenet_classes().items())
    return dict(classes[int(index)] for index in _timm_lines(indices))


def _timm_lines(name: str) -> list[str]:
    return installed_file("timm", f"data/_info/{name}.txt").read_text(encoding="utf-8").split()
