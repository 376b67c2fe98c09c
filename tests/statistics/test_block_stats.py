"""Block statistics: metrics computed from them equal metrics of single images."""

import io
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.core.datasets import fair_order
from fpp_sweep.core.metrics import EDGES, Confidences, accuracy, expected_calibration_error
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import (
    BLOCKWISE_METRICS,
    KERNEL_POINTS,
    KERNEL_WIDTH,
    SMOOTHING,
    BlockStats,
    block_size,
    from_bytes,
    metric_value,
    restrict_to_shared_blocks,
    to_bytes,
)

ARRAYS = ("digests", "images", "correct", "counts", "hits", "residuals", "nll", "brier")


def confidences(generator, images, shift=0.0):
    """Return random predictions that are overconfident by `shift`."""
    confidence = generator.uniform(0.3, 1, images).astype(np.float32)
    return Confidences(confidence, generator.uniform(size=images) < np.clip(confidence - shift, 0, 1))


def names(images):
    return [f"image {index}" for index in range(images)]


def stats_of(outcomes, ids=None, size=0, generator=None):
    generator = generator or np.random.default_rng(9)
    losses = generator.uniform(0, 3, (2, len(outcomes)))
    return BlockStats.of("dtd", ids or names(len(outcomes)), outcomes, *losses, size=size)


def random_stats(images, seed=0, shift=0.1, size=0):
    generator = np.random.default_rng(seed)
    return stats_of(confidences(generator, images, shift), size=size, generator=generator)


def are_identical(first, second):
    if first.size != second.size:
        return False
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8, 64]))
@settings(max_examples=40, deadline=None)
def test_metrics_have_the_same_bits_for_every_block_size(images, seed, size):
    stats = random_stats(images, seed, size=size)
    whole = stats.with_block_size(512)
    assert are_identical(whole, random_stats(images, seed, size=512))
    assert len(whole) == 1
    for metric in BLOCKWISE_METRICS:
        assert metric_value(metric, stats) == metric_value(metric, whole)


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_metrics_of_block_statistics_have_the_bits_of_metrics_of_images(images, seed):
    outcomes = confidences(np.random.default_rng(seed), images)
    stats = stats_of(outcomes)
    assert metric_value("accuracy", stats) == accuracy(outcomes)
    assert metric_value("ece", stats) == expected_calibration_error(outcomes)
    row = BLOCKWISE_METRICS["ece"]
    in_blocks = row.scale * row.value(np.ones(len(stats)) @ row.columns(stats)) / stats.total
    assert in_blocks == expected_calibration_error(outcomes)


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


def test_the_smoothing_is_symmetric():
    np.testing.assert_allclose(SMOOTHING, SMOOTHING[::-1, ::-1])


def test_smooth_ece_is_the_excess_of_a_confidence_that_is_too_high_everywhere():
    stats = stats_of(confidences(np.random.default_rng(3), 40_000, 0.1))
    assert metric_value("smooth_ece", stats) == pytest.approx(10, abs=0.6)
    assert metric_value("smooth_ece", stats_of(confidences(np.random.default_rng(3), 40_000))) < 0.5


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


def test_debiasing_removes_much_of_the_bias_of_few_images():
    generator = np.random.default_rng(4)
    splits = [stats_of(confidences(generator, 200)) for _ in range(40)]
    plain, debiased = (np.mean([metric_value(name, stats) for stats in splits]) for name in ("ece", "debiased_ece"))
    assert plain > 8  # the true error is 0
    assert debiased < 0.7 * plain
    far = [stats_of(confidences(generator, 200, 0.3)) for _ in range(40)]
    assert np.mean([metric_value("debiased_ece", stats) for stats in far]) == pytest.approx(30, abs=1.5)


