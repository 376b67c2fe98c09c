"""A user's own images, one folder for each class, with or without folders for the splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fpp_sweep.core.datasets.base import SPLITS
from fpp_sweep.core.datasets.class_names import Renaming, rename
from fpp_sweep.core.datasets.images import FileImages
from fpp_sweep.core.datasets.layout import Layout, Listing
from fpp_sweep.core.datasets.paths import folders_in, images_in, require_folder
from fpp_sweep.spec.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFolders(Layout):
    """`images/SPLIT/CLASS/...`, or `images/CLASS/...`, which `divide` then cuts into splits.

    A label is the rank of the class folder's name among those of all splits.
    """

    images: str
    split_folders: Mapping[str, str] = field(default_factory=dict)  # where they are not called train, val, test
    renaming: Renaming = ()

    def read(self, root: Path, split: str) -> Listing:
        images = root / self.images
        require_folder(images, "image folder")
        split_folders = self.split_folders or _find_split_folders(images)
        if split_folders:
            folders, classes = _in_split_folder(images, split_folders, split)
        else:
            classes = folders_in(images)
            folders = {name: name for name in classes}
        paths = [images_in(images, folders[name]) if name in folders else [] for name in classes]
        chosen = paths if split_folders else [divide(of_class)[split] for of_class in paths]
        return Listing.of_classes(rename(classes, self.renaming), chosen, FileImages(images))


def _find_split_folders(images: Path) -> dict[str, str]:
    """The splits if the folders are called like them; none if the folders are classes."""
    folders = folders_in(images)
    splits = {name: name for name in SPLITS if name in folders}
    others = [name for name in folders if name not in splits]
    if splits and others:
        raise InputError(
            f"{images} holds both {next(iter(splits))!r} and {others[0]!r}: splits or classes? "
            "Name the split folders in `splits`"
        )
    return splits


def _in_split_folder(images: Path, split_folders: Mapping[str, str], split: str) -> tuple[dict[str, str], list[str]]:
    """Class folders of this split below `images`, and the classes of all splits."""
    if split not in split_folders:
        raise InputError(f"{images} has no {split} split, only {', '.join(split_folders)}")
    require_folder(images / split_folders[split], f"{split} folder")
    in_split = {name: f"{split_folders[split]}/{name}" for name in folders_in(images / split_folders[split])}
    everywhere = {name for folder in split_folders.values() for name in folders_in(images / folder)}
    return in_split, sorted(everywhere)


def divide(images: list[str]) -> dict[str, list[str]]:
    """One class's images in CoOp's shares (test 30 %, val 20 %, train the rest), chosen by hash.

    >>> {split: len(part) for split, part in divide([f"cat/{n}.jpg" for n in range(10)]).items()}
    {'train': 5, 'val': 2, 'test': 3}
    """
    shuffled = shuffled_names(images)
    test = max(1, (3 * len(images) + 5) // 10)  # rounded; a class's only image goes to test
    val = (2 * len(images) + 5) // 10
    return {"train": shuffled[test + val :], "val": shuffled[test : test + val], "test": shuffled[:test]}


def shuffled_names(names: Iterable[str]) -> list[str]:
    """A random order that is the same everywhere."""
    return sorted(names, key=lambda name: hashlib.sha256(f"split/{name}".encode()).digest())
