"""Metrics against plain loops and torchmetrics, and their invariance under sharding and reordering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fpp_sweep.core import metrics
from fpp_sweep.core.metrics import BINS, EDGES, ClassBins, Predictions, concatenate, score
from fpp_sweep.spec.errors import InputError
from tests.kit.rows import metric_row, registered

# Largest difference in per cent: the loops add in another order, and stored sums round confidences to 7e-12.
CLOSE = 1e-8

Probabilities = NDArray[np.float32]
Labels = NDArray[np.int64]


def predictions(labels: Labels, probabilities: Probabilities) -> Predictions:
    return Predictions.of([f"sample {i}" for i in range(len(labels))], labels, probabilities)


def overconfident(samples: int, classes: int, seed: int = 0, temperature: float = 0.5) -> tuple[Labels, Probabilities]:
    """Draw labels from a softmax; return them with the probabilities of a sharper softmax."""
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(2 * generator.standard_normal((samples, classes)))
    true_probabilities = torch.softmax(logits, dim=1).numpy()
    thresholds = true_probabilities.cumsum(axis=1)[:, :-1]
    labels = (generator.random((samples, 1)) > thresholds).sum(axis=1)
    return labels, torch.softmax(logits / temperature, dim=1).float().numpy()


def very_sure(samples: int, classes: int, seed: int = 0) -> tuple[Labels, Probabilities]:
    """Return probabilities as small as 1e-38, whose plain sums in float64 depend on their order."""
    return overconfident(samples, classes, seed, temperature=0.1)


def rounded_to_half(samples: int, classes: int, seed: int = 0) -> tuple[Labels, Probabilities]:
    """Return probabilities rounded to half precision, with ties, exact zeros and exact ones."""
    labels, probabilities = very_sure(samples, classes, seed)
    return labels, probabilities.astype(np.float16).astype(np.float32)


def on_edges(samples: int, classes: int, seed: int = 0) -> tuple[Labels, Probabilities]:
    """Return probabilities that are edges of bins, including 0 and 1; rows do not sum to one."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, classes, samples), generator.choice(EDGES, (samples, classes))


def all_zero(samples: int, classes: int, seed: int = 0) -> tuple[Labels, Probabilities]:
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    return labels, np.zeros((samples, classes), np.float32)


KINDS = [overconfident, very_sure, rounded_to_half, on_edges, all_zero]


# --- metrics by their definitions, as plain loops ------------------------------------------------


def edges() -> list[float]:
    """Return the edges of the bins."""
    return [float(edge) for edge in torch.linspace(0, 1, 21)]


def naive_accuracy(labels: Labels, probabilities: Probabilities) -> float:
    return 100 * sum(hit for _, hit in top_pairs(labels, probabilities)) / len(labels)


def naive_top5(labels: Labels, probabilities: Probabilities) -> float:
    right = 0
    for row, label in zip(probabilities, labels, strict=True):
        ranked = sorted((-probability, k) for k, probability in enumerate(row))
        right += label in [k for _, k in ranked[:5]]
    return 100 * right / len(labels)


def naive_bin_errors(pairs: list[tuple[float, bool]]) -> list[tuple[int, float]]:
    """Return count and gap of each bin (low, high] that is not empty."""
    counts_and_gaps = []
    for low, high in itertools.pairwise(edges()):
        inside = [(confidence, hit) for confidence, hit in pairs if low < confidence <= high]
        if inside:
            accuracy = sum(hit for _, hit in inside) / len(inside)
            mean = sum(confidence for confidence, _ in inside) / len(inside)
            counts_and_gaps.append((len(inside), abs(accuracy - mean)))
    return counts_and_gaps


def top_pairs(labels: Labels, probabilities: Probabilities) -> list[tuple[float, bool]]:
    """Return the confidence of each sample, and whether its prediction is right."""
    return [(float(row.max()), bool(row.argmax() == label)) for row, label in zip(probabilities, labels, strict=True)]


def naive_ece(labels: Labels, probabilities: Probabilities) -> float:
    return 100 * sum(n / len(labels) * gap for n, gap in naive_bin_errors(top_pairs(labels, probabilities)))


def naive_mce(labels: Labels, probabilities: Probabilities) -> float:
    return 100 * max((gap for _, gap in naive_bin_errors(top_pairs(labels, probabilities))), default=0)


def naive_sce(labels: Labels, probabilities: Probabilities) -> float:
    total = 0.0
    for k in range(probabilities.shape[1]):
        pairs = [(float(row[k]), bool(label == k)) for row, label in zip(probabilities, labels, strict=True)]
        total += sum(n * gap for n, gap in naive_bin_errors(pairs))
    return 100 * total / probabilities.size


