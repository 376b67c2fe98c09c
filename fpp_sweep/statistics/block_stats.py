"""Per-block sufficient statistics of predictions: everything that intervals, tests and fronts need of a trial.

The images of a dataset have one fixed order, the same for every trial and sweep, and are cut into blocks of consecutive
images. A block holds sums over its images. All sums are of integers or of multiples of a coarse step, which float64
adds exactly: the way in which the work is cut changes no bit.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fpp_sweep.core.datasets import fair_order
from fpp_sweep.core.metrics import BINS, EDGES, Confidences, Predictions, bin_indices, round_to_grid, sum_by_cell
from fpp_sweep.spec.specs import DatasetSeed

MIN_BLOCKS = 64  # blocks of a dataset that has at least as many images; from fewer, a standard deviation is too rough
CELLS = 10  # cells in each bin of ECE; smooth ECE is computed from the residuals of cells
KERNEL_POINTS = 40  # confidences at which the smoothed residual is evaluated
KERNEL_WIDTH = 0.1  # standard deviation of smooth ECE's Gaussian kernel, in units of confidence
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)  # stands for 0 in a logarithm, as in the NLL
_LOSS_STEP = 2.0**-30  # losses are rounded to multiples, so that 2^16 and more of them add exactly


def _excess_of_absolute(mean: float) -> float:
    """Return how much the mean of |x| exceeds `mean`, where x is normal with this mean and variance 1."""
    return math.sqrt(2 / math.pi) * math.exp(-mean * mean / 2) - mean * math.erfc(mean / math.sqrt(2))


# a table for interpolation; beyond a mean of 6 the excess is taken as zero
_NORMAL_MEANS = np.linspace(0, 6, 3073)
_EXCESS = np.array([_excess_of_absolute(mean) for mean in _NORMAL_MEANS])

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]


def block_size(samples: int) -> int:
    """Return the images per block: the largest power of two that leaves at least MIN_BLOCKS blocks, or 1.

    >>> [block_size(samples) for samples in (50, 200, 1000, 5000, 50000)]
    [1, 2, 8, 64, 512]
    """
    size = 1
    while samples >= 2 * size * MIN_BLOCKS:
        size *= 2
    return size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockStats:
    """Statistics of one dataset and seed: arrays with a row for each block."""

    digests: NDArray[np.uint64]  # sums of hashes of image names; equal digests mean equal images
    images: Integers
    correct: Integers
    counts: Integers  # (blocks, BINS): images by confidence
    hits: Integers  # (blocks, BINS): correctly classified images by confidence
    residuals: Numbers  # (blocks, BINS * CELLS): sums of correct minus confidence
    nll: Numbers
    brier: Numbers

    @classmethod
    def of(cls, dataset: str, ids: Sequence[str], confidences: Confidences, nll: Numbers, brier: Numbers) -> BlockStats:
        """Compute the statistics of predictions in any order."""
        order, digests = fair_order(dataset, ids)
        confidence = confidences.confidence[order]
        correct = confidences.correct[order]
        size = block_size(len(order))
        block_of_image = np.arange(len(order)) // size
        blocks = int(block_of_image[-1]) + 1
        bins = bin_indices(confidence)
        has_bin = bins >= 0  # a confidence of exactly 0 has none
        bin_index = (block_of_image * BINS + bins)[has_bin]  # flat index into (blocks, BINS)
        cell_index = (block_of_image * BINS * CELLS + _cell_of(confidence, bins))[has_bin]
        residual = (correct - round_to_grid(confidence))[has_bin]

        def by_block(losses: Numbers) -> Numbers:
            return sum_by_cell(block_of_image, _rounded_loss(losses), blocks)

        return cls(
            digests=np.add.reduceat(digests, np.arange(0, len(order), size)),
            images=_count(block_of_image, blocks, 1)[:, 0],
            correct=_count(block_of_image[correct], blocks, 1)[:, 0],
            counts=_count(bin_index, blocks, BINS),
            hits=_count(bin_index[correct[has_bin]], blocks, BINS),
            residuals=sum_by_cell(cell_index, residual, blocks * BINS * CELLS).reshape(blocks, BINS * CELLS),
            nll=by_block(nll[order]),
            brier=by_block(brier[order]),
        )

    @classmethod
    def of_predictions(cls, dataset: str, predictions: Predictions) -> BlockStats:
        confidences = Confidences(predictions.confidence, predictions.correct)
        return cls.of(dataset, predictions.ids, confidences, predictions.nll, predictions.brier)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.images)

    @property
    def bin_residuals(self) -> Numbers:
        """(blocks, BINS): sums of correct minus confidence by bin."""
        return np.asarray(self.residuals.reshape(-1, BINS, CELLS).sum(axis=2))

    @property
    def smoothed(self) -> Numbers:
        """(blocks, KERNEL_POINTS): the smoothed residual at each point."""
        return np.asarray(self.residuals @ SMOOTHING)

    @property
    def total(self) -> int:
        """Images of all blocks."""
        return int(self.images.sum())

    def take(self, blocks: Any) -> BlockStats:
        """Return some of the blocks, by a slice, positions or a mask."""
        return BlockStats(**{name: getattr(self, name)[blocks] for name in _ARRAYS})

    def summed(self) -> BlockStats:
        """Join all blocks into one."""
        return BlockStats(**{name: getattr(self, name).sum(axis=0, keepdims=True) for name in _ARRAYS})


_ARRAYS = tuple(item.name for item in fields(BlockStats))
_COUNTS = ("images", "correct", "counts", "hits")
StatsBySeed = Mapping[DatasetSeed, BlockStats]  # all statistics of a record on one split, by (dataset, seed)


def datasets_of(table: StatsBySeed) -> list[str]:
    return sorted({dataset for dataset, _ in table})


def seeds_of(table: StatsBySeed) -> list[int]:
    return sorted({seed for _, seed in table})


def _count(index: Integers, blocks: int, width: int) -> Integers:
    """Return how often each cell of (blocks, width) occurs in a flat index."""
    return np.bincount(index, minlength=blocks * width).reshape(blocks, width).astype(np.int64)


def _rounded_loss(loss: Numbers) -> Numbers:
    return np.asarray(np.rint(loss / _LOSS_STEP) * _LOSS_STEP)


def _cell_of(confidence: NDArray[np.float32], bins: Integers) -> Integers:
    """Return the cell of each confidence: bin * CELLS, plus its position within the bin."""
    within_bin = (confidence.astype(np.float64) - EDGES[bins]) * (BINS * CELLS)
    return bins * CELLS + np.clip(within_bin.astype(np.int64), 0, CELLS - 1)


# --- metrics as functions of sums ------------------------------------------------------------------


def _smoothing_kernel() -> Numbers:
    """(BINS * CELLS, KERNEL_POINTS): the weight of a cell's residual at each point.

    The Gaussian is reflected at 0 and 1, so that no weight is lost beyond the range of confidences.
    """
    cells = (np.arange(BINS * CELLS) + 0.5)[:, None] / (BINS * CELLS)
    points = (np.arange(KERNEL_POINTS) + 0.5) / KERNEL_POINTS
    kernel: Numbers = np.zeros((BINS * CELLS, KERNEL_POINTS))
    for reflected in (points, -points, 2 - points, points - 2, points + 2):
        kernel += np.exp(-0.5 * ((reflected - cells) / KERNEL_WIDTH) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    return kernel


SMOOTHING = _smoothing_kernel()
Total = Callable[[str], Numbers]  # name of an array of BlockStats -> its sums over blocks, a row for each resample


def _accuracy(total: Total) -> Numbers:
    return total("correct")


def _nll(total: Total) -> Numbers:
    return total("nll")


def _brier(total: Total) -> Numbers:
    return total("brier")


def _ece(total: Total) -> Numbers:
    return np.asarray(np.abs(total("bin_residuals")).sum(axis=-1))


def _smooth_ece(total: Total) -> Numbers:
    return np.asarray(np.abs(total("smoothed")).sum(axis=-1))


def _debiased_ece(total: Total) -> Numbers:
    """Sum |residual| over bins, less what chance adds: the mean of |N(residual, its variance)| minus |residual|."""
    counts, hits, magnitudes = total("counts"), total("hits"), np.abs(total("bin_residuals"))
    deviation = np.sqrt(hits * (counts - hits) / np.maximum(counts, 1))  # standard deviation of a binomial count
    standardized = magnitudes / np.maximum(deviation, 1e-12)
    excess = deviation * np.interp(standardized, _NORMAL_MEANS, _EXCESS, right=0.0)
    return np.asarray(np.maximum(0.0, (magnitudes - excess).sum(axis=-1)))


def _nll_calibration(total: Total) -> Numbers:
    """Sum over images: the divergence of each bin's mean confidence from its accuracy (Kullback-Leibler).

    It is never negative, and never more than the NLL of "right or wrong".
    """
    counts, hits, residuals = total("counts"), total("hits"), total("bin_residuals")
    confidence = np.maximum(hits - residuals, MIN_PROBABILITY)
    doubt = np.maximum(counts - hits + residuals, MIN_PROBABILITY)
    divergence = special.rel_entr(hits, confidence) + special.rel_entr(counts - hits, doubt)
    return np.asarray(np.maximum(divergence, 0.0).sum(axis=-1))  # rounding leaves less than 0 where the two are equal


def _nll_refinement(total: Total) -> Numbers:
    """Sum over images: the NLL without its calibration part."""
    return total("nll") - _nll_calibration(total)


def _brier_calibration(total: Total) -> Numbers:
    """Sum over images: the top class's squared error that is saved if each bin's confidences shift to its accuracy."""
    return np.asarray((total("bin_residuals") ** 2 / np.maximum(total("counts"), 1)).sum(axis=-1))


def _brier_refinement(total: Total) -> Numbers:
    """Sum over images: the Brier score without its calibration part."""
    return total("brier") - _brier_calibration(total)


@dataclass(frozen=True, slots=True)
class BlockwiseMetric:
    """A metric that follows from sums over images: scale * value(sums) / images."""

    value: Callable[[Total], Numbers]
    scale: float = 100.0  # percent
    largest: float = 100.0  # largest value of the metric, in its own unit; the smallest is 0
    calibration_error: bool = False  # True: few images make it positive for a calibrated model, too
    biased: bool = False  # True: few images bias it, and the bootstrap's estimate of that bias is subtracted


BLOCKWISE_METRICS: Mapping[str, BlockwiseMetric] = {
    "accuracy": BlockwiseMetric(_accuracy),
    "ece": BlockwiseMetric(_ece, calibration_error=True, biased=True),
    "debiased_ece": BlockwiseMetric(_debiased_ece, calibration_error=True),
    "smooth_ece": BlockwiseMetric(_smooth_ece, calibration_error=True, biased=True),
    "nll": BlockwiseMetric(_nll, scale=1.0, largest=math.inf),
    "brier": BlockwiseMetric(_brier, scale=1.0, largest=2.0),
    "nll_calibration": BlockwiseMetric(_nll_calibration, scale=1.0, largest=math.inf),
    "nll_refinement": BlockwiseMetric(_nll_refinement, scale=1.0, largest=math.inf, biased=True),
    "brier_calibration": BlockwiseMetric(_brier_calibration, scale=1.0, largest=1.0),
    "brier_refinement": BlockwiseMetric(_brier_refinement, scale=1.0, largest=2.0, biased=True),
}


def resample(metric: str, stats: BlockStats, weights: Numbers) -> Numbers:
    """Return a metric for each row of weights (resamples, blocks)."""
    definition = BLOCKWISE_METRICS[metric]

    def total(name: str) -> Numbers:
        return np.asarray(weights @ getattr(stats, name))

    return np.asarray(definition.scale * definition.value(total) / total("images"))


def metric_value(metric: str, stats: BlockStats) -> float:
    """Return a metric over all blocks."""
    return float(resample(metric, stats.summed(), np.ones((1, 1)))[0])


def _of_predictions(metric: str, predictions: Predictions) -> float:
    return metric_value(metric, _stats_of(predictions))


@lru_cache(maxsize=1)
def _stats_of(predictions: Predictions) -> BlockStats:
    """Return the statistics of a dataset's predictions; cached, because several metrics are computed in turn."""
    return BlockStats.of_predictions("", predictions)


