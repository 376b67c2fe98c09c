"""Sentences on the cost of a sweep, and on what is left of its budget."""

from dataclasses import replace

import pytest

from fpp_sweep.report.timeline import WorkPeriod, cost_sentences, progress_line, read_work_periods, timeline_plot
from fpp_sweep.sweep.sweep_info import resumed_info
from tests.kit.records import baseline, failed, sweep_info, trial
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
    resumed = resumed_info(after_search, small_space(), "")
    assert resumed.end_reason == ""


def test_tasks_of_a_config_with_a_short_pause_are_one_period():
    tasks = [("12:00:00", "12:00:03", "a"), ("12:00:05", "12:00:07", "a"), ("12:00:10", "12:00:11", "a"),
             ("12:00:12", "12:00:13", "b")]  # fmt: skip
    lines = []
    for number, (start, end, key) in enumerate(tasks):
        lines.append(f"2026-11-26 {start} scenes {number}, config {key}: begins")
        lines.append(f"2026-11-26 {end} scenes {number}, config {key}: 1.000 s")
    periods = read_work_periods("\n".join(lines))
    first = periods[0].start
    assert [(period.start - first, period.end - first, period.key) for period in periods] == [
        (0, 7, "a"),
        (10, 11, "a"),
        (12, 13, "b"),
    ]


def test_a_bar_has_the_name_of_its_trial():
    record = trial(0)
    plot = timeline_plot({"w": [WorkPeriod(0, 1, record.key, False), WorkPeriod(2, 3, "other", False)]}, [record])
    names = {}
    for trace in plot.traces:
        names |= dict(zip(trace["text"], trace["customdata"], strict=True))
    assert names == {"trial-0000": "trial-0000", "other": ""}


def test_names_of_logs_and_configs_are_drawn_as_they_are():
    link = "<a href='https://example.org'>w</a>"
    plot = timeline_plot({link: [WorkPeriod(0, 1, link, False)]}, [])
    (trace,) = plot.traces
    assert "<" not in "".join([*trace["y"], *trace["text"]])
