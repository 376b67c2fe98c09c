"""The share of a whole sweep that is done, and the time that is left."""

from dataclasses import replace

import pytest

from fpp_sweep.records.state import progress_of
from tests.kit.names import ZERO_SHOT
from tests.kit.records import baseline, failed, running, split_result, sweep_info, trial

SEARCH = {"trials": 8, "finalists": {"count": 2, "seeds": 3}}
INFO = sweep_info(state="running", space={"search": SEARCH, "work": {"baselines": [ZERO_SHOT]}})
STAGES = replace(INFO, images_by_split={"val": 100, "final": 300, "test": 200})


ON_VAL = {"val": split_result(50.0, 10.0)}


def on(record, *splits):
    results = {split: split_result(50.0, 10.0) for split in splits}
    return replace(record, results={**record.results, **results})


def test_the_bar_is_full_only_at_the_end_of_the_last_stage():
    records = [replace(baseline(ZERO_SHOT, 69.0, 9.0), results=ON_VAL), *(trial(number) for number in range(8))]
    # 9 jobs of the search; up to 3 of the final stage and 2 on test, which count 3 and 2 each
    progress = progress_of(STAGES, records, 0.0)
    assert (progress.done, progress.total) == (9, 9 + 3 * 3 + 2 * 2)
    later = [on(records[0], "final"), on(records[1], "final"), *records[2:]]
    assert (progress_of(STAGES, later, 0.0).done, progress_of(STAGES, later, 0.0).total) == (9 + 6, 22)
    finished = progress_of(replace(STAGES, state="finished"), later, 0.0)
    assert finished.done == finished.total


def test_the_time_left_is_that_of_search_and_later_stages():
    records = [trial(0), trial(1), failed(2), *(running(number) for number in (3, 4))]  # 50 s each
    search = progress_of(INFO, records, 0.0).seconds_left
    assert search == 5 * 50 / 2
    assert progress_of(STAGES, records, 0.0).seconds_left == search + 13 * 50 / 2
    over = [on(records[0], "final"), *(trial(number) for number in range(1, 8))]
    assert progress_of(STAGES, over, 0.0).seconds_left == (13 - 3) * 50 / 2


@pytest.mark.parametrize(
    ("search", "spent", "left"),
    [
        ({}, 0.0, None),
        ({"wall_clock": 160}, 100.0, 60.0),
        ({"wall_clock": 160}, 200.0, 0.0),
        ({"wall_clock": 1000, "trials": 8}, 100.0, 250.0),
    ],
)
def test_the_smaller_of_budget_and_remaining_trials_counts(search, spent, left):
    info = sweep_info(state="running", space={"search": search})
    assert progress_of(info, [trial(0), trial(1), failed(2)], spent).seconds_left == left


def test_without_a_limit_or_a_trial_that_ended_nothing_is_known():
    assert progress_of(INFO, [running(0)], 0.0).seconds_left is None
    assert progress_of(sweep_info(state="running", space={"search": {}}), [running(0)], 0.0).text == ""


def test_trials_outside_the_space_do_not_count():
    assert progress_of(INFO, [replace(trial(0), outside=True)], 0.0).done == 0
