"""The outlines of 32 objects, and typeset characters."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fpp_sweep.tiny.rendering import SUPERSAMPLED, Mask, shrink

Points: TypeAlias = NDArray[np.floating[Any]]  # (n, 2), in -1..1


class Patch(NamedTuple):
    """One polygon of a shape; patches are painted in order, and a patch that is not filled erases."""

    points: Points
    filled: bool = True


def polygon(*points: tuple[float, float]) -> Patch:
    return Patch(np.array(points, float))


def box(left: float, top: float, right: float, bottom: float) -> Patch:
    return polygon((left, top), (right, top), (right, bottom), (left, bottom))


def arc(x: float, y: float, width: float, height: float, start: float = 0.0, stop: float = 2 * np.pi) -> Patch:
    """Return the part of an ellipse between two angles, with half axes `width` and `height`."""
    angle = np.linspace(start, stop, 36)
    return Patch(np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], 1))


def disc(x: float, y: float, radius: float) -> Patch:
    return arc(x, y, radius, radius)


def regular(corners: int) -> Patch:
    angle = -np.pi / 2 + 2 * np.pi * np.arange(corners) / corners
    return Patch(np.stack([np.cos(angle), np.sin(angle)], 1))


def star(rays: int, inner: float) -> Patch:
    angle = -np.pi / 2 + np.pi * np.arange(2 * rays) / rays
    radius = np.where(np.arange(2 * rays) % 2 == 0, 1.0, inner)
    return Patch(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1))


def heart() -> Patch:
    angle = np.linspace(0, 2 * np.pi, 50)
    x = 16 * np.sin(angle) ** 3
    y = 13 * np.cos(angle) - 5 * np.cos(2 * angle) - 2 * np.cos(3 * angle) - np.cos(4 * angle)
    return Patch(np.stack([x, -y], 1) / 17)


def leaf_blade() -> Patch:
    x = np.linspace(-0.8, 0.8, 20)
    height = 0.55 * np.sin(np.linspace(0, np.pi, 20))
    upper, lower = np.stack([x, -height], 1), np.stack([x, height], 1)[::-1]
    return Patch(np.concatenate([upper, lower]))


def hole(patch: Patch) -> Patch:
    return Patch(patch.points, filled=False)


CUP_BODY = polygon((-0.75, -0.7), (0.45, -0.7), (0.3, 0.8), (-0.6, 0.8))

SHAPES: dict[str, tuple[Patch, ...]] = {
    "circle": (disc(0, 0, 0.9),),
    "square": (box(-0.8, -0.8, 0.8, 0.8),),
    "triangle": (regular(3),),
    "star": (star(5, 0.42),),
    "heart": (heart(),),
    "cross": (box(-0.3, -0.95, 0.3, 0.95), box(-0.95, -0.3, 0.95, 0.3)),
    "ring": (disc(0, 0, 0.95), hole(disc(0, 0, 0.55))),
    "moon": (disc(0, 0, 0.95), hole(disc(0.45, -0.1, 0.8))),
    "arrow": (polygon((-1, -0.25), (0.1, -0.25), (0.1, -0.75), (1, 0), (0.1, 0.75), (0.1, 0.25), (-1, 0.25)),),
    "diamond": (polygon((0, -1), (0.65, 0), (0, 1), (-0.65, 0)),),
    "pentagon": (regular(5),),
    "hexagon": (regular(6),),
    "oval": (arc(0, 0, 1, 0.55),),
    "rectangle": (box(-1, -0.5, 1, 0.5),),
    "house": (
        polygon((-1, -0.1), (0, -1), (1, -0.1)),
        box(-0.75, -0.1, 0.75, 0.95),
        hole(box(-0.2, 0.35, 0.2, 0.95)),
        hole(box(0.35, 0.1, 0.6, 0.35)),
    ),
    "tree": (box(-0.16, 0.3, 0.16, 1), arc(0, -0.3, 0.75, 0.7)),
    "fish": (arc(-0.15, 0, 0.75, 0.45), polygon((0.45, 0), (1, -0.5), (1, 0.5)), hole(disc(-0.5, -0.1, 0.09))),
    "car": (
        box(-1, 0, 1, 0.4),
        polygon((-0.6, 0), (-0.4, -0.45), (0.35, -0.45), (0.6, 0)),
        disc(-0.55, 0.45, 0.26),
        disc(0.55, 0.45, 0.26),
        hole(polygon((-0.4, -0.05), (-0.3, -0.33), (-0.05, -0.33), (-0.05, -0.05))),
    ),
    "boat": (
        polygon((-1, 0.35), (1, 0.35), (0.6, 0.85), (-0.6, 0.85)),
        polygon((-0.05, -0.95), (-0.05, 0.25), (-0.8, 0.25)),
        polygon((0.1, -0.7), (0.1, 0.25), (0.7, 0.25)),
    ),
    "flower": (
        *(disc(0.55 * np.cos(a), 0.55 * np.sin(a), 0.4) for a in np.arange(6) * np.pi / 3),
        hole(disc(0, 0, 0.25)),
    ),
    "sun": (star(12, 0.62), disc(0, 0, 0.66)),
    "cloud": (disc(-0.5, 0.15, 0.45), disc(0.5, 0.15, 0.42), disc(0, -0.15, 0.55), box(-0.5, 0.1, 0.5, 0.58)),
    "mushroom": (arc(0, 0, 0.95, 0.85, np.pi, 2 * np.pi), box(-0.25, -0.02, 0.25, 0.85)),
    "cup": (CUP_BODY, disc(0.5, -0.05, 0.45), hole(disc(0.5, -0.05, 0.25)), CUP_BODY),
    "key": (
        disc(-0.6, 0, 0.4),
        hole(disc(-0.6, 0, 0.2)),
        box(-0.25, -0.11, 1, 0.11),
        box(0.55, 0.1, 0.7, 0.45),
        box(0.82, 0.1, 0.97, 0.45),
    ),
    "umbrella": (arc(0, -0.05, 1, 0.85, np.pi, 2 * np.pi), box(-0.07, -0.05, 0.07, 0.9), box(-0.35, 0.75, 0.07, 0.9)),
    "lightning bolt": (
        polygon((0.2, -1), (-0.55, 0.15), (-0.05, 0.15), (-0.25, 1), (0.6, -0.25), (0.08, -0.25), (0.45, -1)),
    ),
    "leaf": (leaf_blade(), box(0.75, -0.05, 1, 0.05), hole(box(-0.6, -0.03, 0.6, 0.03))),
    "hourglass": (polygon((-0.7, -0.95), (0.7, -0.95), (0.08, 0), (0.7, 0.95), (-0.7, 0.95), (-0.08, 0)),),
    "bottle": (
        box(-0.4, -0.25, 0.4, 1),
        polygon((-0.4, -0.25), (0.4, -0.25), (0.16, -0.6), (-0.16, -0.6)),
        box(-0.16, -1, 0.16, -0.55),
    ),
    "hammer": (box(-0.7, -0.9, 0.7, -0.4), box(-0.13, -0.45, 0.13, 1)),
    "flag": (box(-0.75, -1, -0.6, 1), polygon((-0.6, -0.95), (0.85, -0.55), (-0.6, -0.1))),
}
SHAPE_NAMES = tuple(SHAPES)


class Pose(NamedTuple):
    """Position and distortion of a shape; centre and radius as shares of the canvas."""

    x: float
    y: float
    radius: float
    rotation: float = 0.0  # radians
    shear: float = 0.0
    aspect: float = 1.0  # height over width


def distorted(x: float, y: float, radius: float, rotation: float, rng: np.random.Generator) -> Pose:
    """Return a pose at a centre, with a little more rotation, and with random shear and aspect."""
    return Pose(
        x=x,
        y=y,
        radius=radius,
        rotation=rotation + rng.normal(0, 0.05),
        shear=rng.normal(0, 0.06),
        aspect=rng.uniform(0.88, 1.12),
    )


def shape_drawing(name: str, pose: Pose) -> Image.Image:
    """Return 255 inside the shape and 0 outside, at twice the size of the canvas."""
    drawn = Image.new("L", (SUPERSAMPLED, SUPERSAMPLED), 0)
    pen = ImageDraw.Draw(drawn)
    cosine, sine = np.cos(pose.rotation), np.sin(pose.rotation)
    rotate = np.array([[cosine, -sine], [sine, cosine]])
    distort = np.array([[1, pose.shear], [0, pose.aspect]])
    transform = (rotate @ distort).T * pose.radius * SUPERSAMPLED
    centre = np.array([pose.x, pose.y]) * SUPERSAMPLED
    for patch in SHAPES[name]:
        corners = patch.points @ transform + centre
        fill = 0
        if patch.filled:
            fill = 255
        pen.polygon([(x, y) for x, y in corners], fill=fill)
    return drawn


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


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
