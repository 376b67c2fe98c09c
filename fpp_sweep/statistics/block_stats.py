"""A dataset's predictions as sums by block of its images: all that intervals, fronts and races need of them.

Blocks are of consecutive images in one fixed order, the same for every trial and sweep, and have a power of two of
images: blocks of a few add up to blocks of many, and every shard is whole blocks of up to 64 images. Entries are
integers or on a grid so coarse that float64 adds them exactly, so that no cut changes a bit.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.core.datasets.sample_order import fair_order
from fpp_sweep.core.metrics import BINS, EDGES, Confidences, Predictions, bin_indices, round_to_grid, sum_by_cell
from fpp_sweep.spec.errors import InputError

LEAST_BLOCKS = 64  # of a dataset that has as many images; fewer give too rough a standard deviation
CELLS = 10  # of each bin of ECE: what smooth ECE is made from
POINTS = 40  # where the smoothed residual is looked at
WIDTH = 0.1  # of its Gaussian kernel, in units of confidence
_LOSS = 2.0**-30  # the grid of NLL and Brier score: exact sums of 2^16 images and more
_ZS = np.linspace(0, 6, 3073)
# how much larger than |m| the mean of |N(m, 1)| is, by |m|
_EXCESS = np.array([math.sqrt(2 / math.pi) * math.exp(-z * z / 2) - z * math.erfc(z / math.sqrt(2)) for z in _ZS])

Numbers = NDArray[np.float64]


def block_size(samples: int) -> int:
    """Images of a block: a power of two, with as many blocks as a standard deviation needs.

    >>> [block_size(samples) for samples in (50, 200, 1000, 5000, 50000)]
    [1, 2, 8, 64, 512]
    """
    return 1 << max(0, (samples // LEAST_BLOCKS).bit_length() - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockStats:
    """Of one dataset and seed, a row for each block; all but `size` add up."""

    size: int  # images of a block; the last may have fewer
    digests: NDArray[np.uint64]  # sums of hashes of the images' names: equal where the images are
    images: NDArray[np.int64]
    correct: NDArray[np.int64]
    counts: NDArray[np.int64]  # (blocks, BINS): images by confidence
    hits: NDArray[np.int64]  # (blocks, BINS): those that are right
    residuals: Numbers  # (blocks, BINS * CELLS): correct minus confidence
    nll: Numbers
    brier: Numbers

    @classmethod
    def of(
        cls, dataset: str, ids: Sequence[str], confidences: Confidences, nll: Numbers, brier: Numbers, size: int = 0
    ) -> BlockStats:
        """Of predictions in any order."""
        order, digests = fair_order(dataset, ids)
        confidence, correct = confidences.confidence[order], confidences.correct[order]
        size = size or block_size(len(order))
        block = np.arange(len(order)) // size
        blocks, bins = int(block[-1]) + 1, bin_indices(confidence)
        inside = bins >= 0
        in_bin = (block * BINS + bins)[inside]
        in_cell = (block * BINS * CELLS + _cell_of(confidence, bins))[inside]

        def counted(where: NDArray[np.int64], width: int) -> NDArray[np.int64]:
            return np.bincount(where, minlength=blocks * width).reshape(blocks, width).astype(np.int64)

        def added(values: Numbers) -> Numbers:
            return sum_by_cell(block, np.rint(values[order] / _LOSS) * _LOSS, blocks)

        residuals = sum_by_cell(in_cell, (correct - round_to_grid(confidence))[inside], blocks * BINS * CELLS)
        return cls(
            size=size,
            digests=np.add.reduceat(digests, np.arange(0, len(order), size)),
            images=counted(block, 1)[:, 0],
            correct=counted(block[correct], 1)[:, 0],
            counts=counted(in_bin, BINS),
            hits=counted(in_bin[correct[inside]], BINS),
            residuals=residuals.reshape(blocks, BINS * CELLS),
            nll=added(nll),
            brier=added(brier),
        )

    @classmethod
    def of_predictions(cls, dataset: str, predictions: Predictions) -> BlockStats:
        confidences = Confidences(predictions.confidence, predictions.correct)
        return cls.of(dataset, predictions.ids, confidences, predictions.nll, predictions.brier)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def total(self) -> int:
        """Images of all blocks."""
        return int(self.images.sum())

    def by(self, size: int) -> BlockStats:
        """The same in larger blocks."""
        if size % self.size:
            raise InputError(f"blocks of {self.size} images do not make blocks of {size}")
        starts = np.arange(0, len(self), size // self.size)
        return self._with(size, lambda values: np.add.reduceat(values, starts))

    def take(self, blocks: Any) -> BlockStats:
        """Some of the blocks: a slice, positions or a mask."""
        return self._with(self.size, lambda values: values[blocks])

    def _with(self, size: int, change: Callable[[NDArray[Any]], NDArray[Any]]) -> BlockStats:
        return BlockStats(size=size, **{name: change(getattr(self, name)) for name in _ARRAYS})


_ARRAYS = tuple(item.name for item in fields(BlockStats) if item.name != "size")


def _cell_of(confidence: NDArray[np.float32], bins: NDArray[np.int64]) -> NDArray[np.int64]:
    within = (confidence.astype(np.float64) - EDGES[bins]) * (BINS * CELLS)
    return bins * CELLS + np.clip(within.astype(np.int64), 0, CELLS - 1)


def on_shared_blocks(trials: Sequence[BlockStats]) -> list[BlockStats]:
    """One dataset's sums of several trials on the blocks that all of them have, of the same images."""
    size = max(one.size for one in trials)
    coarse = [one.by(size) for one in trials]
    blocks = min(map(len, coarse))
    digests = np.stack([one.digests[:blocks] for one in coarse])
    same = (digests == digests[0]).all(axis=0)
    if not same.any():
        raise InputError("a paired difference needs the same images on both sides")
    everything = same.all() and all(len(one) == blocks for one in coarse)
    return coarse if everything else [one.take(np.flatnonzero(same)) for one in coarse]


