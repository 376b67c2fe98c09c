"""FGVC-Aircraft as its authors distribute it: names in one file, images in another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fpp_sweep.core.datasets.class_names import as_words
from fpp_sweep.core.datasets.images import FileImages
from fpp_sweep.core.datasets.layout import Layout, Listing
from fpp_sweep.core.datasets.paths import printable, read_text, require_images, sample_id
from fpp_sweep.spec.errors import InputError, unknown


@dataclass(frozen=True, slots=True)
class Aircraft(Layout):
    """`variants.txt` (a label is a line of it), `images_variant_SPLIT.txt` and `images/`."""

    folder: str

    def read(self, root: Path, split: str) -> Listing:
        folder = root / self.folder
        variants = _read_variants(folder / "variants.txt")
        labels_by_id = _read_split(folder / f"images_variant_{split}.txt", variants)
        ids, labels = list(labels_by_id), list(labels_by_id.values())
        require_images(folder / "images", ids)
        classes = tuple(map(as_words, variants))
        return Listing(classes=classes, ids=ids, labels=labels, source=FileImages(folder / "images"))


def _read_variants(path: Path) -> dict[str, int]:
    variants: dict[str, int] = {}
    for where, name in _lines(path):
        if name in variants:
            raise InputError(f"{where}: variant {name!r} is listed twice")
        variants[name] = len(variants)
    return variants


def _read_split(path: Path, variants: dict[str, int]) -> dict[str, int]:
    labels: dict[str, int] = {}
    for where, line in _lines(path):
        image, _, variant = line.partition(" ")
        if variant not in variants:
            raise InputError(f"{where}: {unknown('variant', variant, variants)}")
        sample = sample_id(f"{image}.jpg", where)
        if sample in labels:
            raise InputError(f"{where}: image {image} is listed twice")
        labels[sample] = variants[variant]
    return labels


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, and where it stands."""
    for number, line in enumerate(read_text(path, "split file").splitlines(), start=1):
        if text := line.strip():
            where = f"{path}, line {number}"
            yield where, printable(text, where)
