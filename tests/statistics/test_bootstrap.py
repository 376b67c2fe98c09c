"""Resampled metrics equal plain loops, and a few images prove no difference."""

import numpy as np
import pytest

from fpp_sweep.statistics.block_stats import metric_value, resample
from fpp_sweep.statistics.bootstrap import NO_MAP, average_over, block_weights, sample_record
from fpp_sweep.statistics.front_support import front_region
from fpp_sweep.statistics.paired import SplitStatistics
from tests.kit.measured import block_stats, corrected_differences, sampled, split_samples


def random_table(generator, images=400, dataset="dtd"):
    return {(dataset, 0): block_stats(generator.random(images) < 0.7, dataset=dataset)}


def test_a_resample_equals_a_loop_over_its_blocks():
    stats = block_stats(np.random.default_rng(0).random(200) < 0.6)
    weights = block_weights("dtd", "val", 100)[:20]
    for metric in ("accuracy", "ece", "nll"):
        values = resample(metric, stats, weights)
        assert values[0] == pytest.approx(metric_value(metric, stats), rel=1e-9)
        for value, counts in zip(values, weights, strict=True):
            taken = stats.take(np.repeat(np.arange(100), counts.astype(int)))
            assert value == pytest.approx(metric_value(metric, taken), rel=1e-9)


def test_the_bias_of_a_calibrated_model_is_the_mean_over_seeds():
    generator = np.random.default_rng(0)
    narrow, wide = (
        block_stats(generator.random(400) < 0.7, generator.uniform(low, 1.0, 400), dataset="dtd") for low in (0.9, 0.1)
    )
    tables = {
        "a": {("dtd", 0): narrow, ("dtd", 1): wide},
        "b": {("dtd", 0): wide, ("dtd", 1): narrow},
        "narrow": {("dtd", 0): narrow},
        "wide": {("dtd", 0): wide},
    }
    samples = sampled(tables, ["ece"])
    bias = {name: samples.metric(name, "ece").calibrated_bias for name in tables}
    assert bias["narrow"] < bias["wide"]
    assert bias["a"] == bias["b"] == pytest.approx((bias["narrow"] + bias["wide"]) / 2)


def test_block_weights_depend_on_dataset_split_and_number_of_blocks_only():
    weights = block_weights("dtd", "val", 50)
    assert not np.array_equal(block_weights("dtd", "test", 50), weights)
    assert not np.array_equal(block_weights("pets", "val", 50), weights)
    assert (weights.sum(axis=1) == 50).all()


def test_block_weights_are_the_same_in_every_version_so_that_published_intervals_can_be_repeated():
    expected = [[1] * 8, [0, 1, 3, 0, 1, 0, 3, 0], [0, 1, 1, 1, 1, 1, 2, 1]]
    assert block_weights("dtd", "val", 8)[:3].tolist() == expected


def test_datasets_are_resampled_independently():
    generator = np.random.default_rng(0)
    table = {}
    for name in "abcd":
        table |= random_table(generator, dataset=name)
    samples = sampled({"trial": table}, ["accuracy"]).records["trial"].metrics
    assert samples["accuracy"].draws.std() == pytest.approx(samples["accuracy/a"].draws.std() / 2, rel=0.2)


def test_an_average_over_some_datasets_equals_the_average_of_a_record_with_these_alone():
    generator = np.random.default_rng(0)
    table = {}
    for name in "abc":
        table |= random_table(generator, dataset=name)
    part = {key: stats for key, stats in table.items() if key[0] in "ac"}
    averaged = average_over(sampled({"trial": table}, ["accuracy", "nll"]), ["a", "c"])
    expected = sampled({"trial": part}, ["accuracy", "nll"])
    assert averaged.images == expected.images
    assert averaged.records["trial"].metrics.keys() == expected.records["trial"].metrics.keys()
    for name, samples in expected.records["trial"].metrics.items():
        assert np.array_equal(averaged.records["trial"].metrics[name].by_seed, samples.by_seed)


@pytest.mark.parametrize(("images", "is_shown"), [(1, False), (4, False), (5, False), (8, True)])
def test_a_few_images_that_only_one_record_gets_right_prove_nothing(images, is_shown):
    """By chance, five images favour the same record in one case of 16, and eight images in one case of 128."""
    index = np.arange(400)
    tables = {"more": {("dtd", 0): block_stats(index < 200 + images)}, "fewer": {("dtd", 0): block_stats(index < 200)}}
    (difference,) = corrected_differences(sampled(tables, ["accuracy"]), [("more", "fewer")], ["accuracy"])
    assert difference.value == images / 4
    assert difference.is_significant == is_shown


@pytest.mark.parametrize("wrong", [0, 100])
def test_an_accuracy_of_0_or_100_has_an_interval_of_positive_width(wrong):
    """If 100 of 100 images are right, the error rate may still be 3 % (rule of three)."""
    samples = sampled({"trial": {("dtd", 0): block_stats(np.arange(100) >= wrong)}}, ["accuracy"])
    interval = SplitStatistics(samples).interval("trial", "accuracy")
    assert interval.value == 100 - wrong
    assert 2.5 < max(interval.high - interval.value, interval.value - interval.low) < 3.2


def test_the_region_of_the_front_has_the_quantiles_of_resampled_fronts():
    """The first of three trials is best in accuracy, and the last one in ECE."""
    samples = split_samples(
        {
            "a": {"accuracy": [70.0], "ece": [8.0]},
            "b": {"accuracy": [69.0], "ece": [6.0]},
            "c": {"accuracy": [68.0], "ece": [4.0]},
        },
        image_sd=0.1,
    )
    region = front_region(SplitStatistics(samples), ["a", "b", "c"], ["accuracy", "ece"])
    assert region.xs[-1] > 69.9
    middle = int(np.argmin(np.abs(np.array(region.xs) - 69.5)))
    assert region.best[middle] < region.median[middle] < region.worst[middle]
    assert region.median[middle] == pytest.approx(8, abs=0.1)
    assert region.median[0] == pytest.approx(4, abs=0.1)
    for reached in (region.best, region.median, region.worst):
        assert (np.diff([value for value in reached if value is not None]) >= 0).all()


# --- averages over datasets of unequal sizes

SIZES = {"large": 1600, "small": 800}


@pytest.fixture(scope="module")
def record():
    generator = np.random.default_rng(0)
    table = {}
    for dataset, size in SIZES.items():
        confidence, correct = generator.random(size), generator.random(size) < 0.7
        table[dataset, 0] = block_stats(correct, confidence, dataset=dataset)
    return sample_record("a", {NO_MAP: table}, "val", ["accuracy", "ece"])


def test_an_average_is_the_unweighted_mean_of_its_datasets(record):
    for metric in ("accuracy", "ece"):
        rows = [record.metrics[f"{metric}/{dataset}"].by_seed for dataset in SIZES]
        np.testing.assert_allclose(record.metrics[metric].by_seed, np.mean(rows, axis=0), rtol=1e-12)
