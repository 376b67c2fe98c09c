"""Image files below a folder, and the text files that list them.

A path of a split file, or a link, that leads out of the image folder is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from fpp_sweep.core.datasets.dataset import BadImageError
from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.files import read_at_most

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
        except OSError as error:
            raise BadImageError(f"{path}: {error.strerror}") from error
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
    names = []
    for entry in _entries(folder):
        if _is_folder(entry) and not entry.name.startswith("."):
            names.append(entry.name)
    return sorted(names)


def images_in(images: Path, folder: str) -> list[str]:
    """Return the images that lie directly in a class folder, sorted by name, as paths below `images`."""
    _require_no_broken_link(images / folder)
    names = sorted(name for name in _files_in(images / folder) if _is_image(name))
    subfolders = folders_in(images / folder)
    if subfolders:
        raise InputError(
            f"{images / folder} is a class and may hold images only, not the folder {subfolders[0]!r}; move it out"
        )
    return [require_printable(f"{folder}/{name}", str(images)) for name in names]


def ignored_in(images: Path, folder: str) -> list[str]:
    """Return a class folder's files without an image suffix, as paths below `images`; hidden ones are left out."""
    names = [name for name in _files_in(images / folder) if not _is_image(name) and not name.startswith(".")]
    return [f"{folder}/{name}" for name in sorted(names)]


def _require_no_broken_link(folder: Path) -> None:
    """Raise InputError for an image that is a link to nothing; it would be left out without a word."""
    for entry in _entries(folder):
        if _is_image(entry.name) and entry.is_symlink() and not os.path.exists(entry.path):
            raise InputError(f"{entry.path} is a link to nothing; remove it, or restore its file")


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
    return {entry.name for entry in _entries(folder) if _is_file(entry)}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"cannot list {folder}: {error.strerror}") from error


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return True for a file or a link to one; only links cost a call of stat."""
    if entry.is_symlink():
        return os.path.isfile(entry.path)  # unlike entry.is_file(), no error for a link that leads to itself
    return entry.is_file()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink():
        return os.path.isdir(entry.path)
    return entry.is_dir()


def _is_image(name: str) -> bool:
    """Return True for an image's suffix, except for hidden files of file managers (.DS_Store, ._cat.jpg)."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
