"""Sums by block against metrics of single images, and what is made of them against plain loops and known truths."""

import math

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
    BlockStats,
    block_size,
    from_bytes,
    metric_value,
    restrict_to_shared_blocks,
    to_bytes,
)
from fpp_sweep.statistics.old_bootstrap import (
    UNLIKELY,
    BootstrapSamples,
    alike,
    attained,
    averaged,
    closer,
    difference,
    drawn,
    front_support,
    on_front,
    optimism,
    resampled,
    signed,
    single,
    weights,
)

ARRAYS = ("digests", "images", "correct", "counts", "hits", "residuals", "nll", "brier")


def confidences(generator, images, shift=0.0):
    """Made-up predictions, over-confident by `shift`."""
    confidence = generator.uniform(0.3, 1, images).astype(np.float32)
    return Confidences(confidence, generator.uniform(size=images) < np.clip(confidence - shift, 0, 1))


def names(images):
    return [f"image {index}" for index in range(images)]


def sums_of(given, ids=None, size=0, generator=None):
    generator = generator or np.random.default_rng(9)
    losses = generator.uniform(0, 3, (2, len(given)))
    return BlockStats.of("dtd", ids or names(len(given)), given, *losses, size=size)


def made(images, seed=0, shift=0.1, size=0):
    generator = np.random.default_rng(seed)
    return sums_of(confidences(generator, images, shift), size=size, generator=generator)


def equal(one, other):
    return one.size == other.size and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS
    )  # to the bit


# --- sums ------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8, 64]))
@settings(max_examples=40, deadline=None)
def test_sums_in_blocks_are_sums_in_one_piece_to_the_bit(images, seed, size):
    one = made(images, seed, size=size)
    whole = one.with_block_size(512)
    assert equal(whole, made(images, seed, size=512))
    assert len(whole) == 1
    for metric in BLOCKWISE_METRICS:
        assert metric_value(metric, one) == metric_value(metric, whole)


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_metrics_of_sums_are_those_of_images_to_the_bit(images, seed):
    given = confidences(np.random.default_rng(seed), images)
    one = sums_of(given)
    assert metric_value("accuracy", one) == accuracy(given)
    assert metric_value("ece", one) == expected_calibration_error(given)
    row = BLOCKWISE_METRICS["ece"]
    in_blocks = row.scale * row.value(np.ones(len(one)) @ row.columns(one)) / one.total
    assert in_blocks == expected_calibration_error(given)


def test_confidences_on_edges_are_in_the_bins_of_ece():
    given = Confidences(EDGES.copy(), np.arange(len(EDGES)) % 2 == 0)
    one = sums_of(given)
    assert metric_value("ece", one) == expected_calibration_error(given)
    assert one.counts.sum() == len(EDGES) - 1  # exactly 0 is in no bin
    assert one.total == len(EDGES)


def test_the_order_in_which_predictions_come_changes_nothing():
    generator = np.random.default_rng(1)
    given, ids = confidences(generator, 90), names(90)
    losses = generator.uniform(0, 3, (2, 90))
    order = generator.permutation(90)
    shuffled = Confidences(given.confidence[order], given.correct[order])
    first = BlockStats.of("dtd", ids, given, *losses)
    assert equal(first, BlockStats.of("dtd", [ids[index] for index in order], shuffled, *losses[:, order]))


def test_smooth_ece_equals_its_definition():
    """Residuals in 200 cells, each spread over 40 points by a Gaussian that is reflected at 0 and 1."""
    given = confidences(np.random.default_rng(2), 60)
    smoothed = [0.0] * KERNEL_POINTS
    for confidence, hit in zip(given.confidence.tolist(), given.correct.tolist(), strict=True):
        centre = (math.ceil(confidence * 200 - 1e-6) - 0.5) / 200
        shares = []
        for point in ((index + 0.5) / KERNEL_POINTS for index in range(KERNEL_POINTS)):
            images = (point, -point, 2 - point, 2 + point, point - 2)
            shares.append(sum(math.exp(-0.5 * ((image - centre) / KERNEL_WIDTH) ** 2) for image in images))
        for index, share in enumerate(shares):
            smoothed[index] += share / sum(shares) * (hit - confidence)
    assert metric_value("smooth_ece", sums_of(given)) == pytest.approx(100 * sum(map(abs, smoothed)) / 60, rel=1e-6)