# `spec.catalogue` names these functions as the code of metrics
debiased_error = partial(_of_predictions, "debiased_ece")  # removes about 40 % of the bias of a calibrated model
smooth_error = partial(_of_predictions, "smooth_ece")
nll_calibration = partial(_of_predictions, "nll_calibration")
nll_refinement = partial(_of_predictions, "nll_refinement")
brier_calibration = partial(_of_predictions, "brier_calibration")
brier_refinement = partial(_of_predictions, "brier_refinement")


def bin_sums(stats: BlockStats) -> Numbers:
    """Return (3, BINS): images, correct ones, and sums of confidences of each bin, over all blocks."""
    summed = stats.summed()
    return np.concatenate([summed.counts, summed.hits, summed.hits - summed.bin_residuals], dtype=np.float64)


def calibrated_bias(metric: str, stats: BlockStats) -> float:
    """Return the calibration error that a perfectly calibrated model shows on average with this number of images.

    Each image's residual has variance c (1 - c), where c is the mean confidence of its bin. The sum of many residuals
    is normal, and its absolute value has the mean sqrt(2 / pi) * standard deviation.
    """
    counts, _, confidence_sums = bin_sums(stats)
    confidence = np.clip(confidence_sums / np.maximum(counts, 1), 0, 1)
    variances = counts * confidence * (1 - confidence)  # (BINS,)
    if metric == "smooth_ece":
        by_cell = np.repeat(variances / CELLS, CELLS)  # a bin's variance, spread evenly over its cells
        deviations = np.sqrt(by_cell @ SMOOTHING**2)
    else:
        deviations = np.sqrt(variances)
    mean_absolute_normal = math.sqrt(2 / math.pi)
    return float(100 * mean_absolute_normal * deviations.sum() / stats.total)


