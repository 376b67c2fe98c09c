"""Pillow's resizing of many crops at once, in whole numbers: the same bytes on any device that torch has.

An image is a row of words, one for each pixel, with its three bytes in the lowest bits. Pillow weights pixels by whole
numbers with 22 fractional bits and rounds to bytes after each side. Its weights come from float64. So no product and
sum may be rounded as one, and divisors must be tensors: a GPU multiplies by the reciprocal of a plain number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly

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


class Filter(NamedTuple):
    """A bilinear filter from one side of each of V crops to `out` pixels: an output is a sum over its taps."""

    first: Tensor  # (V, out) the pixel at the first tap of each output
    weights: Tensor  # (V, out, taps) int32, of that pixel and those after it


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """The lines of V crops, one crop after another, on the device.

    A line is what the first pass of a resize shortens: a row of pixels, or a column where the height goes first.
    """

    corner: Tensor  # (V,) the word of a crop's upper left pixel
    pixel_step: Tensor  # (V,) words from a pixel to the next one of its line
    line_step: Tensor  # (V,) words from a line to the next one of its crop
    length: Tensor  # (V,) pixels of a line
    count: Tensor  # (V,) lines of a crop
    first_line: Tensor  # (V,) a crop's first line, counted over all crops
    is_column: Tensor  # (V,) 1 where lines are columns
    mirrored: Tensor  # (V,) 1 where the crop is mirrored


def resize(words: Tensor, crops: Crops, size: int, run: Runner = eagerly) -> Tensor:
    """Return (V, size, size) words: each crop resized with the bilinear filter as `views.resize` does it.

    The first pass resizes each line of a crop, the second pass resizes across the lines.
    """
    left, top, right, bottom = crops.boxes.T
    widths, heights = right - left, bottom - top
    height_first = heights - size > 2 * np.maximum(widths - size, 0)  # as `views.resize` decides
    lengths = np.where(height_first, heights, widths)
    counts = np.where(height_first, widths, heights)
    fields = {
        "corner": crops.origins + left + top * crops.strides,
        "pixel_step": np.where(height_first, crops.strides, 1),
        "line_step": np.where(height_first, 1, crops.strides),
        "length": lengths,
        "count": counts,
        "first_line": counts.cumsum() - counts,
        "is_column": height_first,
        "mirrored": crops.mirrored,
    }
    table = torch.from_numpy(np.stack(list(fields.values()), dtype=np.int64, casting="unsafe"))
    on_device = table.to(words.device, non_blocking=True)  # one transfer for all fields
    lines = _Lines(**dict(zip(fields, on_device, strict=True)))
    total = int(counts.sum())
    crop_numbers = torch.arange(len(crops.boxes), device=words.device)
    crop_of_line = torch.repeat_interleave(crop_numbers, lines.count, output_size=total)  # (lines,)
    number_in_crop = torch.arange(total, device=words.device) - lines.first_line[crop_of_line]
    line_starts = lines.corner[crop_of_line] + number_in_crop * lines.line_step[crop_of_line]  # (lines,) words
    first_taps, second_taps = _taps(lengths, size), _taps(counts, size)
    if max(first_taps, second_taps) > PADDED_TAPS[-1]:
        run = eagerly
    along = _filter(lines.length, size, first_taps)
    across = _filter(lines.count, size, second_taps)
    last_pixel, last_line = lines.length - 1, lines.count - 1
    resized = run(_resize_lines, words, line_starts, crop_of_line, lines.pixel_step, last_pixel, *along)
    is_column, mirrored = lines.is_column > 0, lines.mirrored > 0
    return run(_resize_across, resized, lines.first_line, last_line, is_column, mirrored, *across)


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
    side, one = sides.double()[:, None], torch.ones((), **exact)  # (V, 1), ()
    scale = side / torch.full((), out, **exact)
    support = scale.clamp(min=1)  # half of the filter's width, in pixels: it widens where a side shrinks
    centre = (torch.arange(out, **exact) + 0.5) * scale  # (V, out)
    first = (centre - support + 0.5).trunc().clamp(min=0)
    end = torch.minimum((centre + support + 0.5).trunc(), side)
    pixel = first[..., None] + torch.arange(taps, **exact)  # (V, out, taps)
    distance = ((pixel - centre[..., None] + 0.5) * (one / support)[..., None]).abs()
    weights = torch.where(pixel < end[..., None], (1 - distance).clamp(min=0), 0.0)
    total = torch.zeros_like(centre)
    for tap in range(taps):  # one after the other, as C adds them
        total = total + weights[..., tap]
    whole = (weights / total[..., None] * float(1 << FRACTION_BITS) + 0.5).trunc()
    return Filter(first.long(), whole.to(torch.int32))


def _weighted_sum(taps: int, pixel: Callable[[int], Tensor], weight: Callable[[int], Tensor]) -> Tensor:
    """Return words whose channels are sums of pixel(tap) times weight(tap) over the taps, rounded to bytes."""
    half = 1 << (FRACTION_BITS - 1)
    totals: list[Any] = [half, half, half]
    for tap in range(taps):
        words, amount = pixel(tap), weight(tap)
        for number in range(3):
            totals[number] = totals[number] + channel(words, number) * amount
    return join_channels([(total >> FRACTION_BITS).clamp(0, 255) for total in totals])


def _resize_lines(
    words: Tensor,
    line_starts: Tensor,
    crop_of_line: Tensor,
    pixel_step: Tensor,
    last_pixel: Tensor,
    first: Tensor,
    weights: Tensor,
) -> Tensor:
    """Return (lines, out) words: every line resized to `out` pixels.

    The first pixel of line r is words[line_starts[r]], and the line belongs to crop crop_of_line[r]. The other
    arguments are one row for each crop.
    """
    first_of_line = first[crop_of_line]  # (lines, out)
    step, last = pixel_step[crop_of_line][:, None], last_pixel[crop_of_line][:, None]  # (lines, 1)

    def pixel(tap: int) -> Tensor:
        position = torch.minimum(first_of_line + tap, last)  # taps beyond a line's end have weight 0
        return words[line_starts[:, None] + position * step]

    def weight(tap: int) -> Tensor:
        return weights[..., tap][crop_of_line]

    return _weighted_sum(weights.shape[-1], pixel, weight)


def _resize_across(
    lines: Tensor,
    first_line: Tensor,
    last_line: Tensor,
    is_column: Tensor,
    mirrored: Tensor,
    first: Tensor,
    weights: Tensor,
) -> Tensor:
    """Return (V, out, out) words: the resized lines (lines, out) of each crop resized across, upright and mirrored.

    Where lines are rows, the pixel at (y, x) is a sum of the pixels x of lines first[y], first[y] + 1, ... of its crop.
    Where they are columns, it is a sum of the pixels y of lines first[x], first[x] + 1, ...
    """
    crops, out = first.shape
    position = torch.arange(out, device=lines.device)
    crop = torch.arange(crops, device=lines.device)[:, None, None]
    y = position[:, None]
    x = torch.where(mirrored[:, None, None], out - 1 - position, position)  # (V, 1, out)
    turned = is_column[:, None, None]
    across, along = torch.where(turned, x, y), torch.where(turned, y, x)  # (V, out, out)
    first_of_pixel = first[crop, across]
    begin, last = first_line[:, None, None], last_line[:, None, None]

    def pixel(tap: int) -> Tensor:
        number_in_crop = torch.minimum(first_of_pixel + tap, last)  # taps beyond the last line have weight 0
        return lines[begin + number_in_crop, along]

    def weight(tap: int) -> Tensor:
        return weights[..., tap][crop, across]

    return _weighted_sum(weights.shape[-1], pixel, weight)
