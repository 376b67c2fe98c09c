"""Splits in one JSON file beside the images, as CoOp made them for nine fine-grained datasets.

The file is `{"train": [[path, label, class name], ...], "val": [...], "test": [...]}`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fpp_sweep.core.datasets.base import SPLITS
from fpp_sweep.core.datasets.class_names import Renaming, as_words, rename
from fpp_sweep.core.datasets.images import FileImages
from fpp_sweep.core.datasets.layout import Layout, Listing
from fpp_sweep.core.datasets.paths import printable, read_text, require_images, sample_id
from fpp_sweep.spec.errors import InputError


class Entry(NamedTuple):
    """One image of a split file."""

    path: str
    label: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitJson(Layout):
    """An image folder and its split file, both relative to the data root unless absolute."""

    images: str
    split_file: str
    renaming: Renaming = ()

    def read(self, root: Path, split: str) -> Listing:
        path, images = root / self.split_file, root / self.images
        entries = read_split_file(path)
        if split not in entries:
            raise InputError(f"{path} has no {split!r} split, only {', '.join(entries) or 'nothing'}")
        classes = rename(_names_by_label(path, entries), self.renaming)
        ids = [entry.path for entry in entries[split]]
        for sample, count in Counter(ids).items():
            if count > 1:
                raise InputError(f"{path}: {split} lists {sample} twice")
        require_images(images, ids)
        labels = [entry.label for entry in entries[split]]
        return Listing(classes=classes, ids=ids, labels=labels, source=FileImages(images))


def read_split_file(path: Path) -> dict[str, list[Entry]]:
    """The checked entries of every split that the file has."""
    try:
        document = json.loads(read_text(path, "split file"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
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
                if not as_words(name):
                    raise InputError(f"{where}: the class name is empty")
                yield Entry(sample_id(image, where), label, printable(name, where))
            case _:
                raise InputError(f"{where} must be [path, label, class name], such as ['cat/1.jpg', 0, 'cat']")


def _names_by_label(path: Path, entries: dict[str, list[Entry]]) -> list[str]:
    """All splits together must name every label from 0 on, and each one once."""
    names: dict[int, str] = {}
    for rows in entries.values():
        for entry in rows:
            known = names.setdefault(entry.label, entry.name)
            if known != entry.name:
                raise InputError(f"{path}: label {entry.label} is both {known!r} and {entry.name!r}")
    if missing := [label for label in range(len(names)) if label not in names]:
        raise InputError(f"{path}: labels must run from 0 without a gap; no image has label {missing[0]}")
    return [names[label] for label in range(len(names))]
