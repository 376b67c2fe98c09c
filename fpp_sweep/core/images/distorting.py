"""AugMix's plans carried out by torch on many views at once, on any device, with the bytes that `augmix.py` gives.

Four operations are tables of 256 values a channel. Five are affine maps, a shift by whole pixels among them. Positions
and interpolation are in float64, as in Pillow; no product and sum may be rounded as one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly
from fpp_sweep.core.images import augmix
from fpp_sweep.core.images.resampling import channel, join_channels, unpack

TABLE_OPERATIONS = (augmix.AUTOCONTRAST, augmix.EQUALIZE, augmix.POSTERIZE, augmix.SOLARIZE)


def apply_chains(words: Tensor, plan: augmix.MixingPlan, run: Runner = eagerly) -> Tensor:
    """Return (V, 3, S, S) words: the three chains of each view (V, S, S)."""
    views, size, _ = words.shape
    images = words.repeat_interleave(augmix.CHAINS, 0)
    operations = plan.operations.reshape(-1, augmix.MAX_DEPTH)
    levels = plan.levels.reshape(-1, augmix.MAX_DEPTH)
    for depth in range(augmix.MAX_DEPTH):
        _distort(images, operations[:, depth], levels[:, depth], run)
    return images.view(views, augmix.CHAINS, size, size)


def _distort(words: Tensor, operations: NDArray[np.int64], levels: NDArray[np.float64], run: Runner) -> None:
    """Apply one operation at its level to each image of (N, S, S), in the same memory."""
    uses_table = np.isin(operations, TABLE_OPERATIONS)
    moved: list[int] = []
    matrices: list[augmix.Matrix] = []
    for index in np.flatnonzero((operations != augmix.NO_OPERATION) & ~uses_table).tolist():
        matrix = augmix.affine_matrix(operations[index], levels[index], words.shape[-1])
        if matrix is not None:
            moved.append(index)
            matrices.append(matrix)
    if moved:
        rows = _on_device(np.array(moved), words)
        words[rows] = run(transform, words, rows, _on_device(np.array(matrices, np.float64), words))
    changed = np.flatnonzero(uses_table)
    if len(changed):
        rows = _on_device(changed, words)
        words[rows] = run(apply_tables, words, rows, make_tables(words, changed, operations[changed], levels[changed]))


def _on_device(values: NDArray[np.generic], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device, non_blocking=True)


def transform(words: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """Return (N, S, S) words: images `rows` under (N, 6) matrices, bilinear, black outside."""
    size = words.shape[-1]
    position = torch.arange(size, device=words.device, dtype=torch.float64) + 0.5  # centres of pixels
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)  # (N, 1, 1) each
    x = a * position + b * position[:, None] + c  # (N, S, S): each pixel comes from (x, y)
    y = d * position + e * position[:, None] + f
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    x, y = x - 0.5, y - 0.5
    left, top = x.floor(), y.floor()
    right_share, lower_share = x - left, y - top
    # the four pixels around (x, y); beyond an edge, the pixel at the edge
    left_column, right_column = left.long().clamp(0, size - 1), (left.long() + 1).clamp(0, size - 1)
    upper_line, lower_line = top.long().clamp(0, size - 1), (top.long() + 1).clamp(0, size - 1)
    images = rows[:, None, None]
    upper_left, upper_right = words[images, upper_line, left_column], words[images, upper_line, right_column]
    lower_left, lower_right = words[images, lower_line, left_column], words[images, lower_line, right_column]

    def interpolate(left_words: Tensor, right_words: Tensor, number: int) -> Tensor:
        left_values, right_values = channel(left_words, number).double(), channel(right_words, number).double()
        return left_values + (right_values - left_values) * right_share

    channels = []
    for number in range(3):
        upper = interpolate(upper_left, upper_right, number)
        lower = interpolate(lower_left, lower_right, number)
        channels.append((upper + (lower - upper) * lower_share).to(torch.int32))  # cut off, not rounded
    return torch.where(inside, join_channels(channels), 0)


def make_tables(
    words: Tensor, rows: NDArray[np.int64], operations: NDArray[np.int64], levels: NDArray[np.float64]
) -> Tensor:
    """Return (N, 3, 256) int32 tables of operations on images `rows` of (.., S, S) words."""
    values = torch.arange(256, device=words.device, dtype=torch.int32)
    thresholds = np.array([augmix.solarize_threshold(level) for level in levels.tolist()], np.int32)
    threshold = _on_device(thresholds, words)[:, None, None]
    tables = torch.where(values >= threshold, 255 - values, values).repeat(1, 3, 1)
    tables[_on_device(np.flatnonzero(operations == augmix.POSTERIZE), words)] = values & 0xF0
    from_histograms: dict[int, Callable[[Tensor], Tensor]] = {
        augmix.AUTOCONTRAST: autocontrast_tables,
        augmix.EQUALIZE: equalize_tables,
    }
    for operation, make in from_histograms.items():
        indices = np.flatnonzero(operations == operation)
        if len(indices):
            images = words[_on_device(rows[indices], words)]
            tables[_on_device(indices, words)] = make(count_values(images))
    return tables


def count_values(words: Tensor) -> Tensor:
    """Return (N, 3, 256) histograms: whole numbers, so that the order of additions does not matter."""
    values = unpack(words).reshape(len(words), -1, 3).long()
    offsets = torch.arange(3 * len(words), device=words.device).view(-1, 1, 3) * 256
    counts = torch.zeros(3 * 256 * len(words), dtype=torch.int64, device=words.device)
    increments = counts.new_ones(()).expand(values.numel())
    return counts.scatter_add_(0, (values + offsets).flatten(), increments).view(-1, 3, 256)


def autocontrast_tables(counts: Tensor) -> Tensor:
    """Return tables that stretch values: the smallest that occurs becomes 0, the greatest 255."""
    smallest, greatest = _extremes(counts)
    low, high = smallest.double(), greatest.double()
    full = torch.full((), 255, dtype=torch.float64, device=counts.device)
    scale = torch.where(low < high, full / (high - low).clamp(min=1), 1.0)
    offset = torch.where(low < high, -low * scale, 0.0)
    values = torch.arange(256, device=counts.device, dtype=torch.float64)
    return (values * scale + offset).clamp(0, 255).to(torch.int32)


def equalize_tables(counts: Tensor) -> Tensor:
    """Return tables that make all values about equally frequent."""
    _, greatest = _extremes(counts)
    step = (counts.sum(-1, keepdim=True) - counts.gather(-1, greatest)) // 255
    levels = (step // 2 + counts.cumsum(-1) - counts) // step.clamp(min=1)
    values = torch.arange(256, device=counts.device)
    return torch.where(step > 0, levels.clamp(max=255), values).to(torch.int32)


def _extremes(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return (.., 1) the smallest and the greatest value that occurs."""
    present = (counts > 0).to(torch.int32)
    return present.argmax(-1, keepdim=True), 255 - present.flip(-1).argmax(-1, keepdim=True)


def apply_tables(words: Tensor, rows: Tensor, tables: Tensor) -> Tensor:
    """Return (N, S, S) words: the values of images `rows` replaced from (N, 3, 256) tables."""
    table = torch.arange(len(rows), device=words.device)[:, None, None]
    images = words[rows]
    channels = []
    for number in range(3):
        table_of_channel = tables[:, number]  # (N, 256)
        channels.append(table_of_channel[table, channel(images, number)])
    return join_channels(channels)


def mix(words: Tensor, chains: Tensor, weights: Tensor) -> Tensor:
    """Return (V, 3, S, S) float32: views and their chains (V, 3, S, S) by weights (V, 4), added as in `mix_views`."""
    view_weight, *chain_weights = weights[:, :, None, None].unbind(1)
    planes = []
    for number in range(3):
        plane = channel(words, number).float() * view_weight
        for chain, weight in zip(chains.unbind(1), chain_weights, strict=True):
            plane = plane + channel(chain, number).float() * weight
        planes.append(plane)
    return torch.stack(planes, 1)
