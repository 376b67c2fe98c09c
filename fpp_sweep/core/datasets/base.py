"""A dataset as the rest of the core sees it: names, labels, and a way to get one image."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fpp_sweep.config import EMBEDDED_LIMIT

SPLITS = ("train", "val", "test")

Group = Literal["tiny", "fine_grained", "imagenet", "shifts", "custom"]


class BadImageError(Exception):
    """An image that cannot be read; the message is its path and the reason."""


class ImageSource(Protocol):
    """Where images come from. Picklable, so that worker processes can hold it."""

    def image(self, sample_id: str) -> Image.Image:
        """The RGB image of a sample; raises BadImageError."""

    def fingerprint(self, sample_id: str) -> str:
        """Something cheap that changes when the image does (a file's size and time; a renderer's version)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """One split, in fair order: samples are sorted by a hash of their names, so that every prefix is a fair sample."""

    name: str
    split: str
    group: Group
    classes: tuple[str, ...]  # as a prompt says them
    ids: tuple[str, ...]  # unique within the dataset; a path relative to its image folder
    labels: NDArray[np.int64]
    source: ImageSource
    augmix: bool  # whether the published protocol uses AugMix here
    flip: bool = True  # False where a mirror image is another class

    def __len__(self) -> int:
        return len(self.ids)

    def head(self, count: int | None) -> Dataset:
        """The first `count` samples; the same ones for every trial."""
        if count is None or count >= len(self):
            return self
        return replace(self, ids=self.ids[:count], labels=self.labels[:count])

    def limited(self, count: int | None) -> Dataset:
        """The first `count` samples; without one all, of an embedded dataset as many as are taken there."""
        return self.head(count or (EMBEDDED_LIMIT if self.group == "tiny" else None))

    def fingerprint(self, sample: str) -> str:
        """The image's fingerprint; of one that cannot be looked at, that it cannot."""
        try:
            return self.source.fingerprint(sample)
        except BadImageError as error:  # reading it will tell, and count it
            return f"unreadable: {error}"

    def digest(self) -> str:
        """Names what the images are: dataset, split, sample names, and each image's fingerprint."""
        lines = (f"{sample} {self.fingerprint(sample)}" for sample in self.ids)
        return hashlib.sha256("\n".join([self.name, self.split, *lines]).encode()).hexdigest()


def fair_order(dataset: str, ids: list[str]) -> list[int]:
    """Positions of the samples sorted by a hash of their names."""
    keys = [hashlib.sha256(f"{dataset}/{sample}".encode()).digest() for sample in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)
