"""Layouts in which a text file lists the images of a split: CoOp's JSON files and FGVC-Aircraft's lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fpp_sweep.core.datasets.dataset import SPLITS
from fpp_sweep.core.datasets.files import FileImages, as_sample_id, read_text, require_images, require_printable
from fpp_sweep.core.datasets.layout import Layout, Listing, Renaming, as_words, rename
from fpp_sweep.spec.errors import InputError, unknown


class Entry(NamedTuple):
    """One image of a JSON split file."""

    path: str
    label: int
    name: str  # name of the class


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitJson(Layout):
    """An image folder with a JSON split file, as CoOp made them for nine fine-grained datasets.

    The file is `{"train": [[path, label, class name], ...], "val": [...], "test": [...]}`. Both paths are relative to
    the data root unless absolute.
    """

    images: str
    split_file: str
    renaming: Renaming = ()

    def read(self, root: Path, split: str) -> Listing:
        path = root / self.split_file
        images = root / self.images
        entries = read_split_file(path)
        if split not in entries:
            raise InputError(f"{path} has no {split!r} split, only {', '.join(entries) or 'nothing'}")
        classes = rename(names_by_label(path, entries), self.renaming)
        ids = [entry.path for entry in entries[split]]
        _require_unique(ids, f"{path}: {split}")
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


def _require_unique(ids: list[str], where: str) -> None:
    for sample, count in Counter(ids).items():
        if count > 1:
            raise InputError(f"{where} lists {sample} twice")


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
    labels: dict[str, int] = {}
    for where, variant in _lines(path):
        if variant in labels:
            raise InputError(f"{where}: variant {variant!r} is listed twice")
        labels[variant] = len(labels)
    return labels


def read_variant_list(path: Path, variants: dict[str, int]) -> dict[str, int]:
    """Return the label of each sample of a split, from lines of an image's number and its variant."""
    labels: dict[str, int] = {}
    for where, line in _lines(path):
        image, _, variant = line.partition(" ")
        if variant not in variants:
            raise InputError(f"{where}: {unknown('variant', variant, variants)}")
        sample = as_sample_id(f"{image}.jpg", where)
        if sample in labels:
            raise InputError(f"{where}: image {image} is listed twice")
        labels[sample] = variants[variant]
    return labels


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not blank, after the file and number of the line."""
    for number, line in enumerate(read_text(path, "split file").splitlines(), start=1):
        text = line.strip()
        if text:
            where = f"{path}, line {number}"
            yield where, require_printable(text, where)
