"""Letters and digits: typeset in Pillow's built-in font, digits also as jittered pen strokes."""

from __future__ import annotations

import string
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fpp_sweep.tiny.rendering import SUPERSAMPLED, Mask, shrink
from fpp_sweep.tiny.shapes import Points

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NUMBER_NAMES = tuple(f"number {digit}" for digit in DIGITS)
LETTER_NAMES = tuple(f"letter {letter}" for letter in string.ascii_lowercase)


def oval_stroke() -> list[tuple[float, float]]:
    points = []
    for angle in np.linspace(0, 2 * np.pi, 50):
        points.append((0.5 + 0.32 * float(np.sin(angle)), 0.5 - 0.46 * float(np.cos(angle))))
    return points


# one pen stroke per digit, as corners in 0..1
STROKES: dict[str, list[tuple[float, float]]] = {
    "zero": oval_stroke(),
    "one": [(0.35, 0.22), (0.52, 0.05), (0.52, 0.95)],
    "two": [
        (0.2, 0.25), (0.3, 0.1), (0.5, 0.04), (0.72, 0.12), (0.78, 0.3), (0.65, 0.5),
        (0.4, 0.72), (0.18, 0.95), (0.82, 0.95),
    ],
    "three": [
        (0.2, 0.12), (0.45, 0.04), (0.72, 0.12), (0.75, 0.3), (0.6, 0.45), (0.42, 0.48),
        (0.65, 0.53), (0.8, 0.7), (0.7, 0.9), (0.45, 0.97), (0.18, 0.88),
    ],
    "four": [(0.65, 0.96), (0.65, 0.04), (0.15, 0.65), (0.88, 0.65)],
    "five": [
        (0.78, 0.05), (0.28, 0.05), (0.24, 0.45), (0.5, 0.38), (0.75, 0.5), (0.8, 0.72),
        (0.65, 0.93), (0.4, 0.97), (0.18, 0.88),
    ],
    "six": [
        (0.7, 0.06), (0.45, 0.18), (0.25, 0.45), (0.2, 0.7), (0.32, 0.92), (0.55, 0.96),
        (0.76, 0.85), (0.78, 0.65), (0.6, 0.5), (0.4, 0.52), (0.24, 0.65),
    ],
    "seven": [(0.18, 0.05), (0.82, 0.05), (0.6, 0.4), (0.42, 0.95)],
    "eight": [
        (0.5, 0.48), (0.28, 0.35), (0.26, 0.15), (0.5, 0.04), (0.74, 0.15), (0.72, 0.35),
        (0.5, 0.48), (0.24, 0.65), (0.24, 0.87), (0.5, 0.97), (0.76, 0.87), (0.76, 0.65),
        (0.5, 0.48),
    ],
    "nine": [
        (0.76, 0.32), (0.62, 0.48), (0.4, 0.5), (0.24, 0.38), (0.24, 0.17), (0.42, 0.04),
        (0.62, 0.06), (0.76, 0.2), (0.76, 0.5), (0.7, 0.95),
    ],
}  # fmt: skip


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def handwritten_mask(digit: str, radius: float, rng: np.random.Generator) -> Mask:
    """Draw a digit with a thick pen, with jitter, slanted and rotated a little."""
    drawn = Image.new("L", (SUPERSAMPLED, SUPERSAMPLED), 0)
    pen = ImageDraw.Draw(drawn)
    width = int(rng.integers(7, 17))
    points: Points = np.array(STROKES[digit]) - 0.5
    jitter = rng.uniform(0, 0.04)
    points = points + rng.normal(0, jitter, points.shape)
    stretch = np.array([0.8 * rng.uniform(0.8, 1.25), 1])
    points = points * stretch * 1.6 * radius
    slant = rng.normal(0, 0.15)
    points[:, 0] -= slant * points[:, 1]
    angle = rng.normal(0, 0.12)
    cosine, sine = np.cos(angle), np.sin(angle)
    rotation = np.array([[cosine, sine], [-sine, cosine]])
    offset = rng.normal(0, 0.03, 2)
    points = points @ rotation + 0.5 + offset
    corners = [(x, y) for x, y in points * SUPERSAMPLED]
    pen.line(corners, fill=255, width=width, joint="curve")
    for x, y in corners:  # round caps and joints
        pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=255)
    return shrink(drawn)


def typeset_mask(character: str, radius: float, rng: np.random.Generator) -> Mask:
    """Print a character of random weight, rotated, sheared and stretched a little."""
    drawn = Image.new("L", (SUPERSAMPLED, SUPERSAMPLED), 0)
    middle = SUPERSAMPLED / 2
    size = int(SUPERSAMPLED * 2 * radius * rng.uniform(1.0, 1.3))
    weight = int(rng.integers(0, 5))
    ImageDraw.Draw(drawn).text((middle, middle), character, font=font(size), fill=255, anchor="mm", stroke_width=weight)
    tilt = rng.normal(0, 7)  # degrees
    drawn = drawn.rotate(tilt, Image.Resampling.BICUBIC)
    shear, stretch = rng.normal(0, 0.15), rng.uniform(0.85, 1.2)
    left = middle * (1 - stretch - shear)  # keeps the middle where it is
    top = rng.normal(0, 4)
    affine = stretch, shear, left, 0, 1, top
    drawn = drawn.transform(drawn.size, Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
    return shrink(drawn)


def glyph_mask(name: str, handwritten: float, rng: np.random.Generator) -> Mask:
    """Return the mask of 'letter a' or 'number three'; `handwritten` is the share of pen-drawn digits."""
    kind, _, which = name.partition(" ")
    radius = rng.uniform(0.28, 0.42)
    if kind == "letter":
        return typeset_mask(which.upper(), radius, rng)
    if rng.random() < handwritten:
        return handwritten_mask(which, radius, rng)
    return typeset_mask(str(DIGITS.index(which)), radius, rng)
