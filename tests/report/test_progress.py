"""Sentences on the cost of a sweep, and on what is left of its budget."""

import pytest

from fpp_sweep.report.progress import cost_sentences, counts_of_states, state_sentence
from tests.kit.records import baseline, failed, sweep_info, trial, write_sweep

RECORDS = [baseline("tpt", 69.0, 9.8), trial(0), trial(1)]


@pytest.mark.parametrize(
    ("search", "sentences"),
    [({"trials": 8, "wall_clock": 60.0}, ["Budget: trials 8, wall_clock 60.0; ended: all 8 trials."]), ({}, [])],
)
def test_the_budget_is_named_with_the_reason_for_the_end(search, sentences):
    first, *others = cost_sentences(sweep_info(space={"search": search}, end_reason="all 8 trials"), RECORDS)
    assert first.startswith("0.05 worker hours for 3 trials, including baselines, in ")
    assert others == sentences


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


def test_costs_count_every_ended_record_and_the_time_until_the_last_one():
    lost = failed(2, seconds_without_result=1800.0)
    interrupted = trial(3, state="interrupted", seconds_without_result=7200.0)
    on_test = trial(1, test=True)
    records = [baseline("tpt", 69.0, 9.8), on_test, lost, interrupted, failed(4, None, state="running", finished=None)]
    info = sweep_info(state="running", space={"search": {"trials": 7}})
    first, budget = cost_sentences(info, records)
    # two splits of the baseline and of one trial with 45 s each, and the seconds of the failed trial
    assert first == "0.55 worker hours for 3 trials, including baselines, in 2:05."
    assert budget == "Budget: trials 7."
    ended = sweep_info(space={"search": {"trials": 1}})
    assert cost_sentences(ended, records)[0].endswith("in 1:00:00.")
