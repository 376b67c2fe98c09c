"""Accuracy and calibration from small, mergeable per-sample results.

For each sample a shard keeps its label, prediction, confidence and losses, and per class and bin the three sums that
SCE needs; it never keeps the (samples, classes) probabilities. Shards join by concatenation and addition. No number
depends on how the samples were cut: sums are of integers, or correctly rounded, or of values on a grid so coarse that
float64 adds them exactly. Shapes: N samples, K classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.catalogue import MetricRow
from fpp_sweep.spec.errors import InputError, type_and_message

BINS = 20  # as in the released code of FPP, C-TPT and O-TPT
TOP = 5

# A float32 of at least 2^-13 is a multiple of this and does not change; a smaller one changes by less than 1e-11.
# Float64 adds up to 2^17 such multiples exactly, so that their order does not matter.
_GRID = 2.0**-36
_TINY = float(np.finfo(np.float32).tiny)
BLOCK = 1 << 20  # probabilities held at a time
_ARRAYS = ("labels", "predicted", "confidence", "in_top5", "nll", "brier")


def _edges() -> NDArray[np.float32]:
    """Return 0, 0.05, ..., 1 as `torch.linspace` has them on processors with a fused multiply-add.

    Edges are multiples of a float32 step, counted from the nearer end. NumPy differs at 0.45.
    """
    step = float(np.float32(1 / BINS))
    edges = []
    for index in range(BINS + 1):
        if 2 * index < BINS:
            edges.append(index * step)
        else:
            edges.append(1 - (BINS - index) * step)
    return np.array(edges, dtype=np.float32)


EDGES = _edges()


def bin_indices(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the bin (low, high] of each value; -1, no bin, for exactly 0.

    >>> bin_indices(np.array([0, 1e-9, 0.5, 0.50001, 1], np.float32)).tolist()
    [-1, 0, 9, 10, 19]
    """
    return np.searchsorted(EDGES, values, side="left") - 1


