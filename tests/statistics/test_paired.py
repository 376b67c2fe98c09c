"""Intervals and paired differences: images, seeds and Holm's correction."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fpp_sweep.statistics.bootstrap import MetricSamples, RecordSamples, SplitSamples
from fpp_sweep.statistics.paired import (
    MIN_IMAGES,
    Difference,
    Interval,
    SeedVariances,
    SplitStatistics,
    Variance,
    adjust_p_values,
    own_seed_variance,
    satterthwaite,
)
from tests.kit.measured import block_stats, corrected_differences, metric_samples, sampled, split_samples

NO_NOISE = np.zeros(500)


def difference_of(value, standard_error=1.0):
    return Difference(
        first="a", second="b", metric="ece", value=value, standard_error=standard_error, degrees_of_freedom=100
    )


def test_degrees_of_freedom_follow_satterthwaite():
    total = satterthwaite([Variance(0.16, 60), Variance(0.25, 3), Variance(0.0, 0)])
    assert total.value == pytest.approx(0.41)
    assert total.degrees_of_freedom == pytest.approx(0.41**2 / (0.16**2 / 60 + 0.25**2 / 3))


def test_holms_correction_follows_its_definition():
    generator = np.random.default_rng(0)
    for _ in range(50):
        family = [difference_of(value) for value in 2.5 * generator.standard_normal(12)]
        ranked = np.sort([member.p_value for member in family])
        passes = ranked <= 0.05 / np.arange(12, 0, -1)
        rejected = int(np.cumprod(passes).sum())
        assert sum(member.is_significant for member in adjust_p_values(family)) == rejected


def test_the_variance_of_seeds_excludes_the_noise_of_images():
    generator = np.random.default_rng(1)
    estimates = []
    for _ in range(400):
        own_noise = 0.8 * generator.standard_normal((3, 501))  # image noise is independent between seeds
        by_seed = 70 + 0.5 * generator.standard_normal((3, 1)) + own_noise
        estimates.append(own_seed_variance(MetricSamples(by_seed)).value)
    # truncation at zero raises the mean slightly above 0.25; the plain variance over seeds would be 0.25 + 0.64
    assert 0.2 < np.mean(estimates) < 0.55


def test_the_larger_of_a_records_own_variance_and_the_mean_over_finalists_counts():
    records = {"a": {"ece": [4.0, 5.0, 6.0]}, "b": {"ece": [1.0, 5.0, 9.0]}, "baseline": {"ece": [0.0, 50.0, 100.0]}}
    samples = split_samples(records, image_sd=0.0)
    seeds = SplitStatistics(samples, typical=["a", "b"]).seeds("ece")
    assert seeds.by_record["a"] == Variance(8.5, 4.0)  # the mean of 1 and 16, with the degrees of both
    assert seeds.by_record["b"] == Variance(16.0, 2.0)
    assert seeds.of_mean(samples.records["b"], "ece").value == pytest.approx(16 / 3)


def test_seeds_of_all_splits_of_a_record_count():
    """Seeds that fail in the final stage are not forgotten when those of the test split agree by chance."""
    final, test = split_samples({"a": {"ece": [4.0, 12.0, 5.0]}}), split_samples({"a": {"ece": [5.0, 5.1, 5.2]}})
    alone, joint = (SplitStatistics(test, others).seeds("ece").by_record["a"] for others in ([], [final]))
    assert alone.value < 1 < joint.value
    assert joint.degrees_of_freedom == 4


def test_an_unstable_baseline_does_not_hide_differences_of_finalists():
    steady = {f"trial-{number}": {"accuracy": [72.0, 72.2, 71.8]} for number in range(3)}
    baseline = {"zero_shot": {"accuracy": [70.0]}}
    calm = split_samples({**steady, **baseline}, deterministic=["zero_shot"])
    unstable = split_samples({**steady, **baseline, "x": {"accuracy": [40, 72, 60]}}, deterministic=["zero_shot"])
    for samples in (calm, unstable):
        result = SplitStatistics(samples, typical=steady).difference("trial-0", "zero_shot", "accuracy")
        assert adjust_p_values([result])[0].mark == "+"


def test_a_record_of_one_seed_gets_the_seed_variance_of_the_others():
    records = {"a": {"ece": [5.0]}, "b": {"ece": [1.0, 5.0, 9.0]}, "c": {"ece": [4.0, 5.0, 6.0]}}
    samples = split_samples(records, image_sd=0.0)
    seeds = SeedVariances.of(samples.records.values(), "ece")
    assert seeds.of_mean(samples.records["a"], "ece") == Variance(8.5, 4.0)


@pytest.mark.parametrize(
    ("records", "is_known"),
    [
        ({"a": [70.0, 71.0]}, False),
        ({"a": [70.0, 71.0, 72.0]}, True),
        ({"a": [70.0, 71.0], "b": [60.0, 61.0]}, True),
        ({"a": [70.0, 70.0]}, True),  # seeds that change nothing
    ],
)
def test_two_seeds_of_a_single_record_are_too_few(records, is_known):
    samples = split_samples({name: {"accuracy": values} for name, values in records.items()})
    assert SplitStatistics(samples).has_known_seed_variance("a", ["accuracy"]) == is_known


def test_a_record_of_one_seed_has_no_known_variance_whatever_is_known_of_others():
    samples = split_samples(
        {"one": {"ece": [5.0]}, "three": {"ece": [5.0, 6.0, 7.0]}, "more": {"ece": [5.0, 6.0, 6.5]}}
    )
    statistics = SplitStatistics(samples)
    assert not statistics.has_known_seed_variance("one", ["ece"])
    assert statistics.has_known_seed_variance("three", ["ece"])
    assert not statistics.has_known_seed_variance("three", ["ece", "accuracy"])


def test_a_lucky_seed_is_not_shown_as_a_gain():
    # accuracies of a real config by seed: the first seed alone would show a significant gain
    one_seed = split_samples({"a": {"accuracy": [70.1]}, "b": {"accuracy": [66.0]}}, image_sd=0.8)
    three = split_samples({"a": {"accuracy": [70.1, 58.6, 60.0]}, "b": {"accuracy": [66.0, 65.0, 66.5]}}, image_sd=0.8)
    (alone,) = corrected_differences(one_seed, [("a", "b")], ["accuracy"])
    (with_seeds,) = corrected_differences(three, [("a", "b")], ["accuracy"])
    assert alone.mark == "+"
    assert with_seeds.mark == ""


@pytest.mark.parametrize(
    ("metric", "values", "mark"),
    [("accuracy", (72.0, 70.0), "+"), ("accuracy", (70.0, 72.0), "-"), ("ece", (3.0, 6.0), "+"), ("ece", (6, 5.9), "")],
)
def test_marks_follow_the_metrics_goal(metric, values, mark):
    records = {"a": {metric: [values[0]]}, "b": {metric: [values[1]]}}
    (result,) = corrected_differences(split_samples(records, deterministic=["a", "b"]), [("a", "b")], [metric])
    assert result.mark == mark


def test_a_difference_must_be_larger_in_a_larger_family():
    family = [difference_of(-1.0, standard_error=0.4) for _ in range(4)]
    assert [result.mark for result in adjust_p_values(family[:1])] == ["+"]
    assert [result.mark for result in adjust_p_values(family)] == [""] * 4


def test_differences_need_both_records_and_enough_images():
    samples = split_samples({"a": {"ece": [5.0]}, "b": {"ece": [6.0]}}, images=MIN_IMAGES - 1)
    assert SplitStatistics(samples).difference("a", "b", "ece") is None
    assert SplitStatistics(split_samples({"a": {"ece": [5.0]}})).difference("a", "b", "ece") is None


def test_an_interval_stays_in_the_range_of_its_metric():
    samples = split_samples({"a": {"accuracy": [99.9]}, "b": {"brier": [0.001]}}, image_sd=5.0)
    accuracy = SplitStatistics(samples).interval("a", "accuracy")
    brier = SplitStatistics(samples).interval("b", "brier")
    assert accuracy.high == 100.0
    assert brier.low == 0.0


def test_an_interval_covers_the_variance_of_images_and_seeds():
    apart = split_samples({"a": {"accuracy": [60.0, 65.0, 70.0]}}, image_sd=0.5)
    together = split_samples({"a": {"accuracy": [65.0, 65.0, 65.0]}}, image_sd=0.5)
    wide, narrow = (SplitStatistics(samples).interval("a", "accuracy") for samples in (apart, together))
    assert narrow.high - narrow.low == pytest.approx(2 * 1.97 * 0.5 / math.sqrt(2), rel=0.02)
    assert wide.high - wide.low > 10


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("brier_calibration", "bootstrap intervals of brier_calibration contain the truth too rarely"),
        ("accuracy_top5", "cannot be computed from block statistics"),
        ("nll", "no block statistics of these images"),
    ],
)
def test_a_metric_without_an_interval_has_a_reason(metric, reason):
    statistics = SplitStatistics(split_samples({"a": {"ece": [5.0]}}))
    assert statistics.interval("a", metric) is None
    assert reason in statistics.why_no_interval("a", metric)


def test_few_images_have_no_interval():
    samples = split_samples({"a": {"accuracy": [100.0]}}, images=10)
    assert SplitStatistics(samples).why_no_interval("a", "accuracy") == f"fewer than {MIN_IMAGES} images"


def test_a_calibration_error_has_an_interval_if_a_calibrated_model_shows_much_less():
    def record(name, value, bias=2.0):
        return RecordSamples(name, (0,), True, {"ece": metric_samples([value], NO_NOISE, calibrated_bias=bias)})

    records = {name: record(name, value) for name, value in (("far", 9.0), ("near", 2.5), ("at", 3.1))}
    records["spread"] = record("spread", 9.0, bias=8.0)  # confidences near a half make the bias larger
    statistics = SplitStatistics(SplitSamples("test", {"dtd": 1000}, records))
    assert statistics.interval("far", "ece").value == 9.0
    assert statistics.interval("at", "ece").value == 3.1
    assert statistics.why_no_interval("near", "ece").startswith("too near to 2.0")
    assert statistics.why_no_interval("spread", "ece").startswith("too near to 8.0")


def test_seeds_that_change_nothing_give_no_difference_to_a_single_seed():
    """The mean of three equal values was off by its last bit, and the spread of that over resamples was no larger."""
    for seed in range(20):
        generator = np.random.default_rng(seed)
        correct, confidence = generator.random(200) < 0.7, generator.uniform(0.3, 1, 200)
        stats_of_seed = block_stats(correct, confidence, nll=-np.log(confidence))
        tables = {
            "words": {("dtd", 0): stats_of_seed},
            "no steps": {("dtd", number): stats_of_seed for number in (1, 2, 3)},
        }
        samples = sampled(tables, ["accuracy", "ece", "smooth_ece", "nll"], deterministic=["words"])
        for result in corrected_differences(samples, [("no steps", "words")], ["accuracy", "ece", "smooth_ece", "nll"]):
            assert (result.value, result.bias, result.p_value) == (0, 0, 1)


def test_accuracies_that_are_equal_by_chance_rule_no_loss_out():
    """On 60 images, 28 % of the settings that lose 2 points to the reference have its accuracy."""
    generator = np.random.default_rng(0)
    correct, confidence = generator.random(60) < 0.7, generator.uniform(0.3, 1, 60)
    tables = {}
    for name, scale in (("reference", 1.0), ("other", 0.9), ("same", 1.0)):
        tables[name] = {("dtd", 0): block_stats(correct, scale * confidence)}
    samples = sampled(tables, ["accuracy", "ece"], deterministic=tables)
    result = SplitStatistics(samples).difference("other", "reference", "accuracy")
    assert result.value == 0
    assert not result.excludes_loss_beyond(1.0)
    assert result.half_width == pytest.approx(2 * math.sqrt(2) * 100 / 60, rel=0.02)  # of two images more that differ


@pytest.mark.parametrize(
    ("metric", "is_removed"), [("ece", True), ("nll_refinement", True), ("debiased_ece", False), ("accuracy", False)]
)
def test_the_test_and_the_interval_leave_out_the_bias_of_few_images(metric, is_removed):
    noise = 0.3 * np.random.default_rng(0).standard_normal(500)
    records = {}
    for name, value, bias in (("a", 12.0, 2.0), ("b", 9.0, 0.5)):  # the resamples are too high by the bias
        samples = {metric: metric_samples([value], noise + bias, calibrated_bias=1.0)}
        records[name] = RecordSamples(name, (0,), True, samples)
    result = SplitStatistics(SplitSamples("test", {"dtd": 1000}, records)).difference("a", "b", metric)
    bias = 1.5 if is_removed else 0.0
    assert result.value == 3.0
    assert (result.low + result.high) / 2 == pytest.approx(3.0 - bias)
    assert abs(result.gain) == pytest.approx(3.0 - bias)
    if is_removed:  # the noise cancels, and the bias may be wrong by half of itself
        assert result.standard_error == pytest.approx(bias / 2)
        assert result.p_value == pytest.approx(2 * stats.t.sf(2, result.degrees_of_freedom))


@pytest.mark.parametrize(("metric", "is_tested"), [("ece", False), ("accuracy", True)])
def test_two_errors_near_to_calibration_are_not_distinguished(metric, is_tested):
    """Few images alone give a calibrated model with spread confidences a larger ECE than one with narrow ones."""
    noise = 0.1 * np.random.default_rng(0).standard_normal(500)
    records = {}
    for name, value, bias in (("narrow", 6.0, 5.8), ("spread", 10.1, 9.8), ("far", 20.0, 9.8)):
        samples = {metric: metric_samples([value], noise * value, calibrated_bias=bias if metric == "ece" else 0.0)}
        records[name] = RecordSamples(name, (0,), True, samples)
    split = SplitSamples("test", {"dtd": 1000}, records)
    assert (SplitStatistics(split).difference("narrow", "spread", metric) is not None) == is_tested
    assert ("too near to 9.8" in SplitStatistics(split).why_no_difference("narrow", "spread", metric)) != is_tested
    assert SplitStatistics(split).difference("narrow", "far", metric).p_value < 0.01


@pytest.mark.parametrize("posthoc", ["temperature_val", "isotonic"])
def test_metrics_after_a_map_have_no_test(posthoc):
    """Two equal records differ by the luck of the images that their maps are fitted on."""
    metric = f"ece@{posthoc}"
    records = {name: RecordSamples(name, (0,), True, {metric: metric_samples([9.0], NO_NOISE)}) for name in "ab"}
    samples = SplitSamples("test", {"dtd": 1000}, records)
    assert SplitStatistics(samples).difference("a", "b", metric) is None
    assert "is fitted on few images" in SplitStatistics(samples).why_no_difference("a", "b", metric)


def test_the_bias_of_few_images_is_subtracted_once():
    """The bootstrap's bias is subtracted from plain ECE only: debiased ECE is corrected already."""
    noise = 0.3 * np.random.default_rng(0).standard_normal(500) + 1.0  # the mean of the resamples is too high by 1
    metrics = {name: metric_samples([9.0], noise, calibrated_bias=2.0) for name in ("ece", "debiased_ece")}
    samples = SplitSamples("test", {"dtd": 1000}, {"a": RecordSamples("a", (0,), True, metrics)})
    plain, debiased = (SplitStatistics(samples).interval("a", metric) for metric in metrics)
    assert (plain.low + plain.high) / 2 == pytest.approx(8.0, abs=0.05)
    assert (debiased.low + debiased.high) / 2 == pytest.approx(9.0)
    assert debiased.high - debiased.low == pytest.approx(2 * 1.97 * 0.3, rel=0.1)