def naive_aece(labels: Labels, probabilities: Probabilities) -> float:
    pairs = top_pairs(labels, probabilities)
    samples = len(pairs)
    ranked = sorted(confidence for confidence, _ in pairs)
    positions = (torch.linspace(0, 1, 21) * (samples - 1)).round().long().tolist()
    limits: list[float] = []
    for position in positions:
        if not limits or ranked[position] != limits[-1]:
            limits.append(ranked[position])
    total = 0.0
    for j in range(len(limits) - 1):
        low, high = limits[j], limits[j + 1]
        inside = [(c, hit) for c, hit in pairs if (low < c or (j == 0 and low == c)) and c <= high]
        if inside:
            accuracy = sum(hit for _, hit in inside) / len(inside)
            mean = sum(c for c, _ in inside) / len(inside)
            total += len(inside) / samples * abs(accuracy - mean)
    return 100 * total


def naive_aurc(labels: Labels, probabilities: Probabilities) -> float:
    """Return the mean risk over coverages; of equal confidences, each order is as likely."""
    pairs = top_pairs(labels, probabilities)
    errors = 0.0
    risks: list[float] = []
    for confidence in sorted({confidence for confidence, _ in pairs}, reverse=True):
        tied = [not hit for other, hit in pairs if other == confidence]
        for _ in tied:
            errors += sum(tied) / len(tied)
            risks.append(errors / (len(risks) + 1))
    return sum(risks) / len(risks)


def naive_nll(labels: Labels, probabilities: Probabilities) -> float:
    tiny = 2.0**-126
    return sum(-math.log(max(float(row[y]), tiny)) for row, y in zip(probabilities, labels, strict=True)) / len(labels)


def naive_brier(labels: Labels, probabilities: Probabilities) -> float:
    total = 0.0
    for row, label in zip(probabilities, labels, strict=True):
        total += sum((float(p) - (k == label)) ** 2 for k, p in enumerate(row))
    return total / len(labels)


