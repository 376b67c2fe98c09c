"""A dataset as the rest of the core sees it: class names, labels, and a source of images, such as files below a folder.

A path of a split file that leads out of the image folder is refused; links are followed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fpp_sweep.spec.config import EMBEDDED_LIMIT
from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.files import read_at_most

SPLITS = ("train", "val", "test")

Group = Literal["tiny", "fine_grained", "imagenet", "shifts", "custom"]


class BadImageError(Exception):
    """An image that cannot be read; the message is its path and the reason."""


class ImageSource(Protocol):
    """A source of images by sample id. It must be picklable: worker processes get a copy."""

    def image(self, sample_id: str) -> Image.Image:
        """Return the RGB image of a sample; raise BadImageError if it cannot be read."""

    def fingerprint(self, sample_id: str) -> str:
        """Return a cheap text that changes with the image: size and time of a file, or a renderer's version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """One split, sorted by a hash of the sample ids, so that the first n samples are a random subset."""

    name: str
    split: str
    group: Group
    classes: tuple[str, ...]  # names for prompts, by label
    ids: tuple[str, ...]  # unique within the dataset; of files the path below the image folder
    labels: NDArray[np.int64]
    source: ImageSource
    augmix: bool  # the published protocol uses AugMix here
    flip: bool = True  # False where a mirror image shows another class

    def __len__(self) -> int:
        return len(self.ids)

    def head(self, count: int | None) -> Dataset:
        """Return the first `count` samples, which are the same for every trial; None means all."""
        if count is None or count >= len(self):
            return self
        return replace(self, ids=self.ids[:count], labels=self.labels[:count])

    def limited(self, count: int | None) -> Dataset:
        """Return the first `count` samples; for None or 0 all, or the default number of an embedded dataset."""
        if count:
            return self.head(count)
        if self.group == "tiny":
            return self.head(EMBEDDED_LIMIT)
        return self

    def digest(self) -> str:
        """Return a hash of the dataset's name, split, sample ids and fingerprints of images."""
        lines = [self.name, self.split]
        for sample_id in self.ids:
            lines.append(f"{sample_id} {self.source.fingerprint(sample_id)}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fair_order(dataset: str, ids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the positions of samples sorted by a hash of their ids, and the first 8 bytes of the sorted hashes.

    This order is fair to all classes and the same on every machine.
    """
    hashes = [hashlib.sha256(f"{dataset}/{sample_id}".encode()).digest() for sample_id in ids]
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    beginnings = [int.from_bytes(hashes[position][:8], "big") for position in order]
    return np.array(order, np.int64), np.array(beginnings, np.uint64)


# the suffixes that torchvision's ImageFolder takes, and .gif and .jfif, which Pillow decodes as well
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".gif", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# the formats that Pillow decodes by itself: by default it would have Ghostscript run a .jpg that holds EPS
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

# Pillow's modes of images with more than 8 bits for a value, which it would cut off at 255
DEEP_MODES = ("I", "F")  # and I;16, I;16B and so on

COMPLETE = "complete the download"  # remedy for a dataset that lacks files
MAX_BYTES = 2**28  # limit for a split file; one of all of ImageNet, indented as CoOp's are, has 180 MB

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # control characters, line breaks, no UTF-8


@dataclass(frozen=True, slots=True)
class FileImages:
    """Images below a folder, read as ImageFolder reads them: RGB, EXIF orientation ignored."""

    folder: Path

    def image(self, sample_id: str) -> Image.Image:
        path = self.folder / sample_id
        try:
            with path.open("rb") as file:
                image = Image.open(file, formats=IMAGE_FORMATS)
                if image.mode.startswith(DEEP_MODES):
                    raise ValueError("a grayscale image of 16 bits or of floats; convert it to 8 bits")
                return image.convert("RGB")
        except Exception as error:  # Pillow's decoders raise nearly any exception on damaged bytes
            raise BadImageError(f"{path}: {_reason(path, error)}") from error

    def fingerprint(self, sample_id: str) -> str:
        path = self.folder / sample_id
        try:
            status = path.stat()
        except OSError as error:  # reported when the image is read
            return f"unreadable: {error.strerror}"
        return f"{status.st_size} {status.st_mtime_ns}"  # a replacement may have the same size


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        if path.stat().st_size == 0:
            return "the file is empty"
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return message_in_one_line(error)


def as_sample_id(path: str, where: str) -> str:
    """Turn a path from a split file into a sample id: relative, with forward slashes, without `..`.

    >>> as_sample_id("./cats//one.jpg", "split.json")
    'cats/one.jpg'
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]  # pathlib takes ten times as long
    if "\\" in path:
        raise InputError(f"{where}: image path {path!r} has a backslash; write forward slashes")
    if path.startswith("/") or ".." in parts:
        raise InputError(f"{where}: image path {path!r} leaves the image folder")
    if not parts:
        raise InputError(f"{where}: the image path is empty")
    return require_printable("/".join(parts), where)