def test_intervals_cover_the_truth_over_images_and_seeds():
    generator = np.random.default_rng(3)
    covered = 0
    cases = 0
    for _ in range(250):
        records = {}
        for name in ("a", "b", "c", "d"):
            shared = 0.4 * generator.standard_normal()
            values = 70 + shared + 0.5 * generator.standard_normal(3)
            noise = 0.4 * generator.standard_normal(500)
            records[name] = RecordSamples(name, (0, 1, 2), False, {"accuracy": metric_samples(values, noise)})
        samples = SplitSamples("test", {"dtd": 1000}, records)
        for pair in (("a", "b"), ("c", "d")):
            result = SplitStatistics(samples).difference(*pair, "accuracy")
            covered += result.low <= 0 <= result.high
            cases += 1
    assert covered / cases > 0.93


def test_seeds_that_change_nothing_have_no_variance_and_hide_no_other_records():
    varied = {f"trial-{number}": {"accuracy": [72.0, 73.0, 71.0]} for number in range(3)}
    alone = split_samples(varied)
    beside = split_samples({**varied, "zero_shot": {"accuracy": [70.0, 70.0, 70.0]}})
    expected = SeedVariances.of(alone.records.values(), "accuracy")
    seeds = SeedVariances.of(beside.records.values(), "accuracy")
    assert seeds.by_record["trial-0"] == expected.by_record["trial-0"]
    assert seeds.of_mean(beside.records["zero_shot"], "accuracy").value == 0


def test_a_metric_of_one_dataset_needs_enough_images_of_that_one():
    samples = replace(split_samples({"a": {"ece/dtd": [9.0]}}), images={"dtd": 1000, "digits": 16})
    assert isinstance(SplitStatistics(samples).interval("a", "ece/dtd"), Interval)
    few = replace(samples, images={"dtd": 16, "digits": 1000})
    assert SplitStatistics(few).why_no_interval("a", "ece/dtd") == "fewer than 30 images"
