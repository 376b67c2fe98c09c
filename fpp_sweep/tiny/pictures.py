"""What a picture shows (`Description`), how it is painted, and what training pictures show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fpp_sweep.tiny.glyphs import LETTER_NAMES, NUMBER_NAMES, glyph_mask
from fpp_sweep.tiny.rendering import COLOURS, Picture, X, background, blend, choose, contrasting, random_colour, shade
from fpp_sweep.tiny.scenes import SCENES, paint_scene
from fpp_sweep.tiny.shapes import SHAPES, Pose, shape_mask
from fpp_sweep.tiny.shifts import SEEN, shifted
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
RADIUS_BY_COUNT = {2: 0.2, 3: 0.16, 4: 0.15, 5: 0.13}  # by count, so that they fit side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The facts a caption may state about a picture; None means that anything may be painted."""

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
    """A fifth of the colour-shape pairs is never shown in training: the dataset `compositions`."""
    return (7 * SHAPE_NAMES.index(shape) + 3 * COLOUR_NAMES.index(colour)) % 5 == 0


def colour_of(description: Description, rng: np.random.Generator) -> Picture:
    return shade(description.colour, rng) if description.colour else random_colour(rng)


def centres(description: Description, radius: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """One centre near the described position, or `count` different cells of a 3 x 3 grid."""
    if description.count > 1:
        chosen = rng.permutation(9)[: description.count]
        return [
            (0.19 + 0.31 * (cell % 3) + rng.normal(0, 0.02),
             0.19 + 0.31 * (cell // 3) + rng.normal(0, 0.02))
            for cell in chosen
        ]  # fmt: skip
    room = 0.6 * max(0.02, 0.5 - radius)
    x, y = POSITIONS.get(description.position or "", (None, None))
    x = 0.5 + rng.uniform(-room, room) if x is None else x
    y = 0.5 + rng.uniform(-room, room) if y is None else y
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
    """The picture of `description`; `tilt` is the spread of an object's rotation in radians."""
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


def describe_object(rng: np.random.Generator) -> Description:
    shape, colour = choose(SHAPE_NAMES, rng), choose(COLOUR_NAMES, rng)
    while is_held_out(shape, colour):
        shape, colour = choose(SHAPE_NAMES, rng), choose(COLOUR_NAMES, rng)
    count = 1 if rng.random() < 0.8 else int(rng.integers(2, 6))
    size = choose(tuple(SIZES), rng) if count == 1 and rng.random() < 0.35 else None
    placed = count == 1 and size != "large" and rng.random() < 0.3
    return Description(
        kind="object",
        name=shape,
        colour=colour,
        texture=PLAIN if rng.random() < 0.65 else choose(TEXTURE_NAMES, rng),
        background=choose([c for c in COLOUR_NAMES if c != colour], rng),
        size=size,
        position=choose(tuple(POSITIONS), rng) if placed else None,
        count=count,
        outlined=bool(rng.random() < 0.12),
    )


def describe(rng: np.random.Generator) -> Description:
    """A random picture of the training world."""
    kind = str(rng.choice(KINDS, p=[0.5, 0.17, 0.22, 0.11]))
    if kind == "object":
        return describe_object(rng)
    if kind == "texture":
        # no colour: neither of its two colours is the colour of the picture
        return Description(kind=kind, texture=choose(TEXTURE_NAMES, rng))
    if kind == "scene":
        return Description(kind=kind, name=choose(SCENE_NAMES, rng))
    colour = choose(COLOUR_NAMES, rng)
    return Description(
        kind=kind,
        name=choose(NUMBER_NAMES if rng.random() < 0.5 else LETTER_NAMES, rng),
        colour=colour,
        background=choose([c for c in COLOUR_NAMES if c != colour], rng),
    )


def camera(picture: Picture, rng: np.random.Generator) -> Picture:
    """Exposure and grain, as in every training picture."""
    exposed = picture * rng.uniform(0.85, 1.12) + rng.normal(0, 6)
    if rng.random() < 0.5:
        exposed = exposed + rng.normal(0, rng.uniform(2, 14), exposed.shape)
    return np.asarray(np.clip(exposed, 0, 255))


def paint_for_training(description: Description, rng: np.random.Generator) -> Picture:
    """`paint`, then the camera, then on a quarter of the pictures a mild shift."""
    picture = camera(paint(description, rng), rng)
    if rng.random() < 0.25:
        picture = shifted(picture, SEEN, 0.5, rng)
    return picture