def naive_bins(labels: Labels, probabilities: Probabilities) -> list[list[tuple[float, bool]]]:
    """Return the (confidence, hit) pairs in each of ECE's bins."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, hit in top_pairs(labels, probabilities):
        for index in range(BINS):
            if EDGES[index] < confidence <= EDGES[index + 1]:
                bins[index].append((confidence, hit))
    return bins


def naive_nll_calibration(labels: Labels, probabilities: Probabilities) -> float:
    """Return the divergence of the mean confidence of each bin from its accuracy, weighted by its samples."""
    tiny, total = 2.0**-126, 0.0
    for inside in naive_bins(labels, probabilities):
        right, wrong = sum(hit for _, hit in inside), sum(not hit for _, hit in inside)
        if right:
            total += right * math.log(right / sum(confidence for confidence, _ in inside))
        if wrong:
            total += wrong * math.log(wrong / max(sum(1 - confidence for confidence, _ in inside), tiny))
    return total / len(labels)


def naive_nll_refinement(labels: Labels, probabilities: Probabilities) -> float:
    return naive_nll(labels, probabilities) - naive_nll_calibration(labels, probabilities)


def naive_brier_calibration(labels: Labels, probabilities: Probabilities) -> float:
    """Return the reduction of the mean squared error if each bin's confidences are shifted to the bin's accuracy."""
    reduction = 0.0
    for inside in naive_bins(labels, probabilities):
        shift = sum(hit - confidence for confidence, hit in inside) / max(len(inside), 1)
        for confidence, hit in inside:
            reduction += (confidence - hit) ** 2 - (confidence + shift - hit) ** 2
    return reduction / len(labels)


def naive_auroc(labels: Labels, probabilities: Probabilities) -> float:
    pairs = top_pairs(labels, probabilities)
    right = [confidence for confidence, hit in pairs if hit]
    wrong = [confidence for confidence, hit in pairs if not hit]
    if not right or not wrong:
        return 0.5
    wins = 0.0
    for right_confidence, wrong_confidence in itertools.product(right, wrong):
        if right_confidence > wrong_confidence:
            wins += 1
        elif right_confidence == wrong_confidence:
            wins += 0.5
    return wins / len(right) / len(wrong)


def naive_fpr95(labels: Labels, probabilities: Probabilities) -> float:
    """Return the smallest share of wrong predictions above a threshold with 95 % of the right predictions above it."""
    pairs = top_pairs(labels, probabilities)
    right = [confidence for confidence, hit in pairs if hit]
    wrong = [confidence for confidence, hit in pairs if not hit]
    if not wrong:
        return 0.0
    if not right:
        return 100.0
    shares = []
    for threshold in right:
        if sum(confidence >= threshold for confidence in right) >= 0.95 * len(right):
            shares.append(sum(confidence >= threshold for confidence in wrong) / len(wrong))
    return 100 * min(shares)


def naive_accuracy_at(labels: Labels, probabilities: Probabilities, coverage: float) -> float:
    """Return the accuracy of the most confident images; images with the last confidence count with equal weights."""
    pairs = sorted(top_pairs(labels, probabilities), key=lambda pair: -pair[0])
    count = math.ceil(coverage * len(pairs))
    last_confidence = pairs[count - 1][0]
    kept = [hit for confidence, hit in pairs if confidence > last_confidence]
    tied = [hit for confidence, hit in pairs if confidence == last_confidence]
    hits_of_tied = (count - len(kept)) * sum(tied) / len(tied)
    return 100 * (sum(kept) + hits_of_tied) / count


NAIVE: dict[str, Callable[[Labels, Probabilities], float]] = {
    "accuracy": naive_accuracy,
    "accuracy_top5": naive_top5,
    "ece": naive_ece,
    "sce": naive_sce,
    "aece": naive_aece,
    "mce": naive_mce,
    "aurc": naive_aurc,
    "nll": naive_nll,
    "brier": naive_brier,
    "nll_calibration": naive_nll_calibration,
    "nll_refinement": naive_nll_refinement,
    "brier_calibration": naive_brier_calibration,
    "brier_refinement": lambda labels, rows: naive_brier(labels, rows) - naive_brier_calibration(labels, rows),
    "auroc": naive_auroc,
    "fpr95": naive_fpr95,
    "accuracy_at_80": lambda labels, rows: naive_accuracy_at(labels, rows, 0.8),
    "accuracy_at_90": lambda labels, rows: naive_accuracy_at(labels, rows, 0.9),
}
FROM_SUMS = {"smooth_ece", "debiased_ece"}  # tests/statistics/test_block_stats.py compares these with their definitions


def assert_equals_the_loops(labels: Labels, probabilities: Probabilities) -> None:
    actual = score(predictions(labels, probabilities))
    assert actual.keys() == NAIVE.keys() | FROM_SUMS
    actual = {name: value for name, value in actual.items() if name in NAIVE}
    for name, value in actual.items():
        assert value == pytest.approx(NAIVE[name](labels, probabilities), abs=CLOSE, rel=1e-12), name


@given(st.sampled_from(KINDS), st.integers(1, 120), st.sampled_from([1, 2, 3, 7, 60]), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_every_metric_equals_a_plain_loop(kind, samples, classes, seed):
    assert_equals_the_loops(*kind(samples, classes, seed))


# --- conventions ---------------------------------------------------------------------------------


def bins_of(value: float) -> list[int]:
    """Return the indices of the bins that include a probability."""
    bins = ClassBins.of(np.array([[value]], np.float32), np.array([[True]]))
    return np.flatnonzero(bins.counts[0]).tolist()


def test_bins_are_open_below_and_closed_above():
    for i, edge in enumerate(EDGES):
        assert bins_of(edge) == ([i - 1] if i else [])
        if i < BINS:
            assert bins_of(np.nextafter(edge, np.float32(1))) == [i]


@pytest.mark.parametrize("seed", range(20))
def test_the_calibration_part_of_the_nll_is_small_and_never_negative_for_a_calibrated_model(seed):
    """With one accuracy for all confidences from 0.95 to 1, it was negative, and the refinement was above the NLL."""
    generator = np.random.default_rng(seed)
    confidence = 1 - 10.0 ** generator.uniform(-5, -1, 2000)
    probabilities = np.stack([confidence, 1 - confidence], axis=1).astype(np.float32)
    labels = (generator.random(2000) > confidence).astype(np.int64)
    scores = score(predictions(labels, probabilities))
    assert 0 <= scores["nll_calibration"] < 0.005
    assert scores["nll_refinement"] <= scores["nll"]


def test_half_precision_probabilities_are_read_exactly():
    labels, probabilities = rounded_to_half(50, 7)
    halves: Any = probabilities.astype(np.float16)
    assert score(predictions(labels, halves)) == score(predictions(labels, probabilities))


# --- shards and order ----------------------------------------------------------------------------


def assert_same(first: Predictions, second: Predictions) -> None:
    """Check that two predictions are equal to the last bit."""
    assert first.ids == second.ids
    for name in ("labels", "predicted", "confidence", "in_top5", "nll", "brier"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes(), name
    for name in ("counts", "hits", "confidence"):
        left, right = getattr(first.class_bins, name), getattr(second.class_bins, name)
        assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes()), name


@given(st.data(), st.sampled_from(KINDS), st.integers(1, 40), st.sampled_from([2, 5, 60]), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_shards_that_are_joined_in_any_order_of_pairs_equal_the_whole(data, kind, samples, classes, seed):
    labels, probabilities = kind(samples, classes, seed)
    whole = predictions(labels, probabilities)
    cuts = sorted(data.draw(st.sets(st.integers(1, samples - 1)))) if samples > 1 else []
    limits = [0, *cuts, samples]
    parts = [
        Predictions.of(whole.ids[low:high], labels[low:high], probabilities[low:high])
        for low, high in itertools.pairwise(limits)
    ]
    while len(parts) > 1:
        first = data.draw(st.integers(0, len(parts) - 2))
        parts[first : first + 2] = [concatenate(parts[first : first + 2])]
    assert_same(parts[0], whole)
    assert score(parts[0]) == score(whole)


@given(st.sampled_from(KINDS), st.integers(1, 60), st.sampled_from([2, 5, 60]), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_order_of_samples_does_not_matter(kind, samples, classes, seed):
    labels, probabilities = kind(samples, classes, seed)
    whole = predictions(labels, probabilities)
    order = np.random.default_rng(seed).permutation(samples)
    shuffled = Predictions.of([whole.ids[i] for i in order], labels[order], probabilities[order])
    assert score(whole) == score(shuffled)


def test_reading_probabilities_in_blocks_gives_the_same_bits(monkeypatch):
    labels, probabilities = overconfident(100, 7)
    whole = predictions(labels, probabilities)
    monkeypatch.setattr(metrics, "BLOCK", 64)
    assert_same(predictions(labels, probabilities), whole)


def test_columns_stay_with_their_samples_in_blocks_and_shards(monkeypatch):
    labels, probabilities = overconfident(20, 7)
    columns = {"logits": np.log(probabilities), "index": np.arange(20)}
    monkeypatch.setattr(metrics, "BLOCK", 21)
    whole = Predictions.of([f"{i}" for i in range(20)], labels, probabilities, columns)
    parts = []
    for low, high in itertools.pairwise((0, 3, 17, 20)):
        part_columns = {name: values[low:high] for name, values in columns.items()}
        part = Predictions.of(whole.ids[low:high], labels[low:high], probabilities[low:high], part_columns)
        parts.append(part)
    for actual in (whole, concatenate(parts)):
        assert actual.columns.keys() == columns.keys()
        assert all(np.array_equal(actual.columns[name], columns[name]) for name in columns)
    assert not predictions(labels, probabilities).columns


# --- registered metrics ---------------------------------------------------------------------------


def test_a_registered_metric_is_scored_until_it_is_removed():
    scored = predictions(*overconfident(20, 7))
    with registered(metric_row("sure", lambda predictions: predictions.confidence.mean())):
        actual = score(scored)
    assert type(actual["sure"]) is float
    assert actual == score(scored) | {"sure": pytest.approx(scored.confidence.mean())}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_is_named(value):
    with registered(metric_row("odd", lambda predictions: value)), pytest.raises(FloatingPointError, match="odd is"):
        score(predictions(*overconfident(20, 7)))


# --- torchmetrics --------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow  # importing torchmetrics alone takes 15 seconds and more
@pytest.mark.parametrize("classes", [2, 10, 60])
def test_metrics_equal_torchmetrics_where_no_confidence_is_an_edge(classes):
    """Torchmetrics has bins [low, high) and this package (low, high], so samples near an edge are left out."""
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

    labels, probabilities = overconfident(2000, classes)
    confidence = probabilities.max(axis=1)
    is_between_edges = (np.abs(confidence[:, None] - EDGES) > 1e-5).all(axis=1)
    assert is_between_edges.sum() > 1000
    labels, probabilities = labels[is_between_edges], probabilities[is_between_edges]
    theirs = torch.from_numpy(probabilities), torch.from_numpy(labels)

    actual = score(predictions(labels, probabilities))
    norms: list[tuple[float, Literal["l1", "max"]]] = [(actual["ece"], "l1"), (actual["mce"], "max")]
    for ours, norm in norms:
        error = multiclass_calibration_error(*theirs, num_classes=classes, n_bins=BINS, norm=norm)
        assert ours == pytest.approx(100 * error.item(), rel=1e-4)  # torchmetrics adds in single precision
    for ours, top in ((actual["accuracy"], 1), (actual["accuracy_top5"], min(5, classes))):
        accuracy = multiclass_accuracy(*theirs, num_classes=classes, top_k=top, average="micro")
        assert ours == pytest.approx(100 * accuracy.item(), rel=1e-6)


# --- bad input -----------------------------------------------------------------------------------


def test_a_sample_in_two_shards_is_refused():
    shard = predictions(np.array([0, 1]), np.full((2, 3), 0.25, np.float32))
    with pytest.raises(InputError, match="sample 'sample 0' appears more than once"):
        concatenate([shard, shard])
