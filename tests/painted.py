"""A dataset in memory for tests."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fpp_sweep.core.datasets import BadImageError, Dataset


@dataclass(frozen=True, slots=True)
class Painter:
    """Smooth noise, from the sample's name; picklable, so that worker processes can paint too."""

    size: tuple[int, int] = (24, 20)
    bad: frozenset[str] = frozenset()  # samples whose image cannot be read

    def image(self, sample_id: str) -> Image.Image:
        if sample_id in self.bad:
            raise BadImageError(f"/images/{sample_id}: not an image")
        rng = np.random.default_rng(zlib.crc32(sample_id.encode()))
        return Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize(self.size)

    def fingerprint(self, sample_id: str) -> str:
        return f"{self.size}"


def painted(count: int, *, augmix: bool = False, flip: bool = True, bad: frozenset[str] = frozenset()) -> Dataset:
    """Some painted images of three classes."""
    return Dataset(
        name="painted",
        split="test",
        group="custom",
        classes=("red", "green", "blue"),
        ids=tuple(f"{index}.png" for index in range(count)),
        labels=np.arange(count) % 3,
        source=Painter(bad=bad),
        augmix=augmix,
        flip=flip,
    )
