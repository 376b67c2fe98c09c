"""The canvas, the colours, smooth noise and random streams that all renderers share.

Pictures are float arrays (CANVAS, CANVAS, 3) in 0..255 until `to_pixels` truncates them; masks are float arrays
(CANVAS, CANVAS) in 0..1. Coordinates run from 0 to 1, y downwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

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
COLOUR_NAMES = tuple(COLOURS)

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


def shade(name: str, rng: np.random.Generator) -> Colour:
    """Return a variant of a named colour: jitter of each channel, and of all channels together."""
    jitter = rng.normal(0, 16, 3) + rng.normal(0, 16)
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


def background(colour: Colour, rng: np.random.Generator) -> Picture:
    """Return a flat, graded or cloudy background."""
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


TAU = 2 * np.pi


class Grid(NamedTuple):
    """The rotated, shifted coordinates of each pixel, and the frequency of the pattern."""

    u: Mask
    v: Mask
    frequency: float
    rng: np.random.Generator


def triangle_wave(phase: Mask) -> Mask:
    return np.asarray(2 * np.abs(phase - np.floor(phase + 0.5)))


def cells(grid: Grid) -> tuple[Mask, Mask]:
    """Return the position within the unit cell, each coordinate in 0..1."""
    return (grid.u * grid.frequency) % 1, (grid.v * grid.frequency) % 1


def checkered(grid: Grid) -> NDArray[np.bool_]:
    parity = np.floor(grid.u * grid.frequency) + np.floor(grid.v * grid.frequency)
    return np.asarray(parity % 2 == 0)


def striped(grid: Grid) -> NDArray[Any]:
    across, _ = cells(grid)
    return np.asarray(across < grid.rng.uniform(0.4, 0.6))


def dotted(grid: Grid) -> NDArray[Any]:
    across, down = cells(grid)
    return np.asarray(np.hypot(across - 0.5, down - 0.5) > grid.rng.uniform(0.24, 0.36))


def zigzagged(grid: Grid) -> NDArray[Any]:
    bend = grid.frequency / 8 * triangle_wave(grid.u * grid.frequency * 0.7)
    return np.asarray((grid.v * grid.frequency + bend) % 1 < 0.5)


def wavy(grid: Grid) -> NDArray[Any]:
    bend = 0.35 * np.sin(TAU * grid.u * grid.frequency * 0.5)
    return np.asarray((grid.v * grid.frequency + bend) % 1 < 0.5)


def gridded(grid: Grid) -> NDArray[Any]:
    across, down = cells(grid)
    line = grid.rng.uniform(0.15, 0.25)
    return (across > line) & (down > line)


def speckled(grid: Grid) -> NDArray[Any]:
    return smooth_noise(int(grid.frequency * 4), grid.rng) < 0.68


def bricked(grid: Grid) -> NDArray[Any]:
    row = np.floor(grid.v * grid.frequency)
    along = (grid.u * grid.frequency * 0.5 + 0.5 * (row % 2)) % 1
    return np.asarray(((grid.v * grid.frequency) % 1 > 0.18) & (along > 0.1))


def swirly(grid: Grid) -> NDArray[Any]:
    x, y = X - grid.rng.uniform(0.3, 0.7), Y - grid.rng.uniform(0.3, 0.7)
    turn = np.arctan2(y, x) / TAU
    if grid.rng.random() >= 0.5:
        turn = -turn
    return np.asarray((np.hypot(x, y) * grid.frequency * 1.2 + turn) % 1 < 0.5)


def marbled(grid: Grid) -> NDArray[Any]:
    veins = grid.u * grid.frequency * 0.5 + 1.6 * smooth_noise(6, grid.rng)
    return np.asarray(0.5 + 0.5 * np.sin(TAU * veins))


def cracked(grid: Grid) -> NDArray[Any]:
    """Return the borders between the regions nearest to some random points."""
    x, y = grid.rng.random((2, int(grid.frequency * 2.5), 1, 1)).astype(np.float32)
    distance = np.sort(np.hypot(X - x, Y - y), axis=0)
    return np.asarray(distance[1] - distance[0] > 0.035)


def woven(grid: Grid) -> NDArray[Any]:
    across = np.cos(2 * TAU * grid.u * grid.frequency)
    down = np.cos(2 * TAU * grid.v * grid.frequency)
    return np.asarray(0.5 + 0.5 * np.where(checkered(grid), across, down))


def scaly(grid: Grid) -> NDArray[Any]:
    row = np.floor(grid.v * grid.frequency)
    across = (grid.u * grid.frequency + 0.5 * (row % 2)) % 1 - 0.5
    return np.asarray(np.abs(np.hypot(across, (grid.v * grid.frequency) % 1) - 0.6) > 0.12)


PATTERNS = (
    striped, dotted, checkered, zigzagged, wavy, gridded, speckled, bricked, swirly, marbled, cracked, woven, scaly
)  # fmt: skip
TEXTURES: dict[str, Callable[[Grid], NDArray[Any]]] = {pattern.__name__: pattern for pattern in PATTERNS}
TEXTURE_NAMES = tuple(TEXTURES)
PLAIN = "plain"  # no texture at all


def texture_mask(name: str, rng: np.random.Generator) -> Mask:
    """Return 1 in the first colour of the texture and 0 in the second, at a random scale and angle."""
    if name == PLAIN:
        return np.ones((CANVAS, CANVAS), np.float32)
    angle = rng.uniform(0, np.pi)
    cosine, sine = np.cos(angle), np.sin(angle)
    grid = Grid(
        u=X * cosine + Y * sine + rng.random(),
        v=Y * cosine - X * sine + rng.random(),
        frequency=rng.uniform(3.5, 8),
        rng=rng,
    )
    return np.asarray(TEXTURES[name](grid), np.float32)
