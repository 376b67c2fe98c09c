"""Seven evaluation datasets, drawn on demand; only the digits are scans of real handwriting.

Their pictures have stronger and other shifts than training pictures, show colour-shape pairs that training never
showed, or are no drawings at all. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fpp_sweep.errors import InputError
from fpp_sweep.tiny.drawing import CANVAS, Picture, blend, choose, generator, to_pixels
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
from fpp_sweep.tiny.shifts import shifted
from fpp_sweep.tiny.textures import PLAIN

SPLITS = ("train", "val", "test")
PROCEDURAL_SIZES = {"train": 1000, "val": 1000, "test": 2000}
DIGIT_SIZES = {"train": 400, "val": 397, "test": 1000}  # all 1,797 of them
COMPOSITIONS = 60  # of the 77 held-out pairs

# Paints a picture of a class.
Painter: TypeAlias = Callable[[str, np.random.Generator], Picture]


class Source(Protocol):
    """Where the labels and pictures of a dataset come from."""

    def labels(self, split: str) -> NDArray[np.int64]: ...

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyDataset:
    """A labelled set of pictures; picture and label depend on (name, split, index) alone."""

    name: str
    classes: tuple[str, ...]
    flip: bool  # whether views may be mirrored; a mirrored glyph is another glyph
    sizes: Mapping[str, int]
    source: Source

    def label(self, split: str, index: int) -> int:
        """Position in `classes` of what picture `index` of `split` shows."""
        self._check(split, index)
        return int(self.source.labels(split)[index])

    def render(self, split: str, index: int) -> NDArray[np.uint8]:
        """Picture `index` of `split`: (64, 64, 3)."""
        self._check(split, index)
        rng = generator("world", self.name, split, index)
        return to_pixels(self.source.picture(split, index, rng))

    def _check(self, split: str, index: int) -> None:
        if split not in self.sizes:
            raise ValueError(f"{self.name}: split must be one of {SPLITS}, got {split!r}")
        if not 0 <= index < self.sizes[split]:
            size = self.sizes[split]
            raise ValueError(f"{self.name}: {split} index must be in 0..{size - 1}, got {index}")


@lru_cache(maxsize=64)
def balanced_labels(name: str, split: str, size: int, classes: int) -> NDArray[np.int64]:
    """As many of each class as `size` allows, in random order."""
    labels = generator("world", name, split, "labels").permutation(np.arange(size) % classes)
    labels.setflags(write=False)
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Pictures that are painted on demand, each under one of `shifts`."""

    name: str
    classes: tuple[str, ...]
    painter: Painter
    shifts: tuple[str, ...]
    severity: float

    def labels(self, split: str) -> NDArray[np.int64]:
        return balanced_labels(self.name, split, PROCEDURAL_SIZES[split], len(self.classes))

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        shown = self.classes[self.labels(split)[index]]
        return shifted(self.painter(shown, rng), self.shifts, self.severity, rng)


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


class Handwriting:
    """Real digits: 8 x 8 pixels, enlarged; dark on light or light on dark."""

    MARGIN = 10

    def labels(self, split: str) -> NDArray[np.int64]:
        _, labels, rows = handwriting()
        return labels[rows[split]]

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        ink, _, rows = handwriting()
        side = CANVAS - 2 * self.MARGIN
        small = Image.fromarray((ink[rows[split][index]] * 255).astype(np.uint8))
        large = small.resize((side, side), Image.Resampling.BICUBIC)
        mask = np.pad(np.asarray(large, np.float32) / 255, self.MARGIN)
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


def paint_textured(name: str, rng: np.random.Generator) -> Picture:
    return paint(Description(kind="texture", texture=name.removesuffix(" texture")), rng)


def paint_pair(name: str, rng: np.random.Generator) -> Picture:
    colour, _, shape = name.partition(" ")
    return paint(Description(kind="object", name=shape, colour=colour), rng)


def held_out_pairs() -> tuple[str, ...]:
    """COMPOSITIONS of the colour-shape pairs that training leaves out, in order of shape."""
    pairs = [f"{c} {s}" for s in SHAPE_NAMES for c in COLOUR_NAMES if is_held_out(s, c)]
    chosen = generator("world", "compositions", "classes").permutation(len(pairs))[:COMPOSITIONS]
    return tuple(pairs[index] for index in sorted(chosen))


def drawn(
    name: str,
    classes: tuple[str, ...],
    painter: Painter,
    shifts: tuple[str, ...],
    severity: float = 1.0,
    flip: bool = True,
) -> TinyDataset:
    source = Drawn(name=name, classes=classes, painter=painter, shifts=shifts, severity=severity)
    return TinyDataset(name=name, classes=classes, flip=flip, sizes=PROCEDURAL_SIZES, source=source)


TINY_DATASETS: dict[str, TinyDataset] = {
    dataset.name: dataset
    for dataset in (
        drawn(
            "scenes",
            SCENE_NAMES,
            lambda name, rng: paint(Description(kind="scene", name=name), rng),
            ("noise", "blur", "gray", "contrast", "cast", "dark", "fog", "occlusion", "sketch",
             "warp"),
        ),
        TinyDataset(
            name="digits", classes=NUMBER_NAMES, flip=False, sizes=DIGIT_SIZES, source=Handwriting()
        ),
        drawn(
            "letters",
            LETTER_NAMES,
            lambda name, rng: paint(Description(kind="glyph", name=name), rng),
            ("noise", "blur", "contrast", "cast", "dark", "fog", "occlusion", "sketch",
             "pixelation", "warp"),
            flip=False,
        ),
        drawn(
            "colours",
            tuple(f"{colour} thing" for colour in COLOUR_NAMES),
            paint_coloured,
            ("cast", "dark", "fog", "contrast", "noise", "blur"),
        ),
        drawn(
            "textures",
            tuple(f"{texture} texture" for texture in TEXTURE_NAMES),
            paint_textured,
            ("noise", "blur", "contrast", "fog", "occlusion", "warp", "pixelation"),
        ),
        drawn(
            "objects",
            SHAPE_NAMES,
            paint_shape,
            ("noise", "blur", "contrast", "cast", "dark", "fog", "occlusion", "sketch",
             "pixelation", "warp"),
        ),
        drawn(
            "compositions",
            held_out_pairs(),
            paint_pair,
            ("noise", "blur", "fog", "occlusion", "pixelation", "warp", "dark"),
        ),
    )
}  # fmt: skip
