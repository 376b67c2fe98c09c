"""A dataset as the rest of the core sees it: class names, labels, and a source of images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fpp_sweep.spec.config import EMBEDDED_LIMIT

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
    file_positions: NDArray[np.int64] | None = None  # positions in the split file or folder; None: 0, 1, ...

    def __len__(self) -> int:
        return len(self.ids)

    def head(self, count: int | None) -> Dataset:
        """Return the first `count` samples, which are the same for every trial; None means all."""
        if count is None or count >= len(self):
            return self
        file_positions = self.file_positions
        if file_positions is not None:
            file_positions = file_positions[:count]
        return replace(self, ids=self.ids[:count], labels=self.labels[:count], file_positions=file_positions)

    def limited(self, count: int | None) -> Dataset:
        """Return the first `count` samples; for None or 0 all, or the default number of an embedded dataset."""
        if count:
            return self.head(count)
        if self.group == "tiny":
            return self.head(EMBEDDED_LIMIT)
        return self

    def fingerprint(self, sample_id: str) -> str:
        """Return the image's fingerprint; for a file that cannot be read, the reason."""
        try:
            return self.source.fingerprint(sample_id)
        except BadImageError as error:  # reported and counted when the image is read
            return f"unreadable: {error}"

    def digest(self) -> str:
        """Return a hash of the dataset's name, split, sample ids and fingerprints of images."""
        lines = [self.name, self.split]
        for sample_id in self.ids:
            lines.append(f"{sample_id} {self.fingerprint(sample_id)}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fair_order(dataset: str, ids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the positions of samples sorted by a hash of their ids, and the first 8 bytes of the sorted hashes.

    This order is fair to all classes and the same on every machine.
    """
    hashes = [hashlib.sha256(f"{dataset}/{sample_id}".encode()).digest() for sample_id in ids]
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    beginnings = [int.from_bytes(hashes[position][:8], "big") for position in order]
    return np.array(order, np.int64), np.array(beginnings, np.uint64)
