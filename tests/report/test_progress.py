"""Sentences on the cost of a sweep, and on what is left of its budget."""

from dataclasses import replace

import pytest

from fpp_sweep.report.progress import cost_sentences, counts_of_states, progress_line, state_sentence
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.sweep_info import resumed_info
from tests.kit.records import baseline, failed, sweep_info, trial, write_sweep
from tests.kit.spaces import small_space

RECORDS = [baseline("tpt", 69.0, 9.8), trial(0), trial(1)]


@pytest.mark.parametrize(
    ("search", "end_reason", "sentence"),
    [
        ({"trials": 8}, "", "Budget: trials 8."),
        (
            {"trials": 8, "gpu_hours": 2, "wall_clock": None},
            "all 8 trials",
            "Budget: trials 8, gpu_hours 2; ended: all 8 trials.",
        ),
        ({}, "", None),
    ],
)
def test_the_budget_is_named_with_the_reason_for_the_end(search, end_reason, sentence):
    info = sweep_info(space={"search": search}, end_reason=end_reason)
    sentences = cost_sentences(info, RECORDS, is_running=False)
    assert sentences[0].startswith("0.05 worker hours for 3 trials, including baselines, in ")
    assert sentences[1:] == ([sentence] if sentence else [])


def test_the_time_left_is_that_of_the_budget_and_none_after_the_search():
    records = [trial(0), trial(1), failed(2)]  # 50 s each, one after the other
    by_trials = sweep_info(state="running", space={"search": {"trials": 7}})
    assert progress_line(by_trials, records, 0.0).endswith("about 3:20 of search left")
    by_budget = replace(by_trials, space={"search": {"trials": 7, "wall_clock": 160}}, spent=100.0)
    assert progress_line(by_budget, records, 0.0).endswith("about 1:00 of search left")
    after_search = replace(by_trials, end_reason="no gain in 5 trials")
    assert "left" not in progress_line(after_search, records, 0.0)
    resumed = resumed_info(after_search, small_space(), "", Options())
    assert resumed.end_reason == ""


def test_the_state_has_the_times_of_start_and_end(tmp_path):
    folder = write_sweep(tmp_path, sweep_info(), [trial(0)])
    assert state_sentence(folder, folder.info()) == (
        "finished; started 2026-11-20 19:12 UTC, ended 2026-11-20 20:12 UTC"
    )
    folder.write_info(sweep_info(state="running"))
    with folder.locked():
        assert state_sentence(folder, folder.info()) == "running; started 2026-11-20 19:12 UTC"


def test_states_are_counted_of_trials_alone_and_rare_states_only_if_there_are_any():
    states = ["complete", "failed", "failed", "running", "running", "running", "stopped", "waiting", "interrupted"]
    records = [baseline("tpt", 69.0, 9.8), *(trial(number, state=state) for number, state in enumerate(states))]
    assert counts_of_states(records) == ("1 trial finished, 2 failed, 3 running, 1 stopped, 1 waiting, 1 interrupted")
    assert counts_of_states(records[:3]) == "1 trial finished, 1 failed, 0 running"


def test_progress_counts_ended_trials_of_all_or_alone():
    records = [baseline("tpt", 69.0, 9.8), trial(0), failed(1), failed(2, state="stopped"), failed(3, state="running")]
    limited = sweep_info(state="running", space={"search": {"trials": 7}}, end_reason="done")
    assert progress_line(limited, records, 60.0) == "3 of 7 trials, as of 1970-01-01 00:01 UTC"
    endless = sweep_info(state="running", space={"search": {}})
    assert progress_line(endless, records, 60.0) == "3 trials, as of 1970-01-01 00:01 UTC"


def test_the_time_left_is_shared_by_the_trials_that_run_at_once():
    running = [failed(number, None, state="running", finished=None) for number in (3, 4)]
    records = [trial(0), trial(1), failed(2), *running, trial(5, state="stopped", finished=9e9)]
    by_trials = sweep_info(state="running", space={"search": {"trials": 8}})
    # of 8 trials 4 have ended; those that finished took 50 s
    assert progress_line(by_trials, records, 0.0).endswith("about 1:40 of search left")
    unfinished = [replace(trial(0), started=0.0), *records[2:]]
    assert "left" not in progress_line(by_trials, unfinished, 0.0)


def test_costs_count_every_ended_record_and_the_time_until_the_last_one():
    lost = failed(2, seconds_without_result=1800.0)
    interrupted = trial(3, state="interrupted", seconds_without_result=7200.0)
    on_test = trial(1, test=True)
    records = [baseline("tpt", 69.0, 9.8), on_test, lost, interrupted, failed(4, None, state="running", finished=None)]
    info = sweep_info(state="running", space={"search": {"trials": 7}})
    first, left, budget = cost_sentences(info, records, is_running=True)
    # two splits of the baseline and of one trial with 45 s each, and the seconds of the failed trial
    assert first == "0.55 worker hours for 3 trials, including baselines, in 2:05."
    assert left == "Left: 5 of 7 trials, about 1.38 worker hours at this rate."
    assert budget == "Budget: trials 7."
    ended = sweep_info(space={"search": {"trials": 1}})
    assert cost_sentences(ended, records, is_running=False)[0].endswith("in 1:00:00.")
    assert cost_sentences(ended, records, is_running=True)[1] == (
        "Left: 0 of 1 trial, about 0.00 worker hours at this rate."
    )


@pytest.mark.parametrize(
    ("search", "records"),
    [({"trials": 7}, []), ({}, RECORDS), ({"trials": True}, RECORDS), ({"trials": 7}, RECORDS[:1])],
)
def test_without_a_trial_or_a_limit_nothing_is_said_about_the_rest(search, records):
    info = sweep_info(state="running", space={"search": search})
    assert not [line for line in cost_sentences(info, records, is_running=True) if line.startswith("Left")]
