"""Pictures of every shape, texture, scene, shift and dataset look as on the sheet beside this file.

A test of a picture's properties does not notice a heart that is drawn with half of its corners. After a change that is
meant, write the sheet again with `python -m tests.tiny.test_sheet` and look at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fpp_sweep.tiny.rendering import CANVAS, TEXTURES, Picture, generator, shrink, texture_mask, to_pixels
from fpp_sweep.tiny.scenes import SCENES, paint_scene
from fpp_sweep.tiny.shapes import SHAPES, Pose, shape_drawing
from fpp_sweep.tiny.world import SHIFTS, SPLITS, TINY_DATASETS
from tools.train_tiny import pool
from tools.train_tiny.pictures import edge_of

SHEET = Path(__file__).with_name("sheet.png")
SHOWN = 32  # side of a picture on the sheet, in pixels
COLUMNS = 24
TOLERANCE = 2  # in levels of 255: processors round differently


def test_all_pictures_look_as_on_the_sheet():
    expected = np.asarray(Image.open(SHEET), np.int16)
    differences = np.abs(sheet().astype(np.int16) - expected)
    assert differences.max() <= TOLERANCE, different_pictures(differences)


def sheet() -> NDArray[np.uint8]:
    """Return all pictures in rows of COLUMNS."""
    pictures = [pixels for _, pixels in shown_pictures()]
    rows = -(-len(pictures) // COLUMNS)
    whole = np.zeros((rows * SHOWN, COLUMNS * SHOWN, 3), np.uint8)
    for number, pixels in enumerate(pictures):
        tile_of(whole, number)[:] = pixels
    return whole


def tile_of(whole: NDArray[Any], number: int) -> NDArray[Any]:
    """Return the part of a sheet that shows a picture."""
    row, column = divmod(number, COLUMNS)
    top, left = row * SHOWN, column * SHOWN
    return whole[top : top + SHOWN, left : left + SHOWN]


def different_pictures(differences: NDArray[np.int16]) -> list[str]:
    names = []
    for number, (name, _) in enumerate(shown_pictures()):
        if tile_of(differences, number).max() > TOLERANCE:
            names.append(name)
    return names


def shown_pictures() -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield the name and the reduced pixels of each picture of the sheet."""
    for name, picture in named_pictures():
        small = Image.fromarray(to_pixels(picture)).resize((SHOWN, SHOWN), Image.Resampling.BOX)
        yield name, np.asarray(small)


def named_pictures() -> Iterator[tuple[str, NDArray[Any]]]:
    for name in SHAPES:
        tilted = Pose(0.45, 0.55, 0.4, rotation=0.3, shear=0.1, aspect=0.9)
        drawn = shape_drawing(name, tilted)
        yield f"shape {name}, outlined False", in_white(shrink(drawn))
        yield f"shape {name}, outlined True", in_white(shrink(edge_of(drawn)))
    for name in TEXTURES:
        for number in range(2):
            yield f"texture {name} {number}", in_white(texture_mask(name, generator("sheet", number)))
    for name in SCENES:
        for number in range(4):
            yield f"scene {name} {number}", paint_scene(name, generator("sheet", number))
    for name, shift in SHIFTS.items():
        for number in range(2):
            beach = paint_scene("beach", generator("sheet", number))
            yield f"shift {name} {number}", shift(beach, 0.8, generator(name))
    for name, dataset in TINY_DATASETS.items():
        for split in SPLITS:
            for index in range(4):
                yield f"{name} {split} {index}", dataset.render(split, index)
    for index in range(48):
        yield f"training picture {index}", pool.picture(0, index)


def in_white(mask: NDArray[Any]) -> Picture:
    return np.broadcast_to(255 * mask[..., None], (CANVAS, CANVAS, 3))


if __name__ == "__main__":
    Image.fromarray(sheet()).save(SHEET, optimize=True)
