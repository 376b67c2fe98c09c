"""Five evaluation datasets, drawn on demand; only the digits are scans of real handwriting.

Their pictures differ from training pictures: they have stronger and other shifts, or are not drawings. This module does
not import torch.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from fpp_sweep.spec.errors import InputError
from fpp_sweep.tiny.rendering import (
    CANVAS,
    COLOUR_NAMES,
    PLAIN,
    TEXTURE_NAMES,
    Picture,
    X,
    Y,
    background,
    blend,
    choose,
    contrasting,
    generator,
    random_colour,
    shade,
    shrink,
    smooth_noise,
    texture_mask,
    to_pixels,
)
from fpp_sweep.tiny.scenes import SCENE_NAMES, paint_scene
from fpp_sweep.tiny.shapes import SHAPE_NAMES, distorted, shape_drawing, typeset_mask

# A shift takes a picture, a severity in 0..1 and the picture's own random stream.
Shift: TypeAlias = Callable[[Picture, float, np.random.Generator], Picture]


def noise(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    return picture + rng.normal(0, 70 * severity, picture.shape)


def blur(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    softened = Image.fromarray(to_pixels(picture)).filter(ImageFilter.GaussianBlur(3.2 * severity))
    return np.asarray(softened, np.float32)


def contrast(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    factor = 1 - 0.85 * severity
    faded = picture * factor + (1 - factor) * rng.uniform(60, 190)
    return faded + rng.normal(0, 6, picture.shape)


def cast(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    """Change the colour of the light."""
    return picture * (1 + severity * rng.uniform(-0.55, 0.55, 3))


def dark(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    return picture * (1 - 0.75 * severity) + rng.normal(0, 8 * severity, picture.shape)


def fog(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    density = severity * (0.35 + 0.5 * smooth_noise(4, rng))[..., None]
    return np.asarray(picture * (1 - density) + 215 * density)


def occlusion(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    """Put opaque rectangles in front of the picture."""
    covered = picture.copy()
    for _ in range(int(1 + 4 * severity)):
        left, top = rng.integers(0, CANVAS - 16, 2)
        width, height = rng.integers(8, 22, 2)
        covered[top : top + height, left : left + width] = random_colour(rng)
    return covered


def sketch(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    """Draw dark lines along the edges, on paper."""
    gray = Image.fromarray(to_pixels(picture)).convert("L").filter(ImageFilter.GaussianBlur(1))
    level = np.asarray(gray, np.float32)
    edges = np.abs(np.diff(level, axis=1, append=level[:, -1:]))
    edges = edges + np.abs(np.diff(level, axis=0, append=level[-1:]))
    paper = 250 - 0.9 * np.clip(6 * edges, 0, 255)[..., None]
    return np.repeat(paper, 3, axis=2) + rng.normal(0, 10 * severity, (CANVAS, CANVAS, 1))


def gray(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    return np.repeat(picture.mean(axis=2, keepdims=True), 3, axis=2)


def pixelation(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    side = int(CANVAS / (2 + 4 * severity))
    coarse = Image.fromarray(to_pixels(picture)).resize((side, side), Image.Resampling.BOX)
    return np.asarray(coarse.resize((CANVAS, CANVAS), Image.Resampling.NEAREST), np.float32)


def warp(picture: Picture, severity: float, rng: np.random.Generator) -> Picture:
    """Take each pixel from a smoothly displaced position."""
    reach = 22 * severity
    column = X * CANVAS + reach * (smooth_noise(5, rng) - 0.5)
    row = Y * CANVAS + reach * (smooth_noise(5, rng) - 0.5)
    last = CANVAS - 1
    rows, columns = np.clip(row, 0, last).astype(int), np.clip(column, 0, last).astype(int)
    return np.asarray(picture[rows, columns])


_SHIFTS = (noise, blur, contrast, cast, dark, fog, occlusion, sketch, gray, pixelation, warp)
SHIFTS: dict[str, Shift] = {shift.__name__: shift for shift in _SHIFTS}


def shifted(picture: Picture, kinds: Sequence[str], severity: float, rng: np.random.Generator) -> Picture:
    """Return a picture under one of some kinds of shift, at 0.4 to 1 times `severity`."""
    shift = SHIFTS[choose(kinds, rng)]
    return shift(picture, severity * rng.uniform(0.4, 1.0), rng)


SPLITS = ("train", "val", "test")
DIGIT_SIZES = {"train": 400, "val": 397, "test": 1000}  # all 1,797 of them
MARGIN = 10  # around a digit, in pixels
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NUMBER_NAMES = tuple(f"number {digit}" for digit in DIGITS)
LETTER_NAMES = tuple(f"letter {letter}" for letter in string.ascii_lowercase)

Painter: TypeAlias = Callable[[str, np.random.Generator], Picture]  # paints a picture of a class


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyDataset(ABC):
    """A labelled set of pictures; picture and label depend on (name, split, index) only."""

    name: str
    classes: tuple[str, ...]
    flip: bool = True  # True if views may be mirrored; a mirrored glyph is another glyph
    sizes: ClassVar[Mapping[str, int]]

    @abstractmethod
    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the class indices of all pictures of a split."""

    @abstractmethod
    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        """Paint a picture of a split."""

    def render(self, split: str, index: int) -> NDArray[np.uint8]:
        """Return the pixels (64, 64, 3) of picture `index` of a split."""
        return to_pixels(self.picture(split, index, generator("world", self.name, split, index)))


