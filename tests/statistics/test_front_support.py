"""Support of trials for being on the front: likely, uncertain or unlikely."""

import numpy as np

from fpp_sweep.statistics.bootstrap import RecordSamples, SplitSamples
from fpp_sweep.statistics.front_support import front_support, support_word
from fpp_sweep.statistics.paired import SplitStatistics
from tests.kit.measured import metric_samples, split_samples

METRICS = ["accuracy", "ece"]


def support_of(records, **options):
    statistics = SplitStatistics(split_samples(records, **options))
    values = {name: [0.0] * len(METRICS) for name in records}  # all of these metrics are resampled
    return words(front_support(statistics, values, METRICS))


def words(shares):
    return {name: support_word(share) for name, share in shares.items()}


def test_a_trial_that_is_clearly_beaten_in_every_objective_is_unlikely():
    support = support_of({"a": {"accuracy": [70.0], "ece": [4.0]}, "b": {"accuracy": [65.0], "ece": [9.0]}})
    assert support == {"a": "likely", "b": "unlikely"}


def test_a_trial_is_not_beaten_by_the_bias_of_few_images():
    """The trial with the larger bias of ECE has the smaller ECE in truth."""
    noise = np.random.default_rng(0).standard_normal(500) * 0.1
    records = {}
    for name, value, bias in (("a", 8.8, 4.0), ("b", 6.5, 0.5)):
        ece = metric_samples([value], noise - noise.mean() + bias)
        records[name] = RecordSamples(name, (0,), True, {"ece": ece})
    statistics = SplitStatistics(SplitSamples("test", {"dtd": 1000}, records))
    support = front_support(statistics, {"a": [8.8], "b": [6.5]}, ["ece"])
    assert support["a"] > support["b"]
    assert support_word(support["b"]) == "uncertain"


def test_few_images_have_no_support():
    trials = {"a": {"accuracy": [90.0]}, "b": {"accuracy": [40.0]}}
    for images, has_support in ((29, False), (30, True)):
        statistics = SplitStatistics(split_samples(trials, images=images))
        support = front_support(statistics, {"a": [90.0], "b": [40.0]}, ["accuracy"])
        assert bool(support) == has_support


def test_a_single_trial_has_no_support():
    assert support_of({"a": {"accuracy": [70.0], "ece": [4.0]}}) == {}


def test_rivals_that_are_ahead_in_one_objective_each_make_no_trial_unlikely():
    support = support_of(
        {
            "a": {"accuracy": [70.0], "ece": [9.0]},
            "b": {"accuracy": [60.0], "ece": [3.0]},
            "c": {"accuracy": [65.0], "ece": [3.1]},
        }
    )
    assert support["c"] != "unlikely"


def test_near_ties_are_uncertain():
    support = support_of({name: {"accuracy": [70.0 + shift], "ece": [5.0]} for name, shift in (("a", 0.0), ("b", 0.1))})
    assert set(support.values()) == {"uncertain"}


def test_seeds_that_differ_make_support_uncertain():
    steady = {"a": {"accuracy": [70.0] * 3, "ece": [4.0] * 3}, "b": {"accuracy": [67.0] * 3, "ece": [7.0] * 3}}
    jumpy = {
        "a": {"accuracy": [75.0, 65.0, 70.0], "ece": [1.0, 7.0, 4.0]},
        "b": {"accuracy": [72.0, 62.0, 67.0], "ece": [10.0, 4.0, 7.0]},
    }
    assert support_of(steady)["b"] == "unlikely"
    assert support_of(jumpy)["b"] == "uncertain"


def test_an_objective_that_cannot_be_resampled_counts_as_exact():
    samples = split_samples({"a": {"accuracy": [70.0], "ece": [4.0]}, "b": {"accuracy": [60.0], "ece": [9.0]}})
    statistics, metrics = SplitStatistics(samples), [*METRICS, "seconds"]
    slower = words(front_support(statistics, {"a": [70.0, 4.0, 900.0], "b": [60.0, 9.0, 60.0]}, metrics))
    faster = words(front_support(statistics, {"a": [70.0, 4.0, 50.0], "b": [60.0, 9.0, 60.0]}, metrics))
    assert slower == {"a": "likely", "b": "likely"}
    assert faster["b"] == "unlikely"
