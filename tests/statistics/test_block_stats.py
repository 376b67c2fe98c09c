"""Block statistics: metrics computed from them equal metrics of single images."""

import io
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.core.metrics import EDGES, Confidences, accuracy, expected_calibration_error
from fpp_sweep.statistics.block_stats import (
    BLOCKWISE_METRICS,
    KERNEL_POINTS,
    KERNEL_WIDTH,
    BlockStats,
    block_size,
    from_bytes,
    metric_value,
    resample,
    to_bytes,
)

ARRAYS = ("digests", "images", "correct", "counts", "hits", "residuals", "nll", "brier")


def confidences(generator, images, shift=0.0):
    """Return random predictions that are overconfident by `shift`."""
    confidence = generator.uniform(0.3, 1, images).astype(np.float32)
    return Confidences(confidence, generator.uniform(size=images) < np.clip(confidence - shift, 0, 1))


def names(images):
    return [f"image {index}" for index in range(images)]


def stats_of(outcomes, ids=None, generator=None):
    generator = generator or np.random.default_rng(9)
    losses = generator.uniform(0, 3, (2, len(outcomes)))
    return BlockStats.of("dtd", ids or names(len(outcomes)), outcomes, *losses)


def random_stats(images, seed=0, shift=0.1):
    generator = np.random.default_rng(seed)
    return stats_of(confidences(generator, images, shift), generator=generator)


def are_identical(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_metrics_of_block_statistics_have_the_bits_of_metrics_of_images(images, seed):
    outcomes = confidences(np.random.default_rng(seed), images)
    stats = stats_of(outcomes)
    assert metric_value("accuracy", stats) == accuracy(outcomes)
    assert metric_value("ece", stats) == expected_calibration_error(outcomes)
    for metric in BLOCKWISE_METRICS:
        assert metric_value(metric, stats) == metric_value(metric, stats.summed())
    assert resample("ece", stats, np.ones((1, len(stats)))) == expected_calibration_error(outcomes)


def test_confidences_on_edges_fall_into_the_bins_of_ece():
    outcomes = Confidences(EDGES.copy(), np.arange(len(EDGES)) % 2 == 0)
    stats = stats_of(outcomes)
    assert metric_value("ece", stats) == expected_calibration_error(outcomes)
    assert stats.counts.sum() == len(EDGES) - 1  # exactly 0 is in no bin
    assert stats.total == len(EDGES)


def test_the_order_of_predictions_does_not_matter():
    generator = np.random.default_rng(1)
    outcomes, ids = confidences(generator, 90), names(90)
    losses = generator.uniform(0, 3, (2, 90))
    order = generator.permutation(90)
    shuffled = Confidences(outcomes.confidence[order], outcomes.correct[order])
    first = BlockStats.of("dtd", ids, outcomes, *losses)
    assert are_identical(first, BlockStats.of("dtd", [ids[index] for index in order], shuffled, *losses[:, order]))


def test_smooth_ece_equals_its_definition():
    """The loop spreads residuals of 200 cells over 40 points by a Gaussian that is reflected at 0 and 1."""
    outcomes = confidences(np.random.default_rng(2), 60)
    smoothed = [0.0] * KERNEL_POINTS
    for confidence, hit in zip(outcomes.confidence.tolist(), outcomes.correct.tolist(), strict=True):
        centre = (math.ceil(confidence * 200 - 1e-6) - 0.5) / 200
        shares = []
        for point in ((index + 0.5) / KERNEL_POINTS for index in range(KERNEL_POINTS)):
            images = (point, -point, 2 - point, 2 + point, point - 2)
            shares.append(sum(math.exp(-0.5 * ((image - centre) / KERNEL_WIDTH) ** 2) for image in images))
        for index, share in enumerate(shares):
            smoothed[index] += share / sum(shares) * (hit - confidence)
    assert metric_value("smooth_ece", stats_of(outcomes)) == pytest.approx(100 * sum(map(abs, smoothed)) / 60, rel=1e-6)


def test_debiased_ece_equals_its_definition():
    """The loop sums |residual| - bias over bins; the bias is the mean of |N(residual, variance)| - |residual|."""
    outcomes = confidences(np.random.default_rng(6), 150, 0.05)
    total = 0.0
    for index in range(len(EDGES) - 1):
        inside = (outcomes.confidence > EDGES[index]) & (outcomes.confidence <= EDGES[index + 1])
        count, hits = int(inside.sum()), int(outcomes.correct[inside].sum())
        gap = abs(hits - math.fsum(outcomes.confidence[inside].tolist()))
        spread = math.sqrt(hits * (count - hits) / count) if count else 0.0
        if spread:
            z = gap / spread
            mean = spread * math.sqrt(2 / math.pi) * math.exp(-z * z / 2) + gap * math.erf(z / math.sqrt(2))
            gap -= mean - gap
        total += gap
    assert metric_value("debiased_ece", stats_of(outcomes)) == pytest.approx(100 * total / 150, rel=1e-5)


def test_there_are_enough_blocks_and_they_fit_into_batches():
    for images in (1, 63, 64, 127, 128, 1000, 4095, 4096, 50_000):
        size = block_size(images)
        assert 64 % size == 0 or size % 64 == 0
        assert size == 1 or -(-images // size) >= 64


def test_statistics_are_read_back_from_a_file_to_the_bit():
    table = {("dtd", 0): random_stats(150), ("dtd", 1): random_stats(150, 1), ("a/b c", 0): random_stats(5000, 2)}
    back = from_bytes(to_bytes(table))
    assert list(back) == list(table)
    assert all(are_identical(back[key], stats) for key, stats in table.items())
    assert len(to_bytes(table)) < 150_000


GOOD = to_bytes({("dtd", 0): random_stats(200)})
DAMAGED = {
    "empty": b"",
    "no zip file": b"PK\3\4 nothing",
    "cut": GOOD[:-30],
    "one byte differs": GOOD[:2000] + bytes([GOOD[2000] ^ 1]) + GOOD[2001:],
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_raises_an_error(data):
    with pytest.raises(ValueError, match="not a file of block statistics"):
        from_bytes(data)


def test_a_small_file_does_not_take_much_memory():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict(np.load(io.BytesIO(GOOD))) | {"values": np.zeros(2**24)})  # 128 MiB
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a file of block statistics"):
            from_bytes(buffer.getvalue())
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
