"""Accuracy and calibration metrics as loops over samples, with 20 bins; all but AURC and NLL are in per cent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 20


def accuracy(probabilities: Floats, labels: Ints) -> float:
    hits = 0
    for row, label in zip(probabilities, labels, strict=True):
        if int(row.argmax()) == label:
            hits += 1
    return 100 * hits / len(labels)


def ece(probabilities: Floats, labels: Ints) -> float:
    """Return the expected calibration error: the bins' gaps, weighted by their shares of the samples."""
    confidences, hits = _confidences(probabilities, labels)
    total = 0.0
    for low, high in _equal_bins():
        members = [i for i, c in enumerate(confidences) if low < c <= high]
        total += len(members) / len(labels) * _gap(members, confidences, hits)
    return 100 * total


def mce(probabilities: Floats, labels: Ints) -> float:
    """Return the maximum calibration error: the largest gap of a bin."""
    confidences, hits = _confidences(probabilities, labels)
    worst = 0.0
    for low, high in _equal_bins():
        members = [i for i, c in enumerate(confidences) if low < c <= high]
        worst = max(worst, _gap(members, confidences, hits))
    return 100 * worst


def sce(probabilities: Floats, labels: Ints) -> float:
    """Return the static calibration error: every sample counts for every class, with that class's probability."""
    total = 0.0
    for k in range(probabilities.shape[1]):
        column = [float(p) for p in probabilities[:, k]]
        hits = [float(label == k) for label in labels]
        for low, high in _equal_bins():
            members = [i for i, p in enumerate(column) if low < p <= high]
            total += len(members) * _gap(members, column, hits)
    return 100 * total / probabilities.size


def aece(probabilities: Floats, labels: Ints) -> float:
    """Return the adaptive calibration error: bins end at quantiles of the confidences.

    The first bin includes its lower edge.
    """
    confidences, hits = _confidences(probabilities, labels)
    confidences = [min(max(c, 0.0), 1.0) for c in confidences]
    ranked = sorted(confidences)
    edges: list[float] = []
    for rank in (torch.linspace(0, 1, BINS + 1) * (len(ranked) - 1)).round().int().tolist():
        edge = ranked[rank]
        if not edges or edge != edges[-1]:
            edges.append(edge)
    total = 0.0
    for j in range(len(edges) - 1):
        low, high = edges[j], edges[j + 1]
        members = [i for i, c in enumerate(confidences) if low < c <= high or (j == 0 and c == low)]
        total += len(members) / len(labels) * _gap(members, confidences, hits)
    return 100 * total


def aurc(probabilities: Floats, labels: Ints) -> float:
    """Return the area under the risk-coverage curve as a fraction: the mean of the risks over all coverages.

    The risk at coverage i is the error rate of the i most confident samples; where confidences tie, it is the mean over
    all orders of the tied samples.
    """
    confidences, hits = _confidences(probabilities, labels)
    risks = 0.0
    for covered in range(1, len(labels) + 1):
        threshold = sorted(confidences, reverse=True)[covered - 1]
        errors_above = [1 - hit for c, hit in zip(confidences, hits, strict=True) if c > threshold]
        errors_tied = [1 - hit for c, hit in zip(confidences, hits, strict=True) if c == threshold]
        open_places = covered - len(errors_above)
        risks += (sum(errors_above) + open_places * sum(errors_tied) / len(errors_tied)) / covered
    return risks / len(labels)


def nll_calibration(probabilities: Floats, labels: Ints) -> float:
    """Return the part of the NLL that calibration would save, in nats.

    It is the Kullback-Leibler divergence of a bin's mean confidence from its accuracy, weighted by the bins' shares of
    the samples.
    """
    confidences, hits = _confidences(probabilities, labels)
    total = 0.0
    for low, high in _equal_bins():
        members = [i for i, c in enumerate(confidences) if low < c <= high]
        if members:
            accuracy = sum(hits[i] for i in members) / len(members)
            mean = sum(confidences[i] for i in members) / len(members)
            for rate, probability in ((accuracy, mean), (1 - accuracy, 1 - mean)):
                if rate:
                    total += len(members) / len(labels) * rate * float(np.log(rate / probability))
    return total


def _confidences(probabilities: Floats, labels: Ints) -> tuple[list[float], list[float]]:
    """Return the confidence of each sample, and 1 for each correct prediction and 0 for each wrong one."""
    confidences = [float(row.max()) for row in probabilities]
    hits = [float(int(row.argmax()) == label) for row, label in zip(probabilities, labels, strict=True)]
    return confidences, hits


def _equal_bins() -> list[tuple[float, float]]:
    """Return bins (low, high] of equal width."""
    edges: list[float] = torch.linspace(0, 1, BINS + 1).tolist()
    return list(itertools.pairwise(edges))


def _gap(members: Sequence[int], confidences: Sequence[float], hits: Sequence[float]) -> float:
    """Return the gap |accuracy - mean confidence| of a bin's members, or 0 if the bin has no member."""
    if not members:
        return 0.0
    correct = sum(hits[i] for i in members) / len(members)
    confident = sum(confidences[i] for i in members) / len(members)
    return abs(correct - confident)
