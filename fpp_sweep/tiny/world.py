"""Seven evaluation datasets, drawn on demand; only the digits are scans of real handwriting.

Their pictures have stronger and other shifts than training pictures, show colour-shape pairs that training never
showed, or are no drawings at all. This module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fpp_sweep.spec.errors import InputError
from fpp_sweep.tiny.glyphs import LETTER_NAMES, NUMBER_NAMES
from fpp_sweep.tiny.pictures import (
    COLOUR_NAMES,
    SCENE_NAMES,
    SHAPE_NAMES,
    TEXTURE_NAMES,
    Description,
    is_held_out,
    paint,
)
from fpp_sweep.tiny.rendering import CANVAS, Picture, blend, choose, generator, to_pixels
from fpp_sweep.tiny.shifts import shifted
from fpp_sweep.tiny.textures import PLAIN

SPLITS = ("train", "val", "test")
DIGIT_SIZES = {"train": 400, "val": 397, "test": 1000}  # all 1,797 of them
MARGIN = 10  # around a digit, in pixels
COMPOSITIONS = 60  # of the 77 held-out pairs

OBJECT_SHIFTS = ("noise", "blur", "contrast", "cast", "dark", "fog", "occlusion", "sketch", "pixelation", "warp")

# paints a picture of a class
Painter: TypeAlias = Callable[[str, np.random.Generator], Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyDataset(ABC):
    """A labelled set of pictures; picture and label depend on (name, split, index) only."""

    name: str
    classes: tuple[str, ...]
    flip: bool = True  # whether views may be mirrored; a mirrored glyph is another glyph
    sizes: ClassVar[Mapping[str, int]]

    @abstractmethod
    def labels(self, split: str) -> NDArray[np.int64]: ...

    @abstractmethod
    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture: ...

    def label(self, split: str, index: int) -> int:
        """Position in `classes` of what picture `index` of `split` shows."""
        self._check(split, index)
        return int(self.labels(split)[index])

    def render(self, split: str, index: int) -> NDArray[np.uint8]:
        """Picture `index` of `split`: (64, 64, 3)."""
        self._check(split, index)
        return to_pixels(self.picture(split, index, generator("world", self.name, split, index)))

    def _check(self, split: str, index: int) -> None:
        if split not in SPLITS:
            raise ValueError(f"{self.name}: split must be one of {SPLITS}, got {split!r}")
        if not 0 <= index < self.sizes[split]:
            raise ValueError(f"{self.name}: {split} index must be in 0..{self.sizes[split] - 1}, got {index}")


@lru_cache(maxsize=64)
def balanced_labels(name: str, split: str, size: int, classes: int) -> NDArray[np.int64]:
    """As many of each class as `size` allows, in random order."""
    labels = generator("world", name, split, "labels").permutation(np.arange(size) % classes)
    labels.setflags(write=False)
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSamples(TinyDataset):
    """Pictures that are painted on demand, each under one of `shifts`."""

    painter: Painter
    shifts: tuple[str, ...]
    sizes: ClassVar[Mapping[str, int]] = {"train": 1000, "val": 1000, "test": 2000}

    def labels(self, split: str) -> NDArray[np.int64]:
        return balanced_labels(self.name, split, self.sizes[split], len(self.classes))

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        shown = self.classes[self.labels(split)[index]]
        return shifted(self.painter(shown, rng), self.shifts, 1.0, rng)


@lru_cache(maxsize=1)
def handwriting() -> tuple[NDArray[np.float64], NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """scikit-learn's digits: (1797, 8, 8) ink in 0..1, labels, and the rows of each split."""
    package = find_spec("sklearn")  # reads its file directly, because importing scikit-learn takes much longer
    if package is None or package.origin is None:
        raise InputError("the embedded digits are those of scikit-learn, which is not installed")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    order = generator("world", "digits", "splits").permutation(len(images))
    ends = np.cumsum([DIGIT_SIZES[split] for split in SPLITS])
    rows = dict(zip(SPLITS, np.split(order, ends[:-1]), strict=True))
    return images / 16, labels, rows


