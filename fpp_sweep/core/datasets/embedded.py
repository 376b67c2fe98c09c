"""The embedded datasets, drawn on demand. Their renderer is imported then: it loads scikit-learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import PIL
from PIL import Image

from fpp_sweep.core.datasets.layout import Layout, Listing


@dataclass(frozen=True, slots=True)
class Embedded(Layout):
    """A dataset of `fpp_sweep.tiny.world`."""

    name: str

    def read(self, root: Path, split: str) -> Listing:
        from fpp_sweep.tiny.world import TINY_DATASETS

        world = TINY_DATASETS[self.name]
        indices = range(world.sizes[split])
        ids, labels = [f"{index:06d}" for index in indices], [world.label(split, index) for index in indices]
        return Listing(classes=world.classes, ids=ids, labels=labels, source=Drawings(self.name, split))


@dataclass(frozen=True, slots=True)
class Drawings:
    """Draws samples on demand."""

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