def test_a_confidence_that_is_too_high_everywhere_is_smooth_eces_value():
    one = sums_of(confidences(np.random.default_rng(3), 40_000, 0.1))
    assert metric_value("smooth_ece", one) == pytest.approx(10, abs=0.6)
    assert metric_value("smooth_ece", sums_of(confidences(np.random.default_rng(3), 40_000))) < 0.5


def test_debiased_ece_equals_its_definition():
    """Of each bin |residual|, less how much larger the mean of |N(residual, its variance)| is."""
    given = confidences(np.random.default_rng(6), 150, 0.05)
    total = 0.0
    for index in range(len(EDGES) - 1):
        inside = (given.confidence > EDGES[index]) & (given.confidence <= EDGES[index + 1])
        count, hits = int(inside.sum()), int(given.correct[inside].sum())
        gap = abs(hits - math.fsum(given.confidence[inside].tolist()))
        spread = math.sqrt(hits * (count - hits) / count) if count else 0.0
        if spread:
            z = gap / spread
            mean = spread * math.sqrt(2 / math.pi) * math.exp(-z * z / 2) + gap * math.erf(z / math.sqrt(2))
            gap -= mean - gap
        total += gap
    assert metric_value("debiased_ece", sums_of(given)) == pytest.approx(100 * total / 150, rel=1e-5)


def test_debiasing_takes_out_much_of_what_few_images_add():
    generator = np.random.default_rng(4)
    splits = [sums_of(confidences(generator, 200)) for _ in range(40)]
    plain, debiased = (np.mean([metric_value(name, one) for one in splits]) for name in ("ece", "debiased_ece"))
    assert plain > 8  # the truth is 0
    assert debiased < 0.7 * plain
    far = [sums_of(confidences(generator, 200, 0.3)) for _ in range(40)]
    assert np.mean([metric_value("debiased_ece", one) for one in far]) == pytest.approx(30, abs=1.5)


