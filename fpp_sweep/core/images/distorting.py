"""AugMix's plans carried out by torch on many views at once, with the bytes of `augmix.py`, on any device.

Four operations are tables of 256 values a channel, five are maps of places, a shift by whole pixels among them. Places
and what lies between pixels are float64, as in Pillow; no product and sum may be rounded as one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly
from fpp_sweep.core.images import augmix
from fpp_sweep.core.images.resampling import channel, joined, unpack

TABLES = (augmix.AUTOCONTRAST, augmix.EQUALIZE, augmix.POSTERIZE, augmix.SOLARIZE)


def chains(words: Tensor, mixing: augmix.Mixing, run: Runner = eagerly) -> Tensor:
    """(V, 3, S, S) words: the three chains of (V, S, S)."""
    views, size, _ = words.shape
    moving = words.repeat_interleave(augmix.CHAINS, 0)
    depth = augmix.MAX_DEPTH
    steps = zip(mixing.operations.reshape(-1, depth).T, mixing.levels.reshape(-1, depth).T, strict=True)
    for operation, level in steps:
        _distort(moving, operation, level, run)
    return moving.view(views, augmix.CHAINS, size, size)


def _distort(words: Tensor, operations: NDArray[np.int64], levels: NDArray[np.float64], run: Runner) -> None:
    """One operation at its level on each of (N, S, S)."""
    size = words.shape[-1]
    tabled = np.flatnonzero(np.isin(operations, TABLES))
    moved = np.flatnonzero((operations != augmix.NOTHING) & ~np.isin(operations, TABLES))
    maps = [augmix.matrix(operations[row], levels[row], size) for row in moved.tolist()]
    moved = moved[[each is not None for each in maps]]
    if len(moved):
        rows = _sent(moved, words)
        words[rows] = run(affine, words, rows, _sent(np.array([each for each in maps if each]), words))
    if len(tabled):
        rows = _sent(tabled, words)
        tables = tables_of(words, tabled, operations[tabled], levels[tabled])
        words[rows] = run(look_up, words, rows, tables)


def _sent(values: NDArray[np.generic], to: Tensor) -> Tensor:
    return torch.from_numpy(values).to(to.device, non_blocking=True)


def affine(words: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """(N, S, S) words: images `rows` under (N, 6) matrices, bilinear, black outside."""
    size = words.shape[-1]
    place = torch.arange(size, device=words.device, dtype=torch.float64) + 0.5
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)
    x = a * place + b * place[:, None] + c
    y = d * place + e * place[:, None] + f
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    x, y = x - 0.5, y - 0.5
    left, top = x.floor(), y.floor()
    right_share, low_share = x - left, y - top
    columns = [(left.long() + shift).clamp(0, size - 1) for shift in (0, 1)]
    lines = [(top.long() + shift).clamp(0, size - 1) for shift in (0, 1)]
    near = [words[rows[:, None, None], line, column] for line in lines for column in columns]

    def between(number: int) -> Tensor:
        p, q, r, s = (channel(pixel, number).double() for pixel in near)
        upper = p + (q - p) * right_share
        lower = r + (s - r) * right_share
        return (upper + (lower - upper) * low_share).to(torch.int32)  # cut off, not rounded

    return torch.where(inside, joined([between(number) for number in range(3)]), 0)


def tables_of(
    words: Tensor, rows: NDArray[np.int64], operations: NDArray[np.int64], levels: NDArray[np.float64]
) -> Tensor:
    """(N, 3, 256) int32 tables of operations on images `rows` of (.., S, S) words."""
    values = torch.arange(256, device=words.device, dtype=torch.int32)
    edges = [augmix.solarized_from(level) for level in levels.tolist()]
    edge = _sent(np.array(edges, np.int32), words)[:, None, None]
    tables = torch.where(values >= edge, 255 - values, values).repeat(1, 3, 1)
    tables[_sent(np.flatnonzero(operations == augmix.POSTERIZE), words)] = values & 0xF0
    makers: dict[int, Callable[[Tensor], Tensor]] = {augmix.AUTOCONTRAST: stretched, augmix.EQUALIZE: equalized}
    for operation, make in makers.items():
        own = np.flatnonzero(operations == operation)
        if len(own):
            tables[_sent(own, words)] = make(histograms(words[_sent(rows[own], words)]))
    return tables


def histograms(words: Tensor) -> Tensor:
    """(N, 3, 256) counts: whole numbers, so that no order of additions matters."""
    values = unpack(words).reshape(len(words), -1, 3).long()
    places = torch.arange(3 * len(words), device=words.device).view(-1, 1, 3) * 256
    counts = torch.zeros(3 * 256 * len(words), dtype=torch.int64, device=words.device)
    ones = counts.new_ones(()).expand(values.numel())
    return counts.scatter_add_(0, (values + places).flatten(), ones).view(-1, 3, 256)


def stretched(counts: Tensor) -> Tensor:
    """Autocontrast's tables: from the least value there is to 0, from the greatest to 255."""
    low, high = (each.double() for each in _extremes(counts))
    full = torch.full((), 255, dtype=torch.float64, device=counts.device)
    scale = torch.where(low < high, full / (high - low).clamp(min=1), 1.0)
    offset = torch.where(low < high, -low * scale, 0.0)
    values = torch.arange(256, device=counts.device, dtype=torch.float64)
    return (values * scale + offset).clamp(0, 255).to(torch.int32)


def equalized(counts: Tensor) -> Tensor:
    _, high = _extremes(counts)
    step = (counts.sum(-1, keepdim=True) - counts.gather(-1, high)) // 255
    levels = (step // 2 + counts.cumsum(-1) - counts) // step.clamp(min=1)
    values = torch.arange(256, device=counts.device)
    return torch.where(step > 0, levels.clamp(max=255), values).to(torch.int32)


def _extremes(counts: Tensor) -> tuple[Tensor, Tensor]:
    """(.., 1) the least and the greatest value with a count."""
    present = (counts > 0).to(torch.int32)
    return present.argmax(-1, keepdim=True), 255 - present.flip(-1).argmax(-1, keepdim=True)


def look_up(words: Tensor, rows: Tensor, tables: Tensor) -> Tensor:
    """(N, S, S) words: the values of images `rows` replaced from (N, 3, 256) tables."""
    table = torch.arange(len(rows), device=words.device)[:, None, None]
    picked = words[rows]
    return joined([tables[:, number][table, channel(picked, number)] for number in range(3)])


def mixed(words: Tensor, moved: Tensor, weights: Tensor) -> Tensor:
    """(V, 3, S, S) float32: views and their chains (V, 3, S, S), weighted; added in the order of `augmix.mix`."""
    parts, shares = [words, *moved.unbind(1)], weights[:, :, None, None].unbind(1)

    def plane(number: int) -> Tensor:
        first, *others = (channel(part, number).float() * share for part, share in zip(parts, shares, strict=True))
        return sum(others, start=first)

    return torch.stack([plane(number) for number in range(3)], 1)