Table = Mapping[tuple[str, int], BlockStats]  # by dataset and seed


def united(one: Table, other: Table) -> Table:
    """A trial's sums over other images with the same seeds, or with other seeds over the same images.

    Where only some seeds are the same, the other table alone.
    """
    if one.keys() != other.keys():
        return other if one.keys() & other.keys() else {**one, **other}
    return {key: _concatenated(one[key], other[key]) for key in one}


def _concatenated(*parts: BlockStats) -> BlockStats:
    size = max(part.size for part in parts)
    rows = [part.by(size) for part in parts]
    return BlockStats(size=size, **{name: np.concatenate([getattr(row, name) for row in rows]) for name in _ARRAYS})


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """The images and seeds that several trials have in common."""

    datasets: Mapping[str, BlockStats]  # whoever's: their digests tell which images
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, table: Mapping[tuple[str, int], BlockStats]) -> Common:
        """All that one trial has."""
        return cls({dataset: one for (dataset, _), one in table.items()}, tuple(sorted({seed for _, seed in table})))

    @property
    def images(self) -> dict[str, int]:
        return {dataset: one.total for dataset, one in self.datasets.items()}

    def shared(self, other: Common) -> Common:
        """What both have; perhaps nothing."""
        datasets = {}
        for name, one in self.datasets.items():
            with suppress(KeyError, InputError):  # another dataset, or other images
                datasets[name] = on_shared_blocks([one, other.datasets[name]])[0]
        return Common(datasets, tuple(seed for seed in self.seeds if seed in other.seeds))

    def taken(self, table: Mapping[tuple[str, int], BlockStats]) -> dict[tuple[str, int], BlockStats]:
        """A trial's sums over these images and seeds; nothing where it lacks one."""
        found = {}
        for name, known in self.datasets.items():
            for seed in self.seeds:
                one = table.get((name, seed))
                if one is None or known.size % one.size:
                    return {}
                coarse = one.by(known.size)
                found[name, seed] = part = coarse.take(np.isin(coarse.digests, known.digests))
                if len(part) != len(known):
                    return {}
        return found


# --- the metrics, as functions of sums -------------------------------------------------------------


def _smoothing() -> Numbers:
    """(BINS * CELLS, POINTS): the share of a residual that a Gaussian kernel, reflected at 0 and 1, puts at a point."""
    cells = (np.arange(BINS * CELLS) + 0.5)[:, None] / (BINS * CELLS)
    points = (np.arange(POINTS) + 0.5) / POINTS
    kernel: Numbers = sum(  # type: ignore[assignment]
        np.exp(-0.5 * ((image - cells) / WIDTH) ** 2) for image in (points, -points, 2 - points, points - 2, points + 2)
    )
    kernel /= kernel.sum(axis=1, keepdims=True)
    return kernel


SMOOTHING = _smoothing()


def _column(name: str) -> Callable[[BlockStats], Numbers]:
    return lambda one: np.asarray(getattr(one, name)[:, None], np.float64)


