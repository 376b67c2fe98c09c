"""A dataset as the rest of the core sees it: names, labels, and a way to get one image."""

from __future__ import annotations

import hashlib
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
    """Where images come from. Picklable, so that worker processes can hold it."""

    def image(self, sample_id: str) -> Image.Image:
        """The RGB image of a sample; raises BadImageError."""

    def fingerprint(self, sample_id: str) -> str:
        """Changes when the image does and is cheap: a file's size and time; a renderer's version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """One split, sorted by a hash of the samples' names, so that the first n samples are a random subset."""

    name: str
    split: str
    group: Group
    classes: tuple[str, ...]  # as prompts name them
    ids: tuple[str, ...]  # unique within the dataset; a path relative to its image folder
    labels: NDArray[np.int64]
    source: ImageSource
    augmix: bool  # whether the published protocol uses AugMix here
    flip: bool = True  # False where a mirror image is another class
    places: NDArray[np.int64] | None = None  # of the samples in the split file or folder listing; none: as here

    def __len__(self) -> int:
        return len(self.ids)

    def head(self, count: int | None) -> Dataset:
        """The first `count` samples; the same ones for every trial."""
        if count is None or count >= len(self):
            return self
        places = None if self.places is None else self.places[:count]
        return replace(self, ids=self.ids[:count], labels=self.labels[:count], places=places)

    def limited(self, count: int | None) -> Dataset:
        """The first `count` samples; without a count all, or an embedded dataset's default."""
        return self.head(count or (EMBEDDED_LIMIT if self.group == "tiny" else None))

    def fingerprint(self, sample: str) -> str:
        """The image's fingerprint; for a file that cannot be read, the reason."""
        try:
            return self.source.fingerprint(sample)
        except BadImageError as error:  # the reader of the image reports and counts it
            return f"unreadable: {error}"

    def digest(self) -> str:
        """A hash of dataset, split, sample names, and each image's fingerprint."""
        lines = (f"{sample} {self.fingerprint(sample)}" for sample in self.ids)
        return hashlib.sha256("\n".join([self.name, self.split, *lines]).encode()).hexdigest()
