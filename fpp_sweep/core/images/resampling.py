"""Pillow's resizing of many crops at once, in whole numbers: the same bytes on any device that torch has.

An image is a row of words, one for each pixel, with its three bytes in the lowest bits. Pillow weights pixels by whole
numbers with 22 fractional bits and rounds to bytes after each side. Its weights come from float64. So no product and
sum may be rounded as one, and divisors must be tensors: a GPU multiplies by the reciprocal of a plain number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly

Filter = tuple[Tensor, Tensor]  # (V, out) the first pixel of each output, (V, out, taps) int32 weights from there on

FRACTION_BITS = 22  # bits of a weight's fraction
# numbers of weights that shorter filters are padded to, so that few forms of the loop are compiled; longer stay eager
PADDED_TAPS = (3, 5, 9, 17)


def pack(pixels: Tensor) -> Tensor:
    """Pack (..., 3) bytes into (...) words."""
    padded = pixels.new_zeros(*pixels.shape[:-1], 4)
    padded[..., :3] = pixels
    return padded.view(torch.int32).squeeze(-1)


def unpack(words: Tensor) -> Tensor:
    """Unpack (...) words into (..., 3) bytes."""
    return words.contiguous().view(torch.uint8).view(*words.shape, 4)[..., :3]


def channel(words: Tensor, number: int) -> Tensor:
    """Return one channel of words."""
    return (words >> (8 * number)) & 255


def join_channels(channels: list[Tensor]) -> Tensor:
    """Return words from their three channels."""
    red, green, blue = channels
    return red | (green << 8) | (blue << 16)


@dataclass(frozen=True, slots=True, eq=False)
class Crops:
    """V boxes of images that stand one after the other in a row of words."""

    origins: NDArray[np.int64]  # (V,) the word where a box's image begins
    strides: NDArray[np.int64]  # (V,) words in a row of that image
    boxes: NDArray[np.int64]  # (V, 4): left, top, right, bottom
    mirrored: NDArray[np.bool_]  # (V,)


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """The lines of all crops as one list, on the device; the lines of a crop that is shrunk in height are columns."""

    corner: Tensor  # (V,) the first word of a crop
    step: Tensor  # (V,) from a pixel to the next along a line
    gap: Tensor  # (V,) from a line to the next
    length: Tensor  # (V,) pixels of a line
    count: Tensor  # (V,) lines of a crop
    start: Tensor  # (V,) a crop's first line in the list
    upright: Tensor  # (V,) 1 where lines are columns
    mirrored: Tensor  # (V,) 1 where the crop is mirrored


def resize(words: Tensor, crops: Crops, size: int, run: Runner = eagerly) -> Tensor:
    """Return (V, size, size) words: each crop resized with the bilinear filter as `views.resize` does it."""
    left, top, right, bottom = crops.boxes.T
    widths, heights = right - left, bottom - top
    upright = heights - size > 2 * np.maximum(widths - size, 0)
    lengths, counts = np.where(upright, heights, widths), np.where(upright, widths, heights)
    table = (
        crops.origins + left + top * crops.strides,
        np.where(upright, crops.strides, 1),
        np.where(upright, 1, crops.strides),
        lengths,
        counts,
        counts.cumsum() - counts,
        upright,
        crops.mirrored,
    )
    # one transfer for all rows
    on_device = torch.from_numpy(np.stack(table, dtype=np.int64, casting="unsafe")).to(words.device, non_blocking=True)
    lines = _Lines(*on_device)
    total = int(counts.sum())
    crop_numbers = torch.arange(len(crops.boxes), device=words.device)
    view = torch.repeat_interleave(crop_numbers, lines.count, output_size=total)
    base = lines.corner[view] + (torch.arange(total, device=words.device) - lines.start[view]) * lines.gap[view]
    first_taps, second_taps = _taps(lengths, size), _taps(counts, size)
    if max(first_taps, second_taps) > PADDED_TAPS[-1]:
        run = eagerly
    first_filter = _filter(lines.length, size, first_taps)
    second_filter = _filter(lines.count, size, second_taps)
    resized = run(_resize_lines, words, base, view, lines.step, lines.length - 1, *first_filter)
    turned, mirrored = lines.upright > 0, lines.mirrored > 0
    return run(_resize_across, resized, lines.start, lines.count - 1, turned, mirrored, *second_filter)


def _taps(sides: NDArray[np.int64], out: int) -> int:
    """Return how many pixels an output consists of at most; from the host's numbers, to not wait for the device."""
    taps = 2 * math.ceil(np.max(sides, initial=out) / out) + 1
    for padded in PADDED_TAPS:
        if padded >= taps:
            return padded
    return taps


