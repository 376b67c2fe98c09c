"""Which images exist. No path of a split file, and no link, may lead out of the image folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import read_at_most

# torchvision's ImageFolder takes these
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

MOST_BYTES = 2**28  # of a split file: one of all of ImageNet, indented as CoOp's are, has 180 MB

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # control characters, line breaks, no UTF-8


def sample_id(path: str, where: str) -> str:
    """A path from a split file as a sample's name: relative, with forward slashes, without `..`.

    >>> sample_id("./cats//one.jpg", "split.json")
    'cats/one.jpg'
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]  # pathlib takes ten times as long
    if "\\" in path:
        raise InputError(f"{where}: image path {path!r} has a backslash; write forward slashes")
    if path.startswith("/") or ".." in parts:
        raise InputError(f"{where}: image path {path!r} leaves the image folder")
    if not parts:
        raise InputError(f"{where}: the image path is empty")
    return printable("/".join(parts), where)


def printable(text: str, where: str) -> str:
    """The text, unless it has characters that cannot be printed or encoded as UTF-8."""
    if _UNPRINTABLE.search(text):
        raise InputError(f"{where}: {text!r} has a control character or is not valid UTF-8")
    return text


def require_folder(folder: Path, what: str) -> None:
    if not os.path.isdir(folder):
        raise InputError(f"{what} {folder} is not {'a folder' if os.path.exists(folder) else 'there'}")


def files_in(folder: Path) -> dict[str, bool]:
    """Names of a folder's files, and whether each is a link; none if the folder is not there."""
    return {entry.name: entry.is_symlink() for entry in _entries(folder) if _is_file(entry)}


def folders_in(folder: Path) -> list[str]:
    """Names of the sub-folders, sorted by character as ImageFolder does; hidden ones left out."""
    return sorted(entry.name for entry in _entries(folder) if _is_folder(entry))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"cannot list {folder}: {error.strerror}") from error


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Calls stat for links only, and is False for a broken one."""
    return os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    is_folder = os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
    return is_folder and not entry.name.startswith(".")


def require_images(images: Path, ids: Sequence[str]) -> None:
    """Every sample is a file below `images`.

    Each folder is listed once: a stat for each image takes minutes on a network disk.
    """
    require_folder(images, "image folder")
    by_folder: dict[str, list[str]] = {}
    for sample in ids:
        folder, _, name = sample.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    missing: list[str] = []
    for folder, names in by_folder.items():
        present = files_in(images / folder)
        missing += (f"{folder}/{name}".lstrip("/") for name in names if name not in present)
        require_inside(images, folder, (name for name in names if present.get(name)))
    if missing:
        named = " and ".join(missing[:2])
        raise InputError(f"{len(missing)} of {len(ids)} images are not in {images}, such as {named}")


def require_inside(images: Path, folder: str, links: Iterable[str]) -> None:
    """Neither a folder nor a link in it leads out of `images`, which may itself be a link."""
    home = os.path.realpath(images)
    for path in (images / folder, *(images / folder / name for name in links)):
        target = os.path.realpath(path)
        if os.path.commonpath([home, target]) != home:
            raise InputError(f"{path} links to {target}, outside of the image folder {images}")


def images_in(images: Path, folder: str) -> list[str]:
    """The images that lie directly in a class folder, by name, as paths below `images`."""
    present = files_in(images / folder)
    names = sorted(name for name in present if _is_image(name))
    require_inside(images, folder, (name for name in names if present[name]))
    if deeper := folders_in(images / folder):
        raise InputError(f"{images / folder} is a class and may hold images only, not the folder {deeper[0]!r}")
    return [printable(f"{folder}/{name}", str(images)) for name in names]


def _is_image(name: str) -> bool:
    """By its suffix; hidden files are those of file managers (.DS_Store, ._cat.jpg)."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def read_text(path: Path, what: str, most: int = MOST_BYTES) -> str:
    """The text of a file; InputError says why it cannot be read."""
    try:
        return read_at_most(path, most).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} {path} is not there") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not UTF-8 text: byte {error.start}") from error
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from error