def test_blocks_are_enough_and_fit_into_batches():
    for images in (1, 63, 64, 127, 128, 1000, 4095, 4096, 50_000):
        size = block_size(images)
        assert 64 % size == 0 or size % 64 == 0
        assert size == 1 or -(-images // size) >= 64


def test_blocks_that_two_limits_share_are_found_whatever_their_size():
    """Of 1000 images a block has 8, of 200 it has 2; the first 200 in the fixed order are the same."""
    order, _ = fair_order("dtd", names(1000))
    generator = np.random.default_rng(5)
    given = confidences(generator, 1000)
    losses = generator.uniform(0, 3, (2, 1000))
    head = order[:200]
    few = BlockStats.of(
        "dtd",
        [f"image {index}" for index in head],
        Confidences(given.confidence[head], given.correct[head]),
        *losses[:, head],
    )
    many = BlockStats.of("dtd", names(1000), given, *losses)
    short, long = restrict_to_shared_blocks([few, many])
    assert (few.size, many.size, len(short)) == (2, 8, 25)
    assert equal(short, long)


def test_other_images_are_not_paired():
    generator = np.random.default_rng(0)
    other = sums_of(confidences(generator, 100), [f"other {index}" for index in range(100)])
    with pytest.raises(InputError, match="the same images"):
        drawn("dtd", "val", [[made(100)], [other]], ["accuracy"])
    with pytest.raises(InputError, match="trials with 1 and with 2 seeds cannot be paired"):
        drawn("dtd", "val", [[made(100)], [made(100), made(100)]], ["accuracy"])


def test_sums_come_back_from_a_file_to_the_bit():
    table = {("dtd", 0): made(150), ("dtd", 1): made(150, 1), ("a/b c", 0): made(5000, 2)}
    back = from_bytes(to_bytes(table))
    assert list(back) == list(table)
    assert all(equal(back[key], one) for key, one in table.items())
    assert len(to_bytes(table)) < 150_000


@pytest.mark.parametrize("data", [b"", b"PK\3\4 nothing", to_bytes({("dtd", 0): made(10)})[:-30]])
def test_a_damaged_file_has_no_sums(data):
    with pytest.raises(ValueError, match="not a file of block statistics"):
        from_bytes(data)


# --- resamples -------------------------------------------------------------------------------------


def test_a_draw_is_what_a_loop_over_its_blocks_gives():
    one = made(100, size=2)
    found = resampled("dtd", "val", [one], ["accuracy", "ece", "nll"], 20)
    for number, row in enumerate(weights("dtd", "val", 50, 20), 1):
        taken = one.take(np.repeat(np.arange(50), row.astype(int)))
        for metric, values in found.items():
            assert values[number] == pytest.approx(metric_value(metric, taken), rel=1e-9)
            assert values[0] == pytest.approx(metric_value(metric, one), rel=1e-9)


def test_weights_follow_from_dataset_split_and_draw_alone():
    assert np.array_equal(weights("dtd", "val", 50, 30)[:10], weights("dtd", "val", 50, 10))
    assert not np.array_equal(weights("dtd", "val", 50, 10), weights("dtd", "test", 50, 10))
    assert not np.array_equal(weights("dtd", "val", 50, 10), weights("pets", "val", 50, 10))
    assert (weights("dtd", "val", 50, 10).sum(axis=1) == 50).all()


def test_datasets_are_drawn_each_on_its_own_so_that_errors_average_out():
    alone = drawn("a", "val", [[made(400)]], ["accuracy"])
    four = averaged([drawn(name, "val", [[made(400)]], ["accuracy"]) for name in "abcd"])
    assert four["accuracy"].interval(0).sd == pytest.approx(alone["accuracy"].interval(0).sd / 2, rel=0.2)


def test_equal_trials_differ_by_nothing():
    found = drawn("dtd", "val", [[made(100)], [made(100)]], ["accuracy", "debiased_ece"])
    gap = difference(found, "ece", 0, 1)
    assert (gap.low, gap.value, gap.high, gap.sign) == (0, 0, 0, 0)
    assert difference(found, "accuracy", 0, 1).value == 0
    assert alike(found, ["accuracy", "ece"], 0).tolist() == [True, True]


@pytest.mark.parametrize(("images", "told"), [(1, 0), (4, 0), (5, 0), (7, 1)])
def test_few_images_that_one_gets_right_and_the_other_does_not_prove_nothing(images, told):
    """Of 5 that all speak for one side, chance alone does as much in one case of 16; of 7 in one of 64."""
    right = np.arange(400) < 200
    more = np.arange(400) < 200 + images
    sides = [[sums_of(Confidences(np.full(400, 0.5, np.float32), one))] for one in (more, right)]
    gap = difference(drawn("dtd", "val", sides, ["accuracy"]), "accuracy", 0, 1)
    assert gap.value == images / 4
    assert gap.sign == told


@pytest.mark.parametrize("wrong", [0, 1, 100])
def test_an_accuracy_that_nothing_speaks_against_has_an_interval_all_the_same(wrong):
    """Of 100 images 3 may well be wrong although all that were seen are right."""
    correct = np.arange(100) >= wrong
    found = drawn("dtd", "val", [[sums_of(Confidences(np.full(100, 0.9, np.float32), correct))]], ["accuracy"])
    interval = found["accuracy"].interval(0)
    assert interval.value == 100 - wrong
    assert 2.5 < interval.high - interval.value < 3


def test_seeds_that_differ_widen_an_interval_by_what_they_differ():
    """Two seeds, 60 and 70 % right: the mean over seeds has a standard deviation of 5 from them alone."""
    right = [np.arange(1000) % 10 < tenths for tenths in (6, 7)]
    seeds = [sums_of(Confidences(np.full(1000, 0.8, np.float32), one)) for one in right]
    found = drawn("dtd", "val", [seeds], ["accuracy"], 4000)["accuracy"].interval(0)
    images = drawn("dtd", "val", [[one] for one in seeds], ["accuracy"])["accuracy"].interval(0).sd
    assert found.value == 65
    assert found.sd == pytest.approx(math.hypot(5, images), rel=0.1)


def test_what_has_no_honest_interval_says_so():
    found = drawn("dtd", "val", [[made(200)]], list(BLOCKWISE_METRICS))
    assert single(found, "accuracy", 0, 200).sd > 0
    assert single(found, "ece", 0, 200) == "no interval: biased by few images (200 of a dataset, 1000 would do)"
    far = drawn("dtd", "val", [[made(1000, shift=0.3)]], list(BLOCKWISE_METRICS))
    assert single(far, "ece", 0, 1000).value == metric_value("debiased_ece", made(1000, shift=0.3))
    assert single(far, "smooth_ece", 0, 1000).low > 20
    sets = [
        drawn(name, "val", [[made(1000, seed, shift=0.0)]], list(BLOCKWISE_METRICS))
        for seed, name in enumerate("abcdef")
    ]
    for metric in ("ece", "smooth_ece"):
        assert "so small that few images bias it by as much" in single(averaged(sets), metric, 0, 1000)
    assert single(found, "mce", 0, 1000) == "no interval: it does not follow from sums over images"
    assert difference(found, "mce", 0, 0) is None


def test_intervals_of_differences_hold_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(1)
    pools = []
    for shift in (0.15, 0.3):
        given = confidences(generator, 8000, shift)
        pools.append(BlockStats.of("dtd", names(8000), given, *generator.uniform(0, 3, (2, 8000)), size=1))
    truth = {
        name: metric_value(name, pools[0]) - metric_value(name, pools[1]) for name in ("accuracy", "ece", "smooth_ece")
    }
    held = dict.fromkeys(truth, 0)
    for number in range(120):
        taken = generator.integers(0, 8000, 400)
        found = drawn(
            "dtd", f"{number}", [[pool.take(taken).with_block_size(4)] for pool in pools], list(BLOCKWISE_METRICS), 300
        )
        for name, wanted in truth.items():
            gap = difference(found, name, 0, 1)
            held[name] += gap.low <= wanted <= gap.high
    assert all(107 <= count <= 120 for count in held.values()), held


# --- fronts ----------------------------------------------------------------------------------------


def cloud(means, generator, sd=0.5, draws=400):
    """Drawn values around means, each on its own."""
    return BootstrapSamples(
        np.array(means), np.array(means)[:, None] + sd * generator.standard_normal((len(means), draws))
    )


def test_support_is_the_share_of_draws_in_which_nothing_beats_a_trial():
    better = np.array([[[2.0, 0.0], [1.0, 1.0], [1.0, 3.0]], [[2.0, 5.0], [3.0, 1.0], [1.0, 3.0]]])
    # draw 0: (2, 2), (1, 3), (1, 1): the last is beaten; draw 1: (0, 5), (1, 1), (3, 3): the middle is
    assert front_support(better, spread=1.0).tolist() == [1.0, 0.5, 0.5]


def test_equal_trials_do_not_take_each_other_off_the_front():
    assert front_support(np.ones((2, 3, 4))).tolist() == [1.0, 1.0, 1.0]


def test_support_falls_with_the_distance_from_the_front():
    generator = np.random.default_rng(0)
    found = {"accuracy": cloud([70, 69.8, 60], generator), "ece": cloud([4, 4.2, 9], generator)}
    near, next_to_it, far = front_support(signed(found, ["accuracy", "ece"], ["max", "min"]))
    assert near > next_to_it > 0.1 > far == 0


def observed(truth, generator, sd=1.0, draws=300):
    """(objectives, trials, draws) around what was seen: as far off as chance takes a trial, and all trials together."""
    seen = truth + sd * generator.standard_normal(truth.shape)
    noise = sd * generator.standard_normal((*truth.shape, draws)) + 5 * sd * generator.standard_normal(draws)
    return seen[:, :, None] + noise - noise.mean(axis=2, keepdims=True)


def along(trials=40, reach=6.0):
    """All on the front, where one objective is bought with the other."""
    places = np.linspace(-reach, reach, trials)
    return np.stack([places, -places])


def test_trials_along_the_front_are_not_taken_off_it_by_chance_across_it():
    generator = np.random.default_rng(0)
    support, plain = [], []
    for _ in range(10):
        better = observed(along(80), generator)
        support.append(front_support(better))
        plain.append(on_front(better))
    assert np.mean(support) > 1.08 * np.mean(plain)  # all are members
    assert np.less(support, UNLIKELY).mean() < 0.04 < 0.08 < np.less(plain, UNLIKELY).mean()


def test_values_come_closer_by_what_chance_has_put_between_them_and_at_most_by_half():
    generator = np.random.default_rng(0)

    def left(truth):
        better = observed(truth, generator)
        after = closer(better)
        assert after - after.mean(axis=2, keepdims=True) == pytest.approx(better - better.mean(axis=2, keepdims=True))
        centres = [points.mean(axis=2) for points in (better, after)]
        across, length = ([np.std(sign @ one) for one in centres] for sign in ([1, 1], [1, -1]))
        return across[1] / across[0], length[1] / length[0]

    assert left(np.zeros((2, 200))) == pytest.approx((0.5, 0.5))
    assert left(along(200, 60.0)) == pytest.approx((0.5, 1), abs=0.01)  # across it is chance, along it is not
    kept = left(3**0.5 * generator.standard_normal((2, 200)))  # a quarter of the variance is chance
    assert kept == pytest.approx((0.75, 0.75), abs=0.08)
    assert left(np.zeros((2, 4))) == (1, 1)  # too few to tell


def test_equal_trials_are_not_told_apart_when_values_come_closer():
    better = observed(along(23), np.random.default_rng(0))
    better = np.concatenate([better, better, better], axis=1)
    support = front_support(better)
    assert support[:23].tolist() == support[23:46].tolist() == support[46:].tolist()
    assert support.sum() > 3


def test_an_objective_that_is_taken_as_exact_keeps_its_values_to_the_last_bit_and_so_its_ties():
    for seed in range(10):
        generator = np.random.default_rng(seed)
        exact = np.repeat(np.repeat(generator.standard_normal(10), 2)[:, None], 300, axis=1)
        noisy = observed(3 * exact[None, :, 0], generator)[0]
        noisy[1::2] = noisy[::2] - 1e-6  # of two with the same, one is behind by a hair
        better = np.stack([noisy, exact])
        assert np.array_equal(closer(better)[1], exact)
        assert not np.array_equal(closer(better)[0], noisy)
        assert front_support(better)[1::2].tolist() == [0] * 10


def test_what_is_never_on_the_front_even_in_wider_draws_has_no_support_and_changes_nobodys():
    generator = np.random.default_rng(0)
    better = observed(along(), generator)
    far = better[:, ::2] - 40
    support = front_support(np.concatenate([better, far], axis=1))
    assert support[40:].tolist() == [0] * 20
    assert support[:40].tolist() == front_support(better).tolist()
    assert (support > 0).sum() > 20


def test_draws_are_put_back_around_the_values_so_that_a_resamples_bias_moves_no_front():
    one = BootstrapSamples(np.array([4.0, 5.0]), np.array([[6.0, 8.0], [5.0, 5.0]]))
    assert one.recentred.tolist() == [[3.0, 5.0], [5.0, 5.0]]


def test_the_best_of_many_equal_trials_is_corrected_for_having_been_chosen():
    generator = np.random.default_rng(0)
    gaps = []
    for _ in range(60):
        values = 70 + generator.standard_normal(20)  # the truth is 70 for all
        draws = values[:, None] + generator.standard_normal((20, 300))
        gaps.append((values.max() - 70, values.max() - optimism(draws) - 70))
    before, after = np.mean(gaps, axis=0)
    assert before > 1.6
    assert abs(after) < 0.5 * before


def test_the_region_of_the_front_runs_where_shares_of_the_draws_reach():
    """Three trials side by side, the first the best in one objective, the last in the other."""
    generator = np.random.default_rng(0)
    better = np.stack([np.array([70.0, 69, 68])[:, None] + 0.1 * generator.standard_normal((3, 500)),
                       np.array([-8.0, -6, -4])[:, None] + 0.1 * generator.standard_normal((3, 500))])  # fmt: skip
    places, (tenth, half, most) = attained(better)
    assert places[-1] > 70 > places[0]
    at = int(np.argmin(np.abs(places - 69.5)))
    assert most[at] < half[at] < tenth[at] < -7.5
    assert half[at] == pytest.approx(-8, abs=0.1)
    assert half[0] == pytest.approx(-4, abs=0.1)
    for reached in (tenth, half, most):
        assert (np.diff(reached[np.isfinite(reached)]) <= 0).all()