def _gaps(one: BlockStats) -> Numbers:
    """(blocks, BINS): the residuals of the bins of ECE."""
    gaps: Numbers = one.residuals.reshape(len(one), BINS, CELLS).sum(axis=2)
    return gaps


def _binned(one: BlockStats) -> Numbers:
    return np.concatenate([_gaps(one), one.counts, one.hits], axis=1, dtype=np.float64)


def _absolute(totals: Numbers) -> Numbers:
    return np.asarray(np.abs(totals).sum(axis=-1))


def _without_bias(totals: Numbers) -> Numbers:
    """The sum of |residual| less what chance adds to it: the mean of |N(residual, its variance)| is larger."""
    gaps, counts, hits = np.split(totals, 3, axis=-1)
    spread = np.sqrt(hits * (counts - hits) / np.maximum(counts, 1))
    gaps = np.abs(gaps)
    excess = spread * np.interp(gaps / np.maximum(spread, 1e-12), _ZS, _EXCESS, right=0.0)
    return np.asarray(np.maximum(0.0, (gaps - excess).sum(axis=-1)))


@dataclass(frozen=True, slots=True)
class Additive:
    """A metric that follows from sums: which columns of each block, and what their totals come to."""

    columns: Callable[[BlockStats], Numbers]  # (blocks, columns)
    value: Callable[[Numbers], Numbers]  # totals (..., columns) -> (...), to be divided by the number of images
    scale: float = 100.0


def _only(totals: Numbers) -> Numbers:
    return np.asarray(totals[..., 0])


ADDITIVE: Mapping[str, Additive] = {
    "accuracy": Additive(_column("correct"), _only),
    "ece": Additive(_gaps, _absolute),
    "debiased_ece": Additive(_binned, _without_bias),
    "smooth_ece": Additive(lambda one: one.residuals @ SMOOTHING, _absolute),
    "nll": Additive(_column("nll"), _only, 1.0),
    "brier": Additive(_column("brier"), _only, 1.0),
}


def value_of(metric: str, one: BlockStats) -> float:
    """A metric over all blocks."""
    row = ADDITIVE[metric]
    whole = one.take(slice(0, len(one)))._with(one.size, lambda values: values.sum(axis=0, keepdims=True))
    return float(row.scale * row.value(row.columns(whole)[0]) / one.total)


def debiased_error(predictions: Predictions) -> float:
    """ECE less what the chance of few images adds to it."""
    return value_of("debiased_ece", BlockStats.of_predictions("", predictions))


def smooth_error(predictions: Predictions) -> float:
    """Smooth ECE: the mean of |residual|, smoothed over confidences instead of binned."""
    return value_of("smooth_ece", BlockStats.of_predictions("", predictions))


# --- files -----------------------------------------------------------------------------------------


def packed(table: Mapping[tuple[str, int], BlockStats]) -> bytes:
    """Sums by dataset and seed as the bytes of a compressed .npz file, of few arrays: to read one takes 0.1 ms."""
    joined = {name: np.concatenate([getattr(one, name) for one in table.values()]) for name in _ARRAYS}
    residuals = joined.pop("residuals")
    cells = np.flatnonzero(residuals)  # few of them have an image
    index = [[*key, one.size, len(one)] for key, one in table.items()]
    arrays: dict[str, Any] = {
        "index": np.frombuffer(json.dumps(index).encode(), np.uint8),
        "cells": cells.astype(np.int32),
        "values": residuals.flat[cells],
        # counts of a block fit 32 bits
        **{name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in joined.items()},
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpacked(data: bytes) -> dict[tuple[str, int], BlockStats]:
    """What `packed` was given; ValueError of anything else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        index = json.loads(arrays.pop("index").tobytes())
        residuals = np.zeros((sum(row[3] for row in index), BINS * CELLS))
        residuals.flat[arrays.pop("cells")] = arrays.pop("values")
        wide = {name: array.astype(np.int64) if array.dtype == np.int32 else array for name, array in arrays.items()}
        ends = np.cumsum([row[3] for row in index]).tolist()
        everything = BlockStats(size=1, residuals=residuals, **wide)
        return {
            (dataset, seed): everything.take(slice(end - blocks, end))._with(size, lambda values: values)
            for (dataset, seed, size, blocks), end in zip(index, ends, strict=True)
        }
    except Exception as error:  # NumPy and zipfile raise nearly anything on a damaged file
        raise ValueError(f"no sums ({type(error).__name__})") from error