# --- files -----------------------------------------------------------------------------------------


def to_bytes(table: StatsBySeed) -> bytes:
    """Serialise statistics as an .npz file: arrays joined over datasets and seeds, and an index.

    The file is not compressed: it would be half as large, but a sweep's statistics would take a tenth longer.
    """
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(stats, name) for stats in table.values()]) for name in _ARRAYS
    }
    residuals = joined.pop("residuals")
    filled = np.flatnonzero(residuals)  # most cells are empty: store positions and values of the others
    for name in _COUNTS:
        joined[name] = joined[name].astype(np.min_scalar_type(joined[name].max(initial=0)))
    index = [[dataset, seed, len(stats)] for (dataset, seed), stats in table.items()]
    buffer = io.BytesIO()
    np.savez(
        buffer,
        cells=filled.astype(np.int32),
        values=residuals.flat[filled],
        index=np.frombuffer(json.dumps(index).encode(), np.uint8),
        **joined,
    )
    return buffer.getvalue()


def from_bytes(data: bytes) -> dict[DatasetSeed, BlockStats]:
    """Read what `to_bytes` wrote; ValueError for anything else. The format has checksums, which find damage."""
    with _opened(data) as file:
        return _from_arrays(dict(file))


def bins_from_bytes(data: bytes) -> Numbers:
    """Return `bin_sums` over all datasets and seeds of what `to_bytes` wrote: fast, for a page of many trials."""
    with _opened(data) as file:
        counts, hits = file["counts"].sum(axis=0), file["hits"].sum(axis=0)
        residuals = np.bincount(file["cells"] // CELLS % BINS, file["values"], BINS)
        return np.stack([counts, hits, hits - residuals])


@contextmanager
def _opened(data: bytes) -> Iterator[Any]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            if sum(member.file_size for member in file.zip.infolist()) > len(data):
                raise ValueError("a compressed file may take any amount of memory")
            yield file
    except Exception as error:  # NumPy and zipfile raise nearly anything on a damaged file
        raise ValueError(f"not a file of block statistics ({type(error).__name__})") from error


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> dict[DatasetSeed, BlockStats]:
    """Undo `to_bytes`: cut the joined arrays into the statistics of each dataset and seed."""
    index = json.loads(arrays.pop("index").tobytes())
    residuals = np.zeros((len(arrays["digests"]), BINS * CELLS))
    residuals.flat[arrays.pop("cells")] = arrays.pop("values")
    for name in _COUNTS:
        arrays[name] = arrays[name].astype(np.int64)
    joined = BlockStats(residuals=residuals, **arrays)
    table = {}
    start = 0
    for dataset, seed, length in index:
        table[dataset, seed] = joined.take(slice(start, start + length))
        start += length
    return table