def _filter(sides: Tensor, out: int, taps: int) -> Filter:
    """Return Pillow's bilinear filters from sides (V,) to `out` pixels."""
    exact: Any = {"device": sides.device, "dtype": torch.float64}
    side, one = sides.double()[:, None], torch.ones((), **exact)
    scale = side / torch.full((), out, **exact)
    support = scale.clamp(min=1)
    centre = (torch.arange(out, **exact) + 0.5) * scale
    first = (centre - support + 0.5).trunc().clamp(min=0)
    end = torch.minimum((centre + support + 0.5).trunc(), side)
    pixel = first[..., None] + torch.arange(taps, **exact)
    distance = ((pixel - centre[..., None] + 0.5) * (one / support)[..., None]).abs()
    weights = torch.where(pixel < end[..., None], (1 - distance).clamp(min=0), 0.0)
    total = torch.zeros_like(centre)
    for tap in range(taps):  # one after the other, as C adds them
        total = total + weights[..., tap]
    whole = (weights / total[..., None] * float(1 << FRACTION_BITS) + 0.5).trunc()
    return first.long(), whole.to(torch.int32)


def _weighted_sum(taps: int, pixel: Callable[[int], Tensor], weight: Callable[[int], Tensor]) -> Tensor:
    """Return words of weighted sums, rounded to bytes."""
    half = 1 << (FRACTION_BITS - 1)
    totals: list[Any] = [half, half, half]
    for tap in range(taps):
        words, amount = pixel(tap), weight(tap)
        for number in range(3):
            totals[number] = totals[number] + channel(words, number) * amount
    return join_channels([(total >> FRACTION_BITS).clamp(0, 255) for total in totals])


def _resize_lines(
    words: Tensor, base: Tensor, view: Tensor, step: Tensor, limit: Tensor, first: Tensor, weights: Tensor
) -> Tensor:
    """Return (lines, out) words, the first side resized. Line r belongs to crop view[r] and begins at base[r]."""
    start, gap, end = first[view], step[view][:, None], limit[view][:, None]

    def pixel(tap: int) -> Tensor:
        return words[base[:, None] + torch.minimum(start + tap, end) * gap]

    def weight(tap: int) -> Tensor:
        return weights[..., tap][view]

    return _weighted_sum(weights.shape[-1], pixel, weight)


def _resize_across(
    lines: Tensor, start: Tensor, limit: Tensor, turned: Tensor, mirrored: Tensor, first: Tensor, weights: Tensor
) -> Tensor:
    """Return (V, out, out) words, the second side resized, turned and mirrored."""
    views, out = first.shape
    position = torch.arange(out, device=lines.device)
    view = torch.arange(views, device=lines.device)[:, None, None]
    x = torch.where(mirrored[:, None, None], out - 1 - position, position)
    y, is_turned = position[:, None], turned[:, None, None]
    along, across = torch.where(is_turned, x, y), torch.where(is_turned, y, x)
    head, begin, end = first[view, along], start[:, None, None], limit[:, None, None]

    def pixel(tap: int) -> Tensor:
        return lines[begin + torch.minimum(head + tap, end), across]

    def weight(tap: int) -> Tensor:
        return weights[..., tap][view, along]

    return _weighted_sum(weights.shape[-1], pixel, weight)
