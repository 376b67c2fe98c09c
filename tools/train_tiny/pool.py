"""The training pictures: a uint8 file that worker processes fill, each from its own seed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.tiny.pictures import Description, describe, paint_for_training
from fpp_sweep.tiny.rendering import CANVAS, generator, to_pixels

CHUNK = 1000  # pictures per message to a worker


def description(seed: int, index: int) -> Description:
    """What picture `index` of the pool shows; not stored, because it is cheap to compute."""
    return describe(generator("pool", seed, index, "description"))


def picture(seed: int, index: int) -> NDArray[np.uint8]:
    rng = generator("pool", seed, index, "picture")
    return to_pixels(paint_for_training(description(seed, index), rng))


def draw_chunk(path: Path, seed: int, chunk: range) -> int:
    pixels = np.lib.format.open_memmap(path, mode="r+")
    for index in chunk:
        pixels[index] = picture(seed, index)
    return len(chunk)


def draw_pool(path: Path, seed: int, size: int, workers: int) -> Iterator[int]:
    """Fill `path` with `size` pictures; yields the sizes of finished chunks. 0 workers: in this process."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(size, CANVAS, CANVAS, 3))
    chunks = [range(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK)]
    if workers == 0:
        yield from map(draw_chunk, repeat(path), repeat(seed), chunks)
        return
    # spawn: a forked child would inherit torch's threads in an undefined state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        yield from executor.map(draw_chunk, repeat(path), repeat(seed), chunks)