def require_printable(text: str, where: str) -> str:
    """Return the text; raise InputError for characters that cannot be printed or encoded as UTF-8."""
    if _UNPRINTABLE.search(text):
        raise InputError(f"{where}: {text!r} has a control character or is not valid UTF-8")
    return text


def require_folder(folder: Path, what: str, remedy: str = "") -> None:
    """Raise InputError unless the path is a folder; the message names it by `what`, and ends with a remedy."""
    if remedy:
        remedy = f"; {remedy}"
    if os.path.isdir(folder):
        return
    if os.path.exists(folder):
        raise InputError(f"{what} {folder} is not a folder{remedy}")
    raise InputError(f"{what} {folder} is not there{remedy}")


def folders_in(folder: Path) -> list[str]:
    """Return the names of sub-folders, sorted by character as ImageFolder does; hidden ones are left out."""
    return sorted(name for name, is_folder in _entries(folder).items() if is_folder and not name.startswith("."))


def images_in(images: Path, folder: str) -> list[str]:
    """Return the images of a class folder and of the folders in it, sorted, as paths below `images`."""
    found = [f"{folder}/{name}" for name in _files_in(images / folder) if _is_image(name)]
    for name in folders_in(images / folder):
        found += images_in(images, f"{folder}/{name}")
    return sorted(require_printable(path, str(images)) for path in found)


def ignored_in(images: Path, folder: str) -> list[str]:
    """Return a class folder's files without an image suffix, as paths below `images`; hidden ones are left out."""
    names = [name for name in _files_in(images / folder) if not _is_image(name) and not name.startswith(".")]
    return [f"{folder}/{name}" for name in sorted(names)]


def require_images(images: Path, ids: Sequence[str]) -> None:
    """Raise InputError unless every sample is a file below `images`.

    Each folder is listed once: a stat for each image would take minutes on a network disk.
    """
    require_folder(images, "image folder", COMPLETE)
    names_by_folder: dict[str, list[str]] = {}
    for path in ids:
        folder, _, name = path.rpartition("/")
        names_by_folder.setdefault(folder, []).append(name)
    missing: list[str] = []
    for folder, names in names_by_folder.items():
        existing = _files_in(images / folder)
        for name in names:
            if name not in existing:
                missing.append(f"{folder}/{name}".lstrip("/"))
    if missing:
        examples = " and ".join(missing[:2])
        raise InputError(f"{len(missing)} of {len(ids)} images are not in {images}, such as {examples}; {COMPLETE}")


def read_text(path: Path, what: str, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file; raise InputError with the reason if it cannot be read."""
    try:
        return read_at_most(path, max_bytes).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} {path} is not there; add it, or correct its path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not UTF-8 text: byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}; give another file") from error


def _files_in(folder: Path) -> set[str]:
    """Return the names of a folder's files; none if the folder does not exist."""
    return {name for name, is_folder in _entries(folder).items() if not is_folder}


def _entries(folder: Path) -> dict[str, bool]:
    """Return the names in a folder, and for each whether it is a folder; only links cost a call of stat."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.is_dir() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputError(f"cannot list {folder}: {error.strerror}") from error


def _is_image(name: str) -> bool:
    """Return True for an image's suffix, except for hidden files of file managers (.DS_Store, ._cat.jpg)."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
