"""Where views are drawn: by Pillow in the processes that read images, or on the device. The pixels are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from fpp_sweep.core.images.drawing import Drawer
from fpp_sweep.core.images.reading import Read, Reader
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.progress import Bar

TIMED = 3  # times, of which the best counts


@dataclass(frozen=True, slots=True)
class Way:
    """Seconds for an image's views: in a reading process, and in the process of the model with the tower."""

    read: float
    here: float

    def seconds(self, workers: int) -> float:
        """For an image, while others are read."""
        return max(self.read / workers, self.here) if workers else self.read + self.here


def faster(clip: Clip, reader: Reader, drawer: Drawer, index: int, workers: int, progress: Bar | None) -> Reader:
    """The reader, or one that leaves drawing to the model's device where that is faster with the first image from
    `index` on that can be read, which is told.

    A CPU stays with Pillow, which is many times as fast there.
    """
    planner = replace(reader, draws=False)
    left = range(index, len(reader.dataset)) if clip.device.type == "cuda" else ()
    readable = next((each for each in left if not isinstance(planner[each], str)), None)
    if readable is None:
        return reader
    pillow, device = (_measured(clip, each, drawer, readable) for each in (reader, planner))
    seconds = [way.seconds(workers) for way in (pillow, device)]
    if progress:
        rates = [f"{1 / each:.0f} images/s" for each in seconds]
        place = "on the device" if seconds[1] < seconds[0] else "by Pillow"
        progress.note(f"views are drawn {place}: {rates[1]} there, {rates[0]} with Pillow in {workers} processes")
    return planner if seconds[1] < seconds[0] else reader


def _measured(clip: Clip, reader: Reader, drawer: Drawer, index: int) -> Way:
    size, found = reader.preprocess.size, reader[index]
    pixels = torch.zeros(1, reader.config.count, 3, size, size, device=clip.device)

    def here() -> None:
        drawer.fill(pixels, {0: found} if not isinstance(found, str) else {})
        clip.image_features(pixels.flatten(0, 1), half=True).cpu()

    return Way(_best(lambda: reader[index]), _best(here))


def _best(work: Callable[[], Read | None]) -> float:
    def seconds() -> float:
        began = perf_counter()
        work()
        return perf_counter() - began

    return min(seconds() for _ in range(1 + TIMED))
