"""The embedded datasets, rendered on demand."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import PIL
from PIL import Image

from fpp_sweep.core.datasets.layout import Layout, Listing
from fpp_sweep.tiny.world import TINY_DATASETS


@dataclass(frozen=True, slots=True)
class Embedded(Layout):
    """A dataset of `fpp_sweep.tiny.world`, which has no files."""

    name: str

    def read(self, root: Path, split: str) -> Listing:
        world = TINY_DATASETS[self.name]
        indices = range(world.sizes[split])
        return Listing(
            classes=world.classes,
            ids=[f"{index:06d}" for index in indices],
            labels=[world.label(split, index) for index in indices],
            source=RenderedImages(self.name, split),
        )


@dataclass(frozen=True, slots=True)
class RenderedImages:
    """Images of an embedded dataset; a sample id is the number that the renderer draws an image from."""

    name: str
    split: str

    def image(self, sample_id: str) -> Image.Image:
        return Image.fromarray(TINY_DATASETS[self.name].render(self.split, int(sample_id)))

    def fingerprint(self, sample_id: str) -> str:
        return _renderer_version()


@cache
def _renderer_version() -> str:
    """Return a hash of the renderer's code and of Pillow's version."""
    digest = hashlib.sha256(PIL.__version__.encode())
    for file in sorted(resources.files("fpp_sweep.tiny").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
