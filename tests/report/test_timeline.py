"""Sentences on the cost of a sweep, and on what is left of its budget."""

from dataclasses import replace

import pytest

from fpp_sweep.records.front import front_of
from fpp_sweep.report.timeline import (
    WorkPeriod,
    busy_share,
    cost_sentences,
    counts_of_states,
    growth_sentences,
    progress_line,
    read_work_periods,
    read_workers,
    state_sentence,
    timeline_plot,
)
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


def test_tasks_that_begin_two_seconds_after_another_continue_it_if_the_work_is_the_same():
    first = WorkPeriod(100.0, 110.0, "a", False)
    assert first.is_continued_by(112.0, "a", is_pretraining=False)
    assert not first.is_continued_by(112.1, "a", is_pretraining=False)
    assert not first.is_continued_by(111.0, "b", is_pretraining=False)
    assert not first.is_continued_by(111.0, "a", is_pretraining=True)


def log_lines(*events):
    return "\n".join(f"2026-11-26 {time} {task}, config {key}: {event}" for time, task, key, event in events)


def test_the_log_tells_the_time_and_the_kind_of_each_period():
    text = log_lines(
        ("12:00:00", "dtd, pretraining, seed 0", "a", "begins"),
        ("12:00:00", "dtd, val samples", "a", "1.0 s"),  # a task that began before the part of the log that is read
        ("12:00:01", "dtd, pretraining, seed 0", "a", "1.0 s"),
        ("12:00:01", "dtd, pretraining, seed 0", "a", "1.0 s"),  # twice
        ("12:00:02", "dtd, val samples", "b", "begins"),
        ("12:61:02", "dtd, val samples", "b", "1.0 s"),  # no time
    )
    (period,) = read_work_periods(f"damaged line\n{text}\n2026-11-26 12:00:03 worker 7 holds tiny")
    assert (period.start, period.end) == (1795694400.0, 1795694401.0)  # in UTC
    assert (period.key, period.is_pretraining) == ("a", True)


def test_workers_without_an_ended_task_and_unreadable_logs_are_left_out(tmp_path):
    begun = log_lines(("12:00:00", "dtd", "a", "begins"))
    (tmp_path / "idle.log").write_text(begun)
    (tmp_path / "busy.log").write_text(f"{begun}\n{log_lines(('12:00:09', 'dtd', 'a', '9 s'))}")
    (tmp_path / "notes.txt").write_text((tmp_path / "busy.log").read_text())
    (tmp_path / "folder.log").mkdir()
    workers = read_workers(tmp_path)
    assert list(workers) == ["busy"]
    assert [period.end - period.start for period in workers["busy"]] == [9]
    assert read_workers(tmp_path / "missing") == {}


def test_bars_show_each_kind_of_work_at_its_time():
    record, other = trial(0), baseline("tpt", 69.0, 9.8)
    workers = {
        "w": [WorkPeriod(1000.0, 1002.5, record.key, True), WorkPeriod(1003.0, 1003.25, other.key, False)],
        "v": [WorkPeriod(1001.0, 1002.0, "unknown", False)],
    }
    plot = timeline_plot(workers, [record, other])
    bars = {}
    for trace in plot.traces:
        for field in zip(trace["y"], trace["base"], trace["x"], trace["text"], strict=True):
            bars[trace["name"]] = field
    assert bars == {
        "baseline": ("w", 1_003_000, 500, "baseline-tpt"),  # a period of half a second at least is visible
        "pretraining": ("w", 1_000_000, 2500, "trial-0000"),
        "other": ("v", 1_001_000, 1000, "unknown"),
    }
    assert len({trace["marker"]["color"] for trace in plot.traces}) == 3
    hover = {trace["name"]: trace["hovertemplate"] for trace in plot.traces}
    assert hover["other"] == "%{text}<extra>other</extra>"
    assert plot.name == "timeline"
    assert plot.description == "periods of work of 2 workers over time"
    assert plot.layout["height"] == 110 + 2 * 24  # a row for each worker
    assert (plot.layout["margin"]["l"], plot.min_width) == (110, 560)  # pixels, the first for the workers' names
    assert plot.layout["barmode"] == "overlay"


def test_without_a_task_there_is_a_sentence_instead_of_a_timeline():
    plot = timeline_plot({}, [])
    assert (plot.name, plot.traces, plot.placeholder) == ("timeline", (), "No worker has ended a task yet.")
    assert busy_share({}) == ""


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ({"a": [(10, 20)]}, "1 worker, busy for 100 %"),
        ({"a": [(10, 20), (30, 40)], "b": [(100, 110)]}, "2 workers, busy for 75 %"),
        ({"a": [(10, 20), (30, 35), (45, 50)]}, "1 worker, busy for 50 %"),
        ({"a": [(10, 10)]}, "1 worker, busy for 0 %"),
    ],
)
def test_the_busy_share_is_that_of_the_time_between_first_and_last_task(workers, sentence):
    periods = {}
    for name, spans in workers.items():
        periods[name] = [WorkPeriod(start, end, "k", False) for start, end in spans]
    assert busy_share(periods) == f"{sentence} of the time between the first and the last task."


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


def test_a_sweep_without_patience_has_no_rule_of_growth():
    front = front_of(sweep_info(), [trial(0)])
    assert growth_sentences(sweep_info(space={"search": {}}), front) == []
    (sentence,) = growth_sentences(sweep_info(space={"search": {"patience": 1}}), front)
    assert sentence == (
        "The search ends if hypervolume grows by no more than 1% in 1 trial: 2 trials have to finish first."
    )
