"""The canvas, the colours, smooth noise and random streams that all renderers share.

Pictures are float arrays (CANVAS, CANVAS, 3) in 0..255 until `to_pixels` truncates them; masks are float arrays
(CANVAS, CANVAS) in 0..1. Coordinates run from 0 to 1, y downwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CANVAS = 64  # side of every picture, in pixels
SUPERSAMPLED = 2 * CANVAS  # outlines are drawn at twice the size and averaged down: smooth edges

Picture: TypeAlias = NDArray[np.floating[Any]]
Mask: TypeAlias = NDArray[np.floating[Any]]
Colour: TypeAlias = NDArray[np.floating[Any]]

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 35),
    "orange": (245, 140, 25),
    "yellow": (245, 225, 45),
    "green": (40, 160, 60),
    "blue": (40, 75, 215),
    "purple": (130, 45, 170),
    "pink": (245, 140, 190),
    "brown": (120, 72, 35),
    "black": (18, 18, 18),
    "white": (242, 242, 242),
    "gray": (128, 128, 128),
    "turquoise": (50, 205, 200),
}

# pixel positions in 0..1, one value per pixel
Y, X = np.mgrid[0:CANVAS, 0:CANVAS].astype(np.float32) / CANVAS

Choice = TypeVar("Choice")


def generator(*names: object) -> np.random.Generator:
    """Return a random stream that depends on the names only."""
    key = "/".join([str(name) for name in names])
    digest = hashlib.sha256(key.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def choose(options: Sequence[Choice], rng: np.random.Generator) -> Choice:
    """Return one of the options; unlike `rng.choice`, keep its Python type."""
    return options[int(rng.integers(len(options)))]


def to_pixels(picture: Picture) -> NDArray[np.uint8]:
    """Clip to the displayable range and drop fractions."""
    return np.clip(picture, 0, 255).astype(np.uint8)


def shrink(drawn: Image.Image) -> Mask:
    """Average a supersampled single-channel drawing down to a mask with soft edges."""
    small = drawn.resize((CANVAS, CANVAS), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / 255


def smooth_noise(cells: int, rng: np.random.Generator) -> Mask:
    """Enlarge random values on a grid of `cells` x `cells` smoothly to the canvas."""
    grid = Image.fromarray((rng.random((cells, cells)) * 255).astype(np.uint8))
    return np.asarray(grid.resize((CANVAS, CANVAS), Image.Resampling.BICUBIC), np.float32) / 255


def blend(mask: Mask, front: Picture | Colour, back: Picture | Colour) -> Picture:
    """Show `front` where the mask is 1 and `back` where it is 0."""
    weight = mask[..., None]
    return front * weight + back * (1 - weight)


def shade(name: str, rng: np.random.Generator, spread: float = 16.0) -> Colour:
    """Return a variant of a named colour: jitter of each channel, and of all channels together."""
    jitter = rng.normal(0, spread, 3) + rng.normal(0, spread)
    return np.clip(np.array(COLOURS[name], np.float32) + jitter, 0, 255)


def random_colour(rng: np.random.Generator) -> Colour:
    return rng.uniform(0, 255, 3)


def contrasting(colour: Colour, rng: np.random.Generator, distance: float) -> Colour:
    """Return a random colour whose channels differ from `colour` by more than `distance` in sum."""
    for _ in range(20):
        candidate = random_colour(rng)
        if np.abs(candidate - colour).sum() > distance:
            return candidate
    return 255 - colour


def _background_colour(name: str | None, front: Colour, rng: np.random.Generator) -> Colour:
    if name:
        return shade(name, rng)
    return contrasting(front, rng, distance=110)


def background(name: str | None, front: Colour, rng: np.random.Generator) -> Picture:
    """Return a flat, graded or cloudy background in the named colour, or in one that contrasts with `front`."""
    colour = _background_colour(name, front, rng)
    style = rng.random()
    if style < 0.45:
        return np.broadcast_to(colour, (CANVAS, CANVAS, 3)).copy()
    if style < 0.7:
        slope = X * rng.normal() + Y * rng.normal()
        graded: Picture = np.clip(colour + 60 * (slope - slope.mean())[..., None], 0, 255)
        return graded
    depth = rng.uniform(20, 60)
    clouds = smooth_noise(int(rng.integers(3, 20)), rng)[..., None] - 0.5
    return np.clip(colour + depth * clouds, 0, 255)
