"""Where views are drawn: by Pillow in the processes that read images, or on the device. The pixels are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from fpp_sweep.core.images.device_views import Drawer
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.spec.progress import Bar

Tower = Callable[[Tensor], Tensor]

TIMES = 4  # that each is done, of which the fastest counts


def faster(tower: Tower, reader: Reader, drawer: Drawer, index: int, workers: int, progress: Bar | None) -> Reader:
    """The reader, or one that leaves drawing to a GPU, if that is faster with the first readable image from `index` on.

    On a CPU Pillow is many times as fast.
    """
    if drawer.device.type != "cuda":
        return reader
    planner = replace(reader, draws=False)
    readable = (each for each in range(index, len(reader.dataset)) if not isinstance(planner[each], str))
    if (index := next(readable, -1)) < 0:
        return reader
    pillow, device = (seconds(tower, each, drawer, index, workers) for each in (reader, planner))
    if progress:
        place = "on the device" if device < pillow else "by Pillow"
        rates = f"{1 / device:.1f} images/s on the device, {1 / pillow:.1f} by Pillow"
        progress.note(f"views are drawn {place}: {rates}, with the image tower")
    return planner if device < pillow else reader


def seconds(tower: Tower, reader: Reader, drawer: Drawer, index: int, workers: int) -> float:
    """For an image through reader and tower; with workers the slower of the two decides."""
    size, found = reader.preprocess.size, reader[index]
    pixels = torch.zeros(1, reader.config.count, 3, size, size, device=drawer.device)

    def drawn() -> None:
        if not isinstance(found, str):
            drawer.fill(pixels, {0: found})
        tower(pixels.flatten(0, 1)).cpu()

    read, here = _fastest(lambda: reader[index]), _fastest(drawn)
    return max(read / workers, here) if workers else read + here


def _fastest(work: Callable[[], object]) -> float:
    clock = []
    for _ in range(TIMES):
        began = perf_counter()
        work()
        clock.append(perf_counter() - began)
    return min(clock)
