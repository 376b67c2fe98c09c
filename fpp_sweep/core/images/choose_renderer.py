"""The choice where views are rendered: by Pillow in the processes that read images, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from fpp_sweep.core.images.device_views import ViewRenderer
from fpp_sweep.core.images.reading import Reader, Renderer, UnreadableImage
from fpp_sweep.spec.progress import Bar

Tower = Callable[[Tensor], Tensor]

REPEATS = 4  # repetitions of each measurement; the fastest counts


def choose_renderer(
    tower: Tower, reader: Reader, renderer: ViewRenderer, index: int, workers: int, progress: Bar | None
) -> Renderer:
    """Return the faster of Pillow and a GPU, measured with the first readable image from `index` on.

    On a CPU Pillow is many times as fast, so nothing is measured. Call this only if the GPU's views are proven.
    """
    if renderer.device.type != "cuda":
        return "pillow"
    by_device = replace(reader, renderer="device")
    readable = _first_readable(by_device, index)
    if readable is None:
        return "pillow"
    pillow_seconds = seconds_per_image(tower, replace(reader, renderer="pillow"), renderer, readable, workers)
    device_seconds = seconds_per_image(tower, by_device, renderer, readable, workers)
    faster: Renderer = "pillow"
    chosen = "by Pillow"
    if device_seconds < pillow_seconds:
        faster = "device"
        chosen = "on the device"
    if progress:
        rates = f"{1 / device_seconds:.1f} images/s on the device, {1 / pillow_seconds:.1f} by Pillow"
        progress.note(f"views are rendered {chosen}: {rates}, with the image tower")
    return faster


def _first_readable(reader: Reader, index: int) -> int | None:
    for position in range(index, len(reader.dataset)):
        if not isinstance(reader[position], UnreadableImage):
            return position
    return None


def seconds_per_image(tower: Tower, reader: Reader, renderer: ViewRenderer, index: int, workers: int) -> float:
    """Return seconds for an image through reader, renderer and tower; with workers the slower side decides."""
    size = reader.preprocess.size
    views = reader[index]
    pixels = torch.zeros(1, reader.config.count, 3, size, size, device=renderer.device)

    def read_image() -> None:
        reader[index]

    def compute_features() -> None:
        if not isinstance(views, UnreadableImage):
            renderer.fill_in_any_memory(pixels, {0: views})
        tower(pixels.flatten(0, 1)).cpu()

    reading = _fastest(read_image)
    computing = _fastest(compute_features)
    if workers:
        return max(reading / workers, computing)
    return reading + computing


def _fastest(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return min(seconds)