@lru_cache(maxsize=64)
def balanced_labels(name: str, split: str, size: int, classes: int) -> NDArray[np.int64]:
    """Return labels with equally many of each class, up to one, in random order."""
    labels = generator("world", name, split, "labels").permutation(np.arange(size) % classes)
    labels.setflags(write=False)
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PaintedDataset(TinyDataset):
    """Pictures that are painted on demand, each under one of some shifts."""

    painter: Painter
    shifts: tuple[str, ...]
    sizes: ClassVar[Mapping[str, int]] = {"train": 1000, "val": 1000, "test": 2000}

    def labels(self, split: str) -> NDArray[np.int64]:
        return balanced_labels(self.name, split, self.sizes[split], len(self.classes))

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        class_name = self.classes[self.labels(split)[index]]
        return shifted(self.painter(class_name, rng), self.shifts, 1.0, rng)


@dataclass(frozen=True, slots=True, eq=False)
class Handwriting:
    """The scanned digits of scikit-learn."""

    ink: NDArray[np.float64]  # (1797, 8, 8) in 0..1
    labels: NDArray[np.int64]  # (1797,)
    indices: Mapping[str, NDArray[np.int64]]  # by split


@lru_cache(maxsize=1)
def handwriting() -> Handwriting:
    package = find_spec("sklearn")  # the file is read directly, because importing scikit-learn takes much longer
    if package is None or package.origin is None:
        raise InputError("the embedded digits are those of scikit-learn, which is not installed")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    order = generator("world", "digits", "splits").permutation(len(images))
    indices = {}
    start = 0
    for split in SPLITS:
        stop = start + DIGIT_SIZES[split]
        indices[split] = order[start:stop]
        start = stop
    return Handwriting(images / 16, labels, indices)


class HandwrittenDigits(TinyDataset):
    """Scans of digits: 8 x 8 pixels, enlarged; dark on light or light on dark."""

    sizes: ClassVar[Mapping[str, int]] = DIGIT_SIZES

    def labels(self, split: str) -> NDArray[np.int64]:
        digits = handwriting()
        return digits.labels[digits.indices[split]]

    def picture(self, split: str, index: int, rng: np.random.Generator) -> Picture:
        digits = handwriting()
        ink = digits.ink[digits.indices[split][index]]
        side = CANVAS - 2 * MARGIN
        small = Image.fromarray((ink * 255).astype(np.uint8))
        large = small.resize((side, side), Image.Resampling.BICUBIC)
        mask = np.pad(np.asarray(large, np.float32) / 255, MARGIN)
        dark, light = np.full(3, 20.0), np.full(3, 235.0)
        if rng.random() < 0.5:
            return blend(mask, dark, light)
        return blend(mask, light, dark)


def paint_coloured(name: str, rng: np.random.Generator) -> Picture:
    """Paint any shape, plain or textured, for a class such as 'red thing'."""
    shape, texture = choose(SHAPE_NAMES, rng), PLAIN
    if rng.random() < 0.25:
        texture = choose(TEXTURE_NAMES, rng)
    colour = shade(name.removesuffix(" thing"), rng)
    behind = background(contrasting(colour, rng, distance=110), rng)
    radius = 0.3 * rng.uniform(0.85, 1.12)
    second = contrasting(colour, rng, distance=150)
    body = blend(texture_mask(texture, rng), colour, second)
    rotation = rng.normal(0, 0.15)
    margin = 0.6 * max(0.02, 0.5 - radius)  # keeps most of the shape on the canvas
    x, y = 0.5 + rng.uniform(-margin, margin), 0.5 + rng.uniform(-margin, margin)
    x, y = x + rng.normal(0, 0.02), y + rng.normal(0, 0.02)
    drawing = shape_drawing(shape, distorted(x, y, radius, rotation, rng))
    return blend(shrink(drawing), body, behind)


def paint_letter(name: str, rng: np.random.Generator) -> Picture:
    """Paint a class such as 'letter a'."""
    colour = random_colour(rng)
    behind = background(contrasting(colour, rng, distance=110), rng)
    mask = typeset_mask(name.removeprefix("letter ").upper(), rng.uniform(0.28, 0.42), rng)
    return blend(mask, colour, behind)


def paint_pattern(name: str, rng: np.random.Generator) -> Picture:
    """Paint a class such as 'striped texture'."""
    colour = random_colour(rng)
    second = contrasting(colour, rng, distance=140)
    light = 1 + 0.15 * rng.normal() * (X - 0.5)
    sheet = blend(texture_mask(name.removesuffix(" texture"), rng), colour, second)
    return np.asarray(sheet * light[..., None])


_DATASETS: tuple[TinyDataset, ...] = (
    PaintedDataset(
        name="scenes",
        classes=SCENE_NAMES,
        painter=paint_scene,
        shifts=("noise", "blur", "gray", "contrast", "cast", "dark", "fog", "occlusion", "sketch", "warp"),
    ),
    HandwrittenDigits(name="digits", classes=NUMBER_NAMES, flip=False),
    PaintedDataset(
        name="letters",
        classes=LETTER_NAMES,
        flip=False,
        painter=paint_letter,
        shifts=("noise", "blur", "contrast", "cast", "dark", "fog", "occlusion", "sketch", "pixelation", "warp"),
    ),
    PaintedDataset(
        name="colours",
        classes=tuple([f"{colour} thing" for colour in COLOUR_NAMES]),
        painter=paint_coloured,
        shifts=("cast", "dark", "fog", "contrast", "noise", "blur"),
    ),
    PaintedDataset(
        name="textures",
        classes=tuple([f"{texture} texture" for texture in TEXTURE_NAMES]),
        painter=paint_pattern,
        shifts=("noise", "blur", "contrast", "fog", "occlusion", "warp", "pixelation"),
    ),
)
TINY_DATASETS: dict[str, TinyDataset] = {dataset.name: dataset for dataset in _DATASETS}