def test_there_are_enough_blocks_and_they_fit_into_batches():
    for images in (1, 63, 64, 127, 128, 1000, 4095, 4096, 50_000):
        size = block_size(images)
        assert 64 % size == 0 or size % 64 == 0
        assert size == 1 or -(-images // size) >= 64


def test_blocks_that_two_limits_share_are_matched_at_any_block_size():
    """Blocks have 8 images (of 1000) and 2 images (of 200); the first 200 images in the fixed order are shared."""
    order, _ = fair_order("dtd", names(1000))
    generator = np.random.default_rng(5)
    outcomes = confidences(generator, 1000)
    losses = generator.uniform(0, 3, (2, 1000))
    head = order[:200]
    few = BlockStats.of(
        "dtd",
        [f"image {index}" for index in head],
        Confidences(outcomes.confidence[head], outcomes.correct[head]),
        *losses[:, head],
    )
    many = BlockStats.of("dtd", names(1000), outcomes, *losses)
    short, long = restrict_to_shared_blocks([few, many])
    assert (few.size, many.size, len(short)) == (2, 8, 25)
    assert are_identical(short, long)


def test_statistics_of_different_images_are_not_shared():
    generator = np.random.default_rng(0)
    different = stats_of(confidences(generator, 100), [f"other {index}" for index in range(100)])
    with pytest.raises(InputError, match="the same images"):
        restrict_to_shared_blocks([random_stats(100), different])


def test_statistics_are_read_back_from_a_file_to_the_bit():
    table = {("dtd", 0): random_stats(150), ("dtd", 1): random_stats(150, 1), ("a/b c", 0): random_stats(5000, 2)}
    back = from_bytes(to_bytes(table))
    assert list(back) == list(table)
    assert all(are_identical(back[key], stats) for key, stats in table.items())
    assert len(to_bytes(table)) < 150_000


@pytest.mark.parametrize("data", [b"", b"PK\3\4 nothing", to_bytes({("dtd", 0): random_stats(10)})[:-30]])
def test_a_damaged_file_raises_an_error(data):
    with pytest.raises(ValueError, match="not a file of block statistics"):
        from_bytes(data)


def arrays_of(*parts):
    """Return the arrays in a file of statistics; each part has a seed."""
    return dict(np.load(io.BytesIO(to_bytes({("dtd", seed): random_stats(150, seed) for seed in parts or (0, 1)}))))


def file_of(arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def index_of(*rows):
    return np.frombuffer(json.dumps(rows).encode(), np.uint8)


WRONG_ARRAYS = {
    "no image": lambda arrays: {"counts": np.zeros_like(arrays["counts"])},
    "negative counts": lambda arrays: {"counts": -arrays["counts"].astype(np.int64)},
    "huge counts": lambda arrays: {"counts": np.full(arrays["counts"].shape, 2**62)},
    "counts beyond int64": lambda arrays: {"counts": np.full(arrays["counts"].shape, 2**64 - 1, np.uint64)},
    "more hits than images": lambda arrays: {"counts": arrays["counts"][:, ::-1]},
    "counts as text": lambda arrays: {"counts": arrays["counts"].astype("U20")},
    "few columns of counts": lambda arrays: {"counts": arrays["counts"][:, :2]},
    "three axes of counts": lambda arrays: {"counts": arrays["counts"][..., None]},
    "few digests": lambda arrays: {"digests": arrays["digests"][:3]},
    "one digest": lambda arrays: {"digests": arrays["digests"][0]},
    "digests as text": lambda arrays: {"digests": arrays["digests"].astype("U20")},
    "sums as text": lambda arrays: {"sums": arrays["sums"].astype("U20")},
    "sums of few blocks": lambda arrays: {"sums": arrays["sums"][:, :5]},
    "three axes of sums": lambda arrays: {"sums": arrays["sums"][..., None]},
    "sums without value": lambda arrays: {"sums": np.full_like(arrays["sums"], np.nan)},
    "huge sums": lambda arrays: {"sums": np.full_like(arrays["sums"], 1e308)},
    "residuals without value": lambda arrays: {"values": np.full_like(arrays["values"], np.nan)},
    "huge residuals": lambda arrays: {"values": np.full_like(arrays["values"], 1e9)},
    "residuals as text": lambda arrays: {"values": arrays["values"].astype("U20")},
    "negative cells": lambda arrays: {"cells": -1 - arrays["cells"]},
    "cells as numbers": lambda arrays: {"cells": arrays["cells"].astype(np.float64)},
    "name as number": lambda _: {"index": index_of([1, 0, 2, 75], ["dtd", 1, 2, 75])},
    "no name": lambda _: {"index": index_of([None, 0, 2, 75], ["dtd", 1, 2, 75])},
    "list as name": lambda _: {"index": index_of([["dtd"], 0, 2, 75], ["dtd", 1, 2, 75])},
    "name that is no text": lambda _: {"index": index_of(["\ud800", 0, 2, 75], ["dtd", 1, 2, 75])},
    "seed as text": lambda _: {"index": index_of(["dtd", "0", 2, 75], ["dtd", 1, 2, 75])},
    "no size": lambda _: {"index": index_of(["dtd", 0, 0, 75], ["dtd", 1, 2, 75])},
    "size as text": lambda _: {"index": index_of(["dtd", 0, "2", 75], ["dtd", 1, 2, 75])},
    "huge size": lambda _: {"index": index_of(["dtd", 0, 2**90, 75], ["dtd", 1, 2, 75])},
    "odd size": lambda _: {"index": index_of(["dtd", 0, 3, 75], ["dtd", 1, 2, 75])},
    "size below the images": lambda _: {"index": index_of(["dtd", 0, 1, 75], ["dtd", 1, 2, 75])},
    "number of blocks as float": lambda _: {"index": index_of(["dtd", 0, 2, 75.0], ["dtd", 1, 2, 75])},
    "negative number of blocks": lambda _: {"index": index_of(["dtd", 0, 2, 225], ["dtd", 1, 2, -75])},
    "no blocks": lambda _: {"index": index_of(["dtd", 0, 2, 75], ["dtd", 1, 2, 75], ["pets", 0, 2, 0])},
    "one part twice": lambda _: {"index": index_of(["dtd", 0, 2, 75], ["dtd", 0, 2, 75])},
    "a part is missing": lambda _: {"index": index_of(["dtd", 0, 2, 75])},
    "empty index": lambda _: {"index": index_of()},
    "deep index": lambda _: {"index": np.frombuffer(b"[" * 100_000, np.uint8)},
}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_arrays_of_wrong_shape_type_or_sign_are_refused(wrong):
    arrays = arrays_of()
    assert len(from_bytes(file_of(arrays))) == 2
    with pytest.raises(ValueError, match="not a file of block statistics"):
        from_bytes(file_of(arrays | wrong(arrays)))


def test_a_missing_part_is_named_as_what_is_wrong():
    arrays = arrays_of() | {"index": index_of(["dtd", 0, 2, 75])}
    with pytest.raises(ValueError, match="the index does not have each of 150 blocks once"):
        from_bytes(file_of(arrays))


def peak_of_refusal(data):
    """Return the bytes of memory that it takes to refuse a file."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a file of block statistics"):
            from_bytes(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_file_of_many_blocks_is_refused_before_it_takes_memory():
    blocks = 100_000
    arrays = {
        "digests": np.zeros(blocks, np.uint64),
        "counts": np.ones((blocks, 42), np.uint8),
        "sums": np.zeros((8, blocks)),
        "cells": np.zeros(0, np.int32),
        "values": np.zeros(0),
        "index": index_of(["dtd", 0, 1, blocks]),
    }
    data = file_of(arrays)
    assert len(data) < 50_000
    assert peak_of_refusal(data) < 50 * 2**20
    zeros = file_of(arrays_of() | {"values": np.zeros(2**24)})  # 128 MiB
    assert peak_of_refusal(zeros) < 2**20


def test_one_dataset_with_more_blocks_than_resamples_can_hold_is_refused():
    blocks = 10_000
    stats = random_stats(blocks, size=1)
    with pytest.raises(ValueError, match="cannot have 10000 blocks of 1 images"):
        from_bytes(to_bytes({("dtd", 0): stats}))


def test_a_file_of_far_more_runs_than_a_sweep_has_is_read():
    table = {(f"data {run % 40}", run // 40): random_stats(500, run) for run in range(400)}
    assert len(from_bytes(to_bytes(table))) == 400
