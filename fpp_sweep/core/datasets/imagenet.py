"""ImageNet and its shifts: a folder for each class, class names from data files of open_clip and timm."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from fpp_sweep.core.datasets.folders import shuffled_names
from fpp_sweep.core.datasets.images import FileImages
from fpp_sweep.core.datasets.layout import Layout, Listing
from fpp_sweep.core.datasets.paths import folders_in, images_in, require_folder
from fpp_sweep.spec.errors import InputError

VAL_PER_CLASS = 50  # ImageNet publishes no labelled second test set: as many training images as its val has


@dataclass(frozen=True, slots=True)
class ImageNetFolders(Layout):
    """Folders named by WordNet ids (or V2's numbers); `classes` maps folder to name, by label.

    A label is the rank of the folder's name. A tree that lacks folders is refused: other
    repositories would number its classes wrongly, and results could not be compared.
    """

    test: str
    classes: Callable[[], dict[str, str]]
    train: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "val", "test") if self.train else ("test",)

    def read(self, root: Path, split: str) -> Listing:
        images = root / (self.train if self.train and split != "test" else self.test)
        classes = self.classes()
        _require_folders(images, list(classes))
        chosen = {folder: _images_of_split(images_in(images, folder), split) for folder in classes}
        for folder, paths in chosen.items():
            if not paths:
                raise InputError(f"{images / folder} holds no image")
        return Listing.of_classes(tuple(classes.values()), chosen.values(), FileImages(images))


def _require_folders(images: Path, expected: list[str]) -> None:
    require_folder(images, "image folder")
    present = folders_in(images)
    if present == expected:
        return
    missing = sorted(set(expected) - set(present))
    if missing:
        there = len(expected) - len(missing)
        raise InputError(f"{images} holds {there} of the {len(expected)} class folders; missing: {_few(missing)}")
    raise InputError(f"{images} holds folders that are no class: {_few(sorted(set(present) - set(expected)))}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


def _images_of_split(images: list[str], split: str) -> list[str]:
    """`val` is held out of a class's training images; `test` is all that its folder holds."""
    if split == "test":
        return images
    shuffled = shuffled_names(images)
    held_out = min(VAL_PER_CLASS, len(images) // 2)
    return shuffled[:held_out] if split == "val" else shuffled[held_out:]


@cache
def imagenet_classes() -> dict[str, str]:
    """WordNet id -> the name that OpenAI's prompts use, by label."""
    return dict(zip(_timm_lines("imagenet_synsets"), _openai_names(), strict=True))


@cache
def imagenet_v2_classes() -> dict[str, str]:
    """V2's folders are ImageNet's labels in decimal, sorted as text: 0, 1, 10, 100, 101, ..."""
    names = _openai_names()
    return {folder: names[int(folder)] for folder in sorted(map(str, range(len(names))))}


def _subset(indices: str) -> dict[str, str]:
    classes = list(imagenet_classes().items())
    return dict(classes[int(index)] for index in _timm_lines(indices))


imagenet_a_classes = cache(partial(_subset, "imagenet_a_indices"))  # 200 classes each
imagenet_r_classes = cache(partial(_subset, "imagenet_r_indices"))


def _timm_lines(name: str) -> list[str]:
    return _installed("timm", f"data/_info/{name}.txt").read_text(encoding="utf-8").split()


@cache
def _openai_names() -> tuple[str, ...]:
    """open_clip's list, from its file loaded as a single module: importing the package takes seconds."""
    path = _installed("open_clip", "zero_shot_metadata.py")
    spec = importlib.util.spec_from_file_location("open_clip_zero_shot_metadata", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.IMAGENET_CLASSNAMES)


def _installed(package: str, path: str) -> Path:
    """A file inside an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(f"ImageNet's class names need the package {package}, which is not installed")
    return Path(spec.origin).parent / path
