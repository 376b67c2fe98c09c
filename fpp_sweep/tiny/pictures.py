"""Pictures of objects, textures, glyphs and scenes, painted from a description."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fpp_sweep.tiny.glyphs import LETTER_NAMES, NUMBER_NAMES, glyph_mask
from fpp_sweep.tiny.rendering import COLOURS, Picture, X, background, blend, contrasting, random_colour, shade
from fpp_sweep.tiny.scenes import SCENES, paint_scene
from fpp_sweep.tiny.shapes import SHAPES, Pose, shape_mask
from fpp_sweep.tiny.textures import PLAIN, TEXTURES, texture_mask

COLOUR_NAMES = tuple(COLOURS)
SHAPE_NAMES = tuple(SHAPES)
TEXTURE_NAMES = tuple(TEXTURES)
SCENE_NAMES = tuple(SCENES)
NAMES = SHAPE_NAMES + NUMBER_NAMES + LETTER_NAMES + SCENE_NAMES
KINDS = ("object", "texture", "glyph", "scene")
SIZES = {"small": 0.17, "large": 0.4}  # radius, as a share of the canvas
MEDIUM = 0.3
POSITIONS = {  # x and y of the centre; None: random
    "left": (0.28, None),
    "right": (0.72, None),
    "top": (None, 0.28),
    "bottom": (None, 0.72),
}
RADIUS_BY_COUNT = {2: 0.2, 3: 0.16, 4: 0.15, 5: 0.13}  # so that all of them fit side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The facts that a caption may state about a picture; None means that anything may be painted."""

    kind: str
    name: str | None = None
    colour: str | None = None
    texture: str = PLAIN
    background: str | None = None
    size: str | None = None
    position: str | None = None
    count: int = 1
    outlined: bool = False


def is_held_out(shape: str, colour: str) -> bool:
    """Return whether training never shows a shape in a colour: a fifth of all pairs, for the set `compositions`."""
    return (7 * SHAPE_NAMES.index(shape) + 3 * COLOUR_NAMES.index(colour)) % 5 == 0


def colour_of(description: Description, rng: np.random.Generator) -> Picture:
    if description.colour:
        return shade(description.colour, rng)
    return random_colour(rng)


def centres(description: Description, radius: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Return one centre near the described position, or `count` different cells of a 3 x 3 grid."""
    if description.count > 1:
        points = []
        for cell in rng.permutation(9)[: description.count]:
            column, row = cell % 3, cell // 3
            points.append((0.19 + 0.31 * column + rng.normal(0, 0.02), 0.19 + 0.31 * row + rng.normal(0, 0.02)))
        return points
    margin = 0.6 * max(0.02, 0.5 - radius)
    x, y = POSITIONS.get(description.position or "", (None, None))
    if x is None:
        x = 0.5 + rng.uniform(-margin, margin)
    if y is None:
        y = 0.5 + rng.uniform(-margin, margin)
    return [(x + rng.normal(0, 0.02), y + rng.normal(0, 0.02))]


def paint_object(description: Description, tilt: float, rng: np.random.Generator) -> Picture:
    colour = colour_of(description, rng)
    picture = background(description.background, colour, rng)
    if description.count > 1:
        radius = RADIUS_BY_COUNT[description.count] * rng.uniform(0.85, 1.1)
    else:
        radius = SIZES.get(description.size or "", MEDIUM) * rng.uniform(0.85, 1.12)
    second = contrasting(colour, rng, distance=150)
    body = blend(texture_mask(description.texture, rng), colour, second)
    rotation = rng.normal(0, tilt)
    assert description.name is not None
    for x, y in centres(description, radius, rng):
        pose = Pose(
            x=x,
            y=y,
            radius=radius,
            rotation=rotation + rng.normal(0, 0.05),
            shear=rng.normal(0, 0.06),
            aspect=rng.uniform(0.88, 1.12),
        )
        mask = shape_mask(description.name, pose, description.outlined)
        picture = blend(mask, body, picture)
    return picture


def paint_texture(description: Description, rng: np.random.Generator) -> Picture:
    colour = colour_of(description, rng)
    second = contrasting(colour, rng, distance=140)
    light = 1 + 0.15 * rng.normal() * (X - 0.5)
    sheet = blend(texture_mask(description.texture, rng), colour, second)
    return np.asarray(sheet * light[..., None])


def paint_glyph(description: Description, handwritten: float, rng: np.random.Generator) -> Picture:
    colour = colour_of(description, rng)
    behind = background(description.background, colour, rng)
    assert description.name is not None
    return blend(glyph_mask(description.name, handwritten, rng), colour, behind)


def paint(description: Description, rng: np.random.Generator, tilt: float = 0.15, handwritten: float = 0.6) -> Picture:
    """Paint the described picture; `tilt` is the standard deviation of an object's rotation in radians."""
    match description.kind:
        case "object":
            return paint_object(description, tilt, rng)
        case "texture":
            return paint_texture(description, rng)
        case "glyph":
            return paint_glyph(description, handwritten, rng)
        case "scene":
            assert description.name is not None
            return paint_scene(description.name, rng)
    raise ValueError(f"kind must be one of {KINDS}, got {description.kind!r}")
