"""Pillow's resizing of many crops at once, in whole numbers: the same bytes, on any device torch has.

An image is a row of words, one for each pixel, with its three bytes in the lowest bits. Pillow weights pixels by whole
numbers with 22 fractional bits and rounds to bytes after each side. Its weights come from float64, of which no product
and sum may be rounded as one, and nothing is divided by a plain number: a GPU would multiply by the reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly

Filter = tuple[Tensor, Tensor]  # (V, out) the first pixel that each output takes, (V, out, taps) int32 weights from it

BITS = 22  # of a weight's fraction
TAPS = (
    3,
    5,
    9,
    17,
)  # numbers of weights that are filled up to, so that few forms of the loop are compiled; more stay eager


def pack(pixels: Tensor) -> Tensor:
    """(..., 3) bytes to (...) words."""
    padded = pixels.new_zeros(*pixels.shape[:-1], 4)
    padded[..., :3] = pixels
    return padded.view(torch.int32).squeeze(-1)


def unpack(words: Tensor) -> Tensor:
    """(...) words to (..., 3) bytes."""
    return words.contiguous().view(torch.uint8).view(*words.shape, 4)[..., :3]


def channel(words: Tensor, number: int) -> Tensor:
    return (words >> (8 * number)) & 255


def joined(channels: list[Tensor]) -> Tensor:
    red, green, blue = channels
    return red | (green << 8) | (blue << 16)


def resize(
    words: Tensor,
    origins: NDArray[np.int64],
    strides: NDArray[np.int64],
    boxes: NDArray[np.int64],
    mirrored: NDArray[np.bool_],
    size: int,
    run: Runner = eagerly,
) -> Tensor:
    """(V, size, size) words: each box of its image, resized with the bilinear filter as `views.resize` does it.

    View v's image begins at word origins[v] and has rows of strides[v]. The lines of all crops are one list. Crops that
    are shrunk in height first have columns for lines.
    """
    left, top, right, bottom = boxes.T
    widths, heights = right - left, bottom - top
    upright = heights - size > 2 * np.maximum(widths - size, 0)
    lengths, counts = np.where(upright, heights, widths), np.where(upright, widths, heights)
    host = (
        origins + left + top * strides,
        np.where(upright, strides, 1),
        np.where(upright, 1, strides),
        *(lengths, counts, counts.cumsum() - counts, upright, mirrored),
    )
    table = torch.from_numpy(np.stack([np.asarray(row, np.int64) for row in host]))
    corner, step, gap, length, count, start, upended, mirror = table.to(words.device, non_blocking=True)
    total = int(counts.sum())
    view = torch.repeat_interleave(torch.arange(len(boxes), device=words.device), count, output_size=total)
    base = corner[view] + (torch.arange(total, device=words.device) - start[view]) * gap[view]
    taps, more = _taps(lengths, size), _taps(counts, size)
    run = run if max(taps, more) <= TAPS[-1] else eagerly
    lines = run(_lines, words, base, view, step, length - 1, *_filter(length, size, taps))
    return run(_squares, lines, start, count - 1, upended > 0, mirror > 0, *_filter(count, size, more))


def _taps(sides: NDArray[np.int64], out: int) -> int:
    """Pixels that an output can be made of, at most; from the host's numbers, so that no device is waited for."""
    taps = 2 * math.ceil(np.max(sides, initial=out) / out) + 1
    return next((number for number in TAPS if number >= taps), taps)


def _filter(sides: Tensor, out: int, taps: int) -> Filter:
    """Pillow's bilinear filters from sides (V,) to `out` pixels."""
    exact: Any = {"device": sides.device, "dtype": torch.float64}
    side, one = sides.double()[:, None], torch.ones((), **exact)
    scale = side / torch.full((), out, **exact)
    support = scale.clamp(min=1)
    centre = (torch.arange(out, **exact) + 0.5) * scale
    first = (centre - support + 0.5).trunc().clamp(min=0)
    end = torch.minimum((centre + support + 0.5).trunc(), side)
    pixel = first[..., None] + torch.arange(taps, **exact)
    distance = ((pixel - centre[..., None] + 0.5) * (one / support)[..., None]).abs()
    amounts = torch.where(pixel < end[..., None], (1 - distance).clamp(min=0), 0.0)
    total = torch.zeros_like(centre)
    for tap in range(taps):  # one after the other, as C adds them
        total = total + amounts[..., tap]
    whole = (amounts / total[..., None] * float(1 << BITS) + 0.5).trunc()
    return first.long(), whole.to(torch.int32)


def _sum(taps: int, pixel: Callable[[int], Tensor], weight: Callable[[int], Tensor]) -> Tensor:
    """Words of weighted sums."""
    totals: list[Tensor | int] = [1 << (BITS - 1)] * 3
    for tap in range(taps):
        words, amount = pixel(tap), weight(tap)
        totals = [total + channel(words, number) * amount for number, total in enumerate(totals)]
    return joined([(total >> BITS).clamp(0, 255) for total in totals])  # type: ignore[union-attr]


def _lines(
    words: Tensor, base: Tensor, view: Tensor, step: Tensor, limit: Tensor, first: Tensor, amounts: Tensor
) -> Tensor:
    """(lines, out) words: the first side. Line r is of view[r] and begins at base[r]."""
    start, gap, end = first[view], step[view][:, None], limit[view][:, None]

    def pixel(tap: int) -> Tensor:
        return words[base[:, None] + torch.minimum(start + tap, end) * gap]

    return _sum(amounts.shape[-1], pixel, lambda tap: amounts[..., tap][view])


def _squares(
    lines: Tensor, start: Tensor, limit: Tensor, upended: Tensor, mirror: Tensor, first: Tensor, amounts: Tensor
) -> Tensor:
    """(V, out, out) words: the second side, turned and mirrored."""
    views, out = first.shape
    place = torch.arange(out, device=lines.device)
    view = torch.arange(views, device=lines.device)[:, None, None]
    x = torch.where(mirror[:, None, None], out - 1 - place, place)
    y, turned = place[:, None], upended[:, None, None]
    along, across = torch.where(turned, x, y), torch.where(turned, y, x)
    head, begin, end = first[view, along], start[:, None, None], limit[:, None, None]

    def pixel(tap: int) -> Tensor:
        return lines[begin + torch.minimum(head + tap, end), across]

    return _sum(amounts.shape[-1], pixel, lambda tap: amounts[..., tap][view, along])
