"""The training pictures: descriptions, and a file of pixels that worker processes fill, each from its own seed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.tiny.rendering import CANVAS, COLOUR_NAMES, PLAIN, TEXTURE_NAMES, Picture, choose, generator, to_pixels
from fpp_sweep.tiny.scenes import SCENE_NAMES
from fpp_sweep.tiny.shapes import SHAPE_NAMES
from fpp_sweep.tiny.world import LETTER_NAMES, NUMBER_NAMES, shifted
from tools.train_tiny.pictures import KINDS, POSITIONS, SIZES, Description, is_held_out, paint

CHUNK = 1000  # pictures per message to a worker process
SHIFTS = ("noise", "blur", "contrast", "cast", "dark")
KIND_SHARES = (0.5, 0.17, 0.22, 0.11)  # shares of objects, textures, glyphs and scenes


def describe(rng: np.random.Generator) -> Description:
    """Return a random description of a training picture."""
    kind = str(rng.choice(KINDS, p=KIND_SHARES))
    match kind:
        case "object":
            return _describe_object(rng)
        case "texture":
            # the description states no colour, because neither of the two colours is the colour of the picture
            return Description(kind=kind, texture=choose(TEXTURE_NAMES, rng))
        case "scene":
            return Description(kind=kind, name=choose(SCENE_NAMES, rng))
    return _describe_glyph(rng)


def _describe_object(rng: np.random.Generator) -> Description:
    shape, colour = choose(SHAPE_NAMES, rng), choose(COLOUR_NAMES, rng)
    while is_held_out(shape, colour):
        shape, colour = choose(SHAPE_NAMES, rng), choose(COLOUR_NAMES, rng)
    count = 1
    if rng.random() >= 0.8:
        count = int(rng.integers(2, 6))
    size = None
    if count == 1 and rng.random() < 0.35:
        size = choose(tuple(SIZES), rng)
    has_position = count == 1 and size != "large" and rng.random() < 0.3
    texture = PLAIN
    if rng.random() >= 0.65:
        texture = choose(TEXTURE_NAMES, rng)
    background = _other_colour(colour, rng)
    position = None
    if has_position:
        position = choose(tuple(POSITIONS), rng)
    return Description(
        kind="object",
        name=shape,
        colour=colour,
        texture=texture,
        background=background,
        size=size,
        position=position,
        count=count,
        outlined=bool(rng.random() < 0.12),
    )


def _describe_glyph(rng: np.random.Generator) -> Description:
    colour = choose(COLOUR_NAMES, rng)
    names = LETTER_NAMES
    if rng.random() < 0.5:
        names = NUMBER_NAMES
    name = choose(names, rng)
    return Description(kind="glyph", name=name, colour=colour, background=_other_colour(colour, rng))


def _other_colour(colour: str, rng: np.random.Generator) -> str:
    return choose([name for name in COLOUR_NAMES if name != colour], rng)


def camera(picture: Picture, rng: np.random.Generator) -> Picture:
    """Change the exposure and add grain, as in every training picture."""
    exposed = picture * rng.uniform(0.85, 1.12) + rng.normal(0, 6)
    if rng.random() < 0.5:
        exposed = exposed + rng.normal(0, rng.uniform(2, 14), exposed.shape)
    return np.asarray(np.clip(exposed, 0, 255))


def paint_for_training(description: Description, rng: np.random.Generator) -> Picture:
    """Paint a picture, apply the camera, and on a quarter of the pictures a mild shift."""
    picture = camera(paint(description, rng), rng)
    if rng.random() < 0.25:
        picture = shifted(picture, SHIFTS, 0.5, rng)
    return picture


def description(seed: int, index: int) -> Description:
    """Return the description of picture `index` of the pool; it is not stored, because it is cheap to compute."""
    return describe(generator("pool", seed, index, "description"))


def picture(seed: int, index: int) -> NDArray[np.uint8]:
    """Return the pixels of picture `index` of the pool."""
    rng = generator("pool", seed, index, "picture")
    return to_pixels(paint_for_training(description(seed, index), rng))


def draw_chunk(path: Path, seed: int, chunk: range) -> int:
    pixels = np.lib.format.open_memmap(path, mode="r+")
    for index in chunk:
        pixels[index] = picture(seed, index)
    return len(chunk)


def draw_pool(path: Path, seed: int, size: int, workers: int) -> Iterator[int]:
    """Fill a file with `size` pictures and yield the sizes of finished chunks; 0 workers means in this process."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(size, CANVAS, CANVAS, 3))
    chunks = [range(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK)]
    if workers == 0:
        for chunk in chunks:
            yield draw_chunk(path, seed, chunk)
        return
    # spawn: a forked child would inherit torch's threads in an undefined state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        yield from executor.map(draw_chunk, repeat(path), repeat(seed), chunks)
