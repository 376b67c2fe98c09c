"""The embedded datasets: drawn on demand, always there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import ClassVar

import PIL
from PIL import Image

from fpp_sweep.core.datasets.base import SPLITS
from fpp_sweep.core.datasets.layout import Listing


@dataclass(frozen=True, slots=True)
class Embedded:
    """A dataset of `fpp_sweep.tiny.world`."""

    name: str
    below_root: ClassVar[bool] = False
    splits: ClassVar[tuple[str, ...]] = SPLITS

    def read(self, root: Path, split: str) -> Listing:
        from fpp_sweep.tiny.world import TINY_DATASETS

        world = TINY_DATASETS[self.name]
        indices = range(world.sizes[split])
        return Listing(
            classes=world.classes,
            ids=[f"{index:06d}" for index in indices],
            labels=[world.label(split, index) for index in indices],
            source=Drawings(self.name, split),
        )


@dataclass(frozen=True, slots=True)
class Drawings:
    """Draws a sample whenever it is asked for."""

    name: str
    split: str

    def image(self, sample_id: str) -> Image.Image:
        from fpp_sweep.tiny.world import TINY_DATASETS

        return Image.fromarray(TINY_DATASETS[self.name].render(self.split, int(sample_id)))

    def fingerprint(self, sample_id: str) -> str:
        return _renderer_version()


@cache
def _renderer_version() -> str:
    """A hash of the code that draws, and of the library that it draws with."""
    sources = (file for file in resources.files("fpp_sweep.tiny").iterdir() if file.name.endswith(".py"))
    digest = hashlib.sha256(PIL.__version__.encode())
    for file in sorted(sources, key=lambda file: file.name):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