class Handwriting(TinyDataset):
    """Real digits: 8 x 8 pixels, enlarged; dark on light or light on dark."""

    sizes: ClassVar[Mapping[str, int]] = DIGIT_SIZES

    def labels(self, split: str) -> NDArray[np.int64]:
        _, labels, rows = handwriting()
        return labels[rows[split]]

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        ink, _, rows = handwriting()
        side = CANVAS - 2 * MARGIN
        small = Image.fromarray((ink[rows[split][index]] * 255).astype(np.uint8))
        large = small.resize((side, side), Image.Resampling.BICUBIC)
        mask = np.pad(np.asarray(large, np.float32) / 255, MARGIN)
        pen, paper = np.full(3, 20.0), np.full(3, 235.0)
        return blend(mask, pen, paper) if rng.random() < 0.5 else blend(mask, paper, pen)


def paint_shape(name: str, rng: np.random.Generator) -> Picture:
    """Any colour, more tilted than in training, more often textured or only outlined."""
    shown = Description(
        kind="object",
        name=name,
        colour=choose(COLOUR_NAMES, rng),
        texture=choose(TEXTURE_NAMES, rng) if rng.random() < 0.3 else PLAIN,
        outlined=bool(rng.random() < 0.3),
    )
    return paint(shown, rng, tilt=0.3)


def paint_coloured(name: str, rng: np.random.Generator) -> Picture:
    shown = Description(
        kind="object",
        name=choose(SHAPE_NAMES, rng),
        colour=name.removesuffix(" thing"),
        texture=choose(TEXTURE_NAMES, rng) if rng.random() < 0.25 else PLAIN,
    )
    return paint(shown, rng)


def paint_pair(name: str, rng: np.random.Generator) -> Picture:
    colour, _, shape = name.partition(" ")
    return paint(Description(kind="object", name=shape, colour=colour), rng)


def held_out_pairs() -> tuple[str, ...]:
    """COMPOSITIONS of the colour-shape pairs that training leaves out, in order of shape."""
    pairs = [f"{c} {s}" for s in SHAPE_NAMES for c in COLOUR_NAMES if is_held_out(s, c)]
    chosen = generator("world", "compositions", "classes").permutation(len(pairs))[:COMPOSITIONS]
    return tuple(pairs[index] for index in sorted(chosen))


TINY_DATASETS: dict[str, TinyDataset] = {
    dataset.name: dataset
    for dataset in (
        BootstrapSamples(
            name="scenes",
            classes=SCENE_NAMES,
            painter=lambda name, rng: paint(Description(kind="scene", name=name), rng),
            shifts=("noise", "blur", "gray", "contrast", "cast", "dark", "fog", "occlusion", "sketch", "warp"),
        ),
        Handwriting(name="digits", classes=NUMBER_NAMES, flip=False),
        BootstrapSamples(
            name="letters",
            classes=LETTER_NAMES,
            flip=False,
            painter=lambda name, rng: paint(Description(kind="glyph", name=name), rng),
            shifts=OBJECT_SHIFTS,
        ),
        BootstrapSamples(
            name="colours",
            classes=tuple(f"{colour} thing" for colour in COLOUR_NAMES),
            painter=paint_coloured,
            shifts=("cast", "dark", "fog", "contrast", "noise", "blur"),
        ),
        BootstrapSamples(
            name="textures",
            classes=tuple(f"{texture} texture" for texture in TEXTURE_NAMES),
            painter=lambda name, rng: paint(Description(kind="texture", texture=name.removesuffix(" texture")), rng),
            shifts=("noise", "blur", "contrast", "fog", "occlusion", "warp", "pixelation"),
        ),
        BootstrapSamples(name="objects", classes=SHAPE_NAMES, painter=paint_shape, shifts=OBJECT_SHIFTS),
        BootstrapSamples(
            name="compositions",
            classes=held_out_pairs(),
            painter=paint_pair,
            shifts=("noise", "blur", "fog", "occlusion", "pixelation", "warp", "dark"),
        ),
    )
}
