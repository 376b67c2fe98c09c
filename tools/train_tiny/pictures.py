"""Training pictures: shapes in any number, place and size, textures, glyphs and landscapes, from descriptions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from fpp_sweep.tiny.rendering import (
    COLOUR_NAMES,
    PLAIN,
    SUPERSAMPLED,
    Mask,
    Picture,
    background,
    blend,
    contrasting,
    shade,
    shrink,
    texture_mask,
)
from fpp_sweep.tiny.scenes import SCENE_NAMES, paint_scene
from fpp_sweep.tiny.shapes import SHAPE_NAMES, Points, distorted, shape_drawing, typeset_mask
from fpp_sweep.tiny.world import DIGITS, LETTER_NAMES, NUMBER_NAMES, paint_pattern


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
HANDWRITTEN = 0.6  # share of the digits that are drawn by a pen
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
    """Return whether training never shows a shape in a colour: a fifth of all pairs."""
    return (7 * SHAPE_NAMES.index(shape) + 3 * COLOUR_NAMES.index(colour)) % 5 == 0


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


def paint(description: Description, rng: np.random.Generator) -> Picture:
    """Paint the described picture."""
    assert description.name is not None or description.kind == "texture"
    match description.kind:
        case "object":
            return paint_object(description, rng)
        case "texture":
            return paint_pattern(description.texture, rng)
        case "glyph":
            return paint_glyph(description, rng)
        case "scene":
            return paint_scene(str(description.name), rng)
    raise ValueError(f"kind must be one of {KINDS}, got {description.kind!r}")


def paint_object(description: Description, rng: np.random.Generator) -> Picture:
    colour = shade(str(description.colour), rng)
    picture = background(shade(str(description.background), rng), rng)
    if description.count > 1:
        radius = RADIUS_BY_COUNT[description.count] * rng.uniform(0.85, 1.1)
    else:
        radius = SIZES.get(description.size or "", MEDIUM) * rng.uniform(0.85, 1.12)
    second = contrasting(colour, rng, distance=150)
    body = blend(texture_mask(description.texture, rng), colour, second)
    rotation = rng.normal(0, 0.15)
    for x, y in centres(description, radius, rng):
        drawn = shape_drawing(str(description.name), distorted(x, y, radius, rotation, rng))
        if description.outlined:
            drawn = edge_of(drawn)
        picture = blend(shrink(drawn), body, picture)
    return picture


def edge_of(drawn: Image.Image) -> Image.Image:
    """Keep only a band along the edge of a drawing."""
    grown = np.asarray(drawn.filter(ImageFilter.MaxFilter(5)))
    shrunk = np.asarray(drawn.filter(ImageFilter.MinFilter(5)))
    return Image.fromarray(grown - shrunk)


def paint_glyph(description: Description, rng: np.random.Generator) -> Picture:
    """Paint a letter in type, or a digit in type or by a pen."""
    colour = shade(str(description.colour), rng)
    behind = background(shade(str(description.background), rng), rng)
    kind, _, which = str(description.name).partition(" ")
    radius = rng.uniform(0.28, 0.42)
    if kind == "letter":
        mask = typeset_mask(which.upper(), radius, rng)
    elif rng.random() < HANDWRITTEN:
        mask = handwritten_mask(which, radius, rng)
    else:
        mask = typeset_mask(str(DIGITS.index(which)), radius, rng)
    return blend(mask, colour, behind)


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
