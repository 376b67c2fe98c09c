"""Images and seeds that chose a trial."""

from dataclasses import replace

import pytest

from fpp_sweep.records.luck import has_images_of_search, has_seeds_of_search
from fpp_sweep.statistics.paired import SplitStatistics
from tests.kit.measured import split_samples
from tests.kit.records import sweep_info, trial

INFO = sweep_info()  # searches val with seed 0
TRIAL = replace(trial(1, 60.0, 5.0), config={"prompt": "fpp"})


def statistics_of(seeds, digest):
    samples = split_samples({TRIAL.name: {"accuracy": [60.0] * len(seeds)}})
    record = replace(samples.records[TRIAL.name], seeds=seeds)
    return SplitStatistics(replace(samples, records={TRIAL.name: record}, digests={"dtd": digest}))


@pytest.mark.parametrize(
    ("split", "digest", "are_of_search"), [("val", b"a", True), ("test", b"a", True), ("test", b"b", False)]
)
def test_images_of_the_search_chose_its_trials_under_any_name_of_the_split(split, digest, are_of_search):
    splits = {"val": statistics_of((0,), b"a"), split: statistics_of((0,), digest)}
    assert has_images_of_search(INFO, splits, split) == are_of_search


def test_images_of_a_split_without_statistics_are_not_known_to_be_of_the_search():
    assert not has_images_of_search(INFO, {"val": statistics_of((0,), b"a")}, "test")


@pytest.mark.parametrize(("seeds", "are_of_search"), [((0, 1, 2), True), ((4, 5, 6), False)])
def test_prompts_of_the_seeds_of_the_search_chose_a_trial(seeds, are_of_search):
    splits = {"val": statistics_of((0,), b"a"), "test": statistics_of(seeds, b"b")}
    assert has_seeds_of_search(INFO, splits, "test", TRIAL) == are_of_search
    words = replace(TRIAL, config={"prompt": "a photo of a"})  # its seeds draw views only
    assert not has_seeds_of_search(INFO, splits, "test", words)


def test_without_statistics_of_the_search_its_planned_seeds_count():
    splits = {"test": statistics_of((0, 1), b"b")}
    assert has_seeds_of_search(INFO, splits, "test", TRIAL)