def round_to_grid(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Round values to multiples of 2^-36, whose sums are exact."""
    return np.rint(values.astype(np.float64) / _GRID) * _GRID


def sum_by_cell(cells: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the sum (size,) of the values of each cell."""
    return np.bincount(cells, values, minlength=size).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassBins:
    """Number of values, number of hits (the class is the label) and sum of the values, per class and bin.

    SCE counts every sample once for each class. ECE and MCE count it for the predicted class only: a single row.
    """

    counts: NDArray[np.int64]  # (K, BINS)
    hits: NDArray[np.int64]  # (K, BINS)
    confidence: NDArray[np.float64]  # (K, BINS) sum of the values

    @classmethod
    def of(cls, values: NDArray[np.float32], hits: NDArray[np.bool_]) -> ClassBins:
        """Count values (N, K) of classes; `hits` (N, K) says where the class is the label."""
        classes = values.shape[1]
        bins = bin_indices(values)  # (N, K)
        inside = bins >= 0
        cells = (np.arange(classes) * BINS + bins)[inside]  # one number for a class and a bin
        size, shape = classes * BINS, (classes, BINS)
        return cls(
            counts=np.bincount(cells, minlength=size).reshape(shape),
            hits=np.bincount(cells[hits[inside]], minlength=size).reshape(shape),
            confidence=sum_by_cell(cells, round_to_grid(values[inside]), size).reshape(shape),
        )

    def __add__(self, other: ClassBins) -> ClassBins:
        return ClassBins(
            counts=self.counts + other.counts,
            hits=self.hits + other.hits,
            confidence=self.confidence + other.confidence,
        )

    @property
    def classes(self) -> int:
        return len(self.counts)

    @property
    def gaps(self) -> NDArray[np.float64]:
        """|accuracy - mean confidence| times the count (K, BINS): no division, and 0 for an empty bin."""
        return np.abs(self.hits - self.confidence)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """Results of N samples, in a given order."""

    ids: tuple[str, ...]  # (N,) all different
    labels: NDArray[np.int64]  # (N,)
    predicted: NDArray[np.int64]  # (N,) the first of the most probable classes
    confidence: NDArray[np.float32]  # (N,) its probability
    in_top5: NDArray[np.bool_]  # (N,)
    nll: NDArray[np.float64]  # (N,) -ln of the label's probability
    brier: NDArray[np.float64]  # (N,) sum over classes of squared differences from the one-hot label
    class_bins: ClassBins
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # optional ones (N, ...), such as logits

    def __post_init__(self) -> None:
        if len(set(self.ids)) < len(self):
            repeated, _ = Counter(self.ids).most_common(1)[0]
            raise InputError(f"sample {repeated!r} appears more than once")

    @classmethod
    def of(
        cls,
        ids: Sequence[str],
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
        columns: Mapping[str, NDArray[Any]] | None = None,
    ) -> Predictions:
        """Read probabilities (N, K) as they are: rows are not rescaled to sum to one.

        In the NLL a label's probability is clamped to float32's smallest normal number (1.2e-38), so that a probability
        of 0 costs 87.3 instead of infinity. Among equal probabilities the earlier class ranks first.

        >>> probabilities = np.array([[0.75, 0.25], [0.75, 0.25]], np.float32)
        >>> predictions = Predictions.of(["a", "b"], np.array([0, 1]), probabilities)
        >>> predictions.predicted.tolist(), predictions.confidence.tolist(), predictions.brier.tolist()
        ([0, 0], [0.75, 0.75], [0.125, 1.125])
        """
        ids = tuple(ids)
        labels, probabilities = np.asarray(labels), np.asarray(probabilities)
        rows = max(1, BLOCK // probabilities.shape[1])
        blocks = []
        for start in range(0, len(ids), rows):
            part = slice(start, start + rows)
            blocks.append(cls._of_block(ids[part], labels[part], probabilities[part]))
        predictions = concatenate(blocks)
        if not columns:
            return predictions
        return replace(predictions, columns=dict(columns))

    @classmethod
    def _of_block(
        cls, ids: tuple[str, ...], labels: NDArray[np.int64], probabilities: NDArray[np.float32]
    ) -> Predictions:
        labels = labels.astype(np.int64)
        probabilities = probabilities.astype(np.float32)
        classes = np.arange(probabilities.shape[1])
        is_label = classes == labels[:, None]  # (N, K)
        of_label = probabilities[is_label][:, None]  # (N, 1)
        is_earlier_class = classes < labels[:, None]
        ranks_before_label = (probabilities > of_label) | ((probabilities == of_label) & is_earlier_class)
        exact = probabilities.astype(np.float64)
        return cls(
            ids=ids,
            labels=labels,
            predicted=probabilities.argmax(axis=1),
            confidence=probabilities.max(axis=1),
            in_top5=ranks_before_label.sum(axis=1) < TOP,
            nll=-np.log(np.maximum(exact[is_label], _TINY)),
            brier=np.square(exact - is_label).sum(axis=1),
            class_bins=ClassBins.of(probabilities, is_label),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.equal(self.predicted, self.labels)

    @property
    def bins(self) -> ClassBins:
        """Bins of ECE and MCE, as a single row."""
        return ClassBins.of(self.confidence[:, None], self.correct[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class Confidences:
    """Confidence and correctness of N samples, from which accuracy and ECE follow."""

    confidence: NDArray[np.float32]
    correct: NDArray[np.bool_]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> Confidences:
        """Read a table of predictions."""
        return cls(columns["confidence"], np.equal(columns["predicted"], columns["label"]))

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def bins(self) -> ClassBins:
        return ClassBins.of(self.confidence[:, None], self.correct[:, None])


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """Join shards of one dataset, in the order given; associative to the last bit."""
    first, *others = parts
    ids = list(first.ids)
    class_bins = first.class_bins
    for part in others:
        ids += part.ids
        class_bins = class_bins + part.class_bins
    joined = {}
    for name in _ARRAYS:
        joined[name] = np.concatenate([getattr(part, name) for part in parts])
    columns = {}
    for name in first.columns:
        columns[name] = np.concatenate([part.columns[name] for part in parts])
    return Predictions(ids=tuple(ids), class_bins=class_bins, columns=columns, **joined)


def score(predictions: Predictions) -> dict[str, float]:
    """Return all metrics of a dataset by name: accuracies and calibration errors in percent, NLL in nats.

    >>> probabilities = np.array([[0.75, 0.25], [0.75, 0.25]], np.float32)
    >>> numbers = score(Predictions.of(["a", "b"], np.array([0, 1]), probabilities))
    >>> numbers["accuracy"], numbers["ece"], numbers["brier"]
    (50.0, 25.0, 0.625)
    """
    return {row.name: _value_of(row, predictions) for row in catalogue.dataset_metrics(predictions.columns)}


def _value_of(row: MetricRow, predictions: Predictions) -> float:
    """Return a metric; raise InputError with the plugin's line if a plugin's fails or gives no finite number."""
    assert row.compute is not None
    try:
        value = float(catalogue.code_of(row.compute)(predictions))
    except (Exception, SystemExit) as error:
        if not row.digest:
            raise
        where = plugins.at_line(f"metric {row.name}", plugins.line_of(error) or plugins.file_of(row))
        raise InputError(f"{where}: {type_and_message(error)}") from error
    if not math.isfinite(value):
        if not row.digest:
            raise FloatingPointError(f"metric {row.name} is {value}")
        raise InputError(f"metric {row.name} ({plugins.file_of(row)}): must return a finite number ({value})")
    return value


def accuracy(predictions: Predictions | Confidences) -> float:
    return 100 * int(predictions.correct.sum()) / len(predictions)


def accuracy_top5(predictions: Predictions) -> float:
    return 100 * int(predictions.in_top5.sum()) / len(predictions)


def expected_calibration_error(predictions: Predictions | Confidences) -> float:
    """ECE (Guo et al., 2017): |accuracy - mean confidence| of each bin, weighted by its number of samples."""
    return 100 * math.fsum(predictions.bins.gaps.flat) / len(predictions)


def static_calibration_error(predictions: Predictions) -> float:
    """SCE (Nixon et al., 2019): ECE over the bins of each class, averaged over classes."""
    classes = predictions.class_bins.classes
    return 100 * math.fsum(predictions.class_bins.gaps.flat) / (len(predictions) * classes)


def maximum_calibration_error(predictions: Predictions) -> float:
    """MCE (Guo et al., 2017): the largest |accuracy - mean confidence| of a bin."""
    bins = predictions.bins
    return 100 * float((bins.gaps / np.maximum(bins.counts, 1)).max())


def adaptive_calibration_error(predictions: Predictions) -> float:
    """AECE: ECE with edges at 21 ranks of the confidences.

    Equal edges are merged. Bins are (low, high], and the first one is [low, high]. The ranks are products in float32,
    as in the released code; for about every twelfth N, float64 gives another rank.
    """
    confidence = predictions.confidence
    ranks = np.rint(EDGES * np.float32(len(predictions) - 1)).astype(np.int64)
    edges = np.unique(np.sort(confidence)[ranks])
    if len(edges) < 2:
        return 0.0
    bins = np.maximum(np.searchsorted(edges, confidence, side="left") - 1, 0)
    gaps = sum_by_cell(bins, predictions.correct - round_to_grid(confidence), len(edges) - 1)
    return 100 * math.fsum(np.abs(gaps)) / len(predictions)


def log_loss(predictions: Predictions) -> float:
    return math.fsum(predictions.nll) / len(predictions)


def brier_score(predictions: Predictions) -> float:
    return math.fsum(predictions.brier) / len(predictions)


def area_under_risk_coverage(predictions: Predictions) -> float:
    """AURC (Geifman and El-Yaniv, 2019): the mean, over i, of the error rate among the i most confident samples.

    Samples of equal confidence count with their mean, so that their order does not matter. In the released code, which
    reverses an unstable sort, that order is arbitrary.
    """
    _, sizes, errors = errors_by_confidence(predictions.confidence, predictions.correct)
    risks = np.cumsum(np.repeat(errors, sizes)) / np.arange(1, len(predictions) + 1)
    return math.fsum(risks) / len(predictions)


def errors_by_confidence(
    confidence: NDArray[np.float32], correct: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the level (N,) of each sample, and the size and error rate of each level of equal confidence.

    The highest confidence is level 0.
    """
    _, levels, sizes = np.unique(-confidence, return_inverse=True, return_counts=True)
    return levels, sizes, np.bincount(levels, weights=~correct) / sizes


RIGHT_SHARE = 0.95  # share of right answers that the threshold of FPR95 keeps


def auroc(predictions: Predictions) -> float:
    """Return how often a right answer has the higher confidence than a wrong one; a tie counts one half.

    Where all answers are right, or all are wrong, there is nothing to rank: one half.
    """
    confidence, correct = predictions.confidence, predictions.correct
    if correct.all() or not correct.any():
        return 0.5
    right, wrong = np.sort(confidence[correct]), np.sort(confidence[~correct])
    below = np.searchsorted(wrong, right, side="left")
    up_to = np.searchsorted(wrong, right, side="right")  # equal ones count one half
    return float(((below + up_to) / (2 * len(wrong))).mean())


def fpr95(predictions: Predictions) -> float:
    """Return the share of wrong answers at or above the confidence that 95 % of the right answers reach.

    Without wrong answers it is 0, without right ones all.
    """
    confidence, correct = predictions.confidence, predictions.correct
    if correct.all() or not correct.any():
        return 0.0 if correct.all() else 100.0
    right = np.sort(confidence[correct])[::-1]
    threshold = right[math.ceil(RIGHT_SHARE * len(right)) - 1]
    return 100 * float((confidence[~correct] >= threshold).mean())


def _accuracy_at(coverage: float, predictions: Predictions) -> float:
    """Return the accuracy of the most confident images: a share `coverage` of all, rounded up.

    Images that tie at the threshold count in part, so that their order does not matter.
    """
    confidence, correct = predictions.confidence, predictions.correct
    count = math.ceil(coverage * len(confidence))
    threshold = np.sort(confidence)[::-1][count - 1]
    above, tied = confidence > threshold, confidence == threshold
    hits = correct[above].sum() + (count - above.sum()) * correct[tied].mean()
    return 100 * float(hits / count)


accuracy_at_80 = partial(_accuracy_at, 0.8)
accuracy_at_90 = partial(_accuracy_at, 0.9)


def sharpness(predictions: Predictions) -> float:
    return float(np.mean(predictions.columns["sharpness"], dtype=np.float64))


def fisher_rao(predictions: Predictions) -> float:
    """Fisher-Rao norm (Liang et al., 2019): mean square of <prompt, gradient of the entropy>."""
    return float(np.mean(np.square(predictions.columns["product"], dtype=np.float64)))


def fisher_rao_root(predictions: Predictions) -> float:
    return math.sqrt(fisher_rao(predictions))
