"""Domain shifts: training uses a few of them, mildly, and the evaluation datasets use all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageFilter

from fpp_sweep.tiny.rendering import CANVAS, Picture, X, Y, choose, random_colour, smooth_noise, to_pixels

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
IN_TRAINING = ("noise", "blur", "contrast", "cast", "dark")  # the only shifts of training pictures


def shifted(picture: Picture, kinds: Sequence[str], severity: float, rng: np.random.Generator) -> Picture:
    """Return a picture under one of some kinds of shift, at 0.4 to 1 times `severity`."""
    shift = SHIFTS[choose(kinds, rng)]
    return shift(picture, severity * rng.uniform(0.4, 1.0), rng)
