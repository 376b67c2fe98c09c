import json
import posixpath
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpp_sweep.records.records import TrialRecord, WorkTotals
from fpp_sweep.report import write_report
from fpp_sweep.tracking.desired import (
    KEY_LIMIT,
    METRICS_LIMIT,
    PARAM_LIMIT,
    REASON_LIMIT,
    TAG_LIMIT,
    description,
    metrics_table,
    param_text,
    run_name,
    safe_name,
    sweep_run,
    trial_run,
)
from fpp_sweep.tracking.view import LIMIT, view
from tests.sweeps import CREATED, DATASETS, baseline, build_sweep, split_result, sweep_info, trial

INFO = sweep_info("perturb-20261120-185232")
FRONT = {
    "members": [{"name": "trial-0005", "values": [58.0, 8.0]}],
    "hypervolume": [[trial(0).finished, 10.0], [trial(2).finished, 12.5]],
}


def metrics(run):
    return {point.key: point.value for point in run.points}


@given(st.text(max_size=300))
def test_any_name_becomes_one_that_mlflow_takes(name):
    safe = safe_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_./ -]+", safe)
    assert len(safe) <= KEY_LIMIT
    assert posixpath.normpath(safe) == safe
    assert safe not in (".", "..")
    assert not safe.startswith(("/", "../"))


@given(st.lists(st.text(max_size=20), unique=True, min_size=2))
def test_different_names_stay_different(names):
    assert len({safe_name(name) for name in names}) == len(names)


def test_a_long_text_says_that_it_was_cut():
    text = param_text("x" * 7000)
    assert len(text) <= PARAM_LIMIT
    assert text.endswith("... (7000 characters)")


def test_averages_and_datasets_have_a_metric_each_and_test_has_its_own():
    record = replace(trial(2), results={"val": split_result(2), "test": split_result(1)})
    shown = metrics(trial_run(INFO, record, on_front=True))
    assert shown["accuracy"] == split_result(2).average["accuracy"]
    assert shown["ece/tiny_digits"] == split_result(2).datasets["tiny_digits"]["ece"]
    assert shown["test/ece"] == split_result(1).average["ece"]
    assert shown["seconds"] == 50.0
    assert shown["device_seconds"] == 45.0


def test_what_a_trial_found_stands_at_the_time_at_which_it_ended():
    points = trial_run(INFO, trial(2), on_front=False).points
    assert {(point.step, point.time) for point in points} == {(0, round((CREATED + 2 * 60 + 50) * 1000))}


def test_a_sweep_on_test_has_plain_names_for_it():
    record = replace(trial(2), results={"test": split_result(2)})
    shown = metrics(trial_run(replace(INFO, search_split="test"), record, on_front=False))
    assert "accuracy" in shown
    assert not [key for key in shown if key.startswith("test/")]


def test_eleven_datasets_fit_and_forty_leave_out_datasets_as_a_whole():
    eleven = [f"dataset {number}" for number in range(11)]
    record = replace(trial(0), results={"val": split_result(0, eleven), "test": split_result(0, eleven)})
    assert {f"{metric}/{name}" for metric in ("accuracy", "ece") for name in eleven} <= set(
        metrics(trial_run(INFO, record, on_front=False))
    )
    record = replace(trial(0), results={"val": split_result(0, [f"d{number}" for number in range(40)])})
    shown = metrics(trial_run(INFO, record, on_front=False))
    assert len(shown) <= METRICS_LIMIT
    assert {"accuracy", "ece", "brier"} <= set(shown)
    assert not [key for key in shown if "/d" in key]


def test_the_table_has_what_the_metrics_leave_out():
    table = metrics_table({"val": split_result(0), "test": split_result(1)}).splitlines()
    assert table[0] == "split,dataset,accuracy,brier,ece,sce"
    assert len(table) == 1 + 2 * (len(DATASETS) + 2)


def test_names_of_runs_sort_by_number_and_say_what_was_tried():
    names = [run_name(trial(number)) for number in (0, 2, 11)]
    assert names == sorted(names)
    assert names[0] == "0000 53/11.5 code gamma2=0.1 class_var=0.001"
    assert names[1] == "0002 55/10.1 gamma2=0.289 class_var=0.003"
    assert run_name(baseline("tpt", 1)) == "baseline tpt 54/10.8"
    retry = TrialRecord(name="trial-0004", kind="trial", state="running", origin="retry of trial-0003")
    assert run_name(retry) == "0004 retry of 0003"


def test_all_settings_are_params_and_the_resolved_value_counts():
    record = replace(
        trial(1), params={"fpp.gamma2": "x2"}, config={"fpp.gamma2": 30.0, "fpp.noise_shared": True, "a": None}
    )
    assert trial_run(INFO, record, on_front=False).params == {
        "fpp.gamma2": "30.0",
        "fpp.noise_shared": "true",
        "a": "none",
    }


def test_a_failed_trial_tells_why_in_one_line_and_keeps_its_traceback():
    run = trial_run(INFO, replace(trial(3, failed=True), reason="bad\nthing " * 200), on_front=False)
    assert run.status == "FAILED"
    assert "\n" not in run.tags["reason"]
    assert len(run.tags["reason"]) <= REASON_LIMIT
    assert run.tags["reason"].endswith("characters)")
    assert "Traceback" in run.texts["traceback.txt"]


def test_device_hours_include_the_time_of_trials_that_were_stopped_early():
    stopped = replace(trial(1), state="stopped", results={}, values=None, held=3600.0)
    run = sweep_run(INFO, [trial(0), stopped], {})
    hours = [point.value for point in run.points if point.key == "device_hours"]
    assert hours == pytest.approx([45 / 3600, 45 / 3600 + 1])


def test_a_sweeps_run_has_its_provenance_as_tags():
    info = replace(
        INFO,
        plugins={"mine": "01"},
        datasets={"dtd": "ab", "pets": "cd"},
        work=WorkTotals(tasks=7),
        search_split="test",
    )
    tags = sweep_run(info, [], {}).tags
    expected = {
        "seeds": "0, 1",
        "torch": "2.15.0",
        "plugins": "mine 01",
        "datasets_digest": "ab, cd",
        "work_tasks": "7",
    }
    assert {name: tags.get(name) for name in expected} == expected
    assert tags["warning"].startswith("hyperparameters were searched on the test split")
    assert "race" not in tags  # nothing was raced


def test_tags_fit():
    run = sweep_run(replace(INFO, versions={"long version (all)!": "x" * 9000}), [], {})
    assert all(len(value) <= TAG_LIMIT for value in run.tags.values())
    assert all(safe_name(key) == key for key in run.tags)


def test_the_sweep_counts_what_ended_in_the_order_in_which_it_did():
    records = [trial(2), trial(0), trial(1, failed=True), trial(3, running=True)]
    points = sweep_run(INFO, records, FRONT).points
    series = {key: [(p.step, p.value) for p in points if p.key == key] for key in {p.key for p in points}}
    assert series["trials_complete"] == [(1, 1), (2, 1), (3, 2)]
    assert series["trials_failed"] == [(1, 0), (2, 1), (3, 1)]
    assert series["device_hours"] == [(1, 0.0125), (2, 0.0125), (3, 0.025)]
    assert series["hypervolume"] == [(1, 10.0), (3, 12.5)]
    ended = {1: CREATED + 50, 2: CREATED + 65, 3: CREATED + 170}  # the second failed after five seconds
    assert {(point.step, point.time) for point in points} == {(step, round(at * 1000)) for step, at in ended.items()}


def test_the_sweeps_run_has_the_best_values_so_far_and_what_was_searched():
    broken = replace(trial(5), constraints={"accuracy": 0.1})
    run = sweep_run(INFO, [trial(1), trial(0), trial(2), broken, baseline("tpt", 20)], {})
    series = {key: [p.value for p in run.points if p.key == key] for key in ("best/accuracy", "best/ece")}
    assert series == {"best/accuracy": [53, 54, 55, 55], "best/ece": pytest.approx([11.5, 10.8, 10.1, 10.1])}
    assert run.params == {"fpp.gamma2": "0.1 to 15.0, log", "fpp.class_var": "0.001 to 0.02"}


def test_losses_come_before_other_metrics():
    extra = dict.fromkeys(("mce", "aece", "aurc", "nll"), 1.0)
    result = split_result(0)
    record = replace(trial(0), results={"val": replace(result, average={**extra, **result.average})})
    assert {"aurc", "nll", "brier", "accuracy", "ece"} <= set(metrics(trial_run(INFO, record, on_front=False)))
    assert "aece" not in metrics(trial_run(INFO, record, on_front=False))


def test_a_view_has_the_values_and_settings_as_columns_and_the_objectives_as_a_chart():
    tested = replace(trial(0), results={"val": split_result(0), "test": split_result(0)})
    saved = json.loads(view(INFO, [tested, trial(1)]))
    assert (saved["name"], saved["createdAt"]) == (INFO.name, round(1000 * CREATED))
    shown = json.loads(saved["state"])
    metrics = ["accuracy", "ece", "test/accuracy", "test/ece"]
    settings = ["params.`fpp.gamma2`", "params.`fpp.class_var`"]
    assert shown["selectedColumns"][:6] == [*(f"metrics.`{name}`" for name in metrics), *settings]
    assert [(chart["xaxis"]["key"], chart["yaxis"]["key"]) for chart in shown["compareRunCharts"]] == [
        ("accuracy", "ece")
    ]
    assert [section["name"] for section in shown["compareRunSections"] if section["display"]] == ["Front"]


def test_a_view_of_many_settings_fits_into_a_tag():
    many = {f"a.setting_with_a_long_name_{number}": number for number in range(200)}
    assert len(view(INFO, [replace(trial(0), params=many)])) <= LIMIT


def test_stopped_trials_are_counted_from_the_first_on():
    stopped = replace(trial(1, failed=True), state="stopped", reason="lower after 2 of 5 datasets")
    records = [trial(0), stopped, trial(2), replace(trial(3, running=True), state="waiting")]
    points = sweep_run(INFO, records, {}).points
    assert [(p.step, p.value) for p in points if p.key == "trials_stopped"] == [(2, 1), (3, 1)]
    assert [(p.step, p.value) for p in points if p.key == "trials_complete"] == [(1, 1), (2, 1), (3, 2)]


def test_what_is_said_of_a_step_stays_when_the_test_split_has_been_run(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=4)

    def points():
        write_report(folder, pages=False)
        return sweep_run(folder.info(), folder.trials(), json.loads((folder.report / "front.json").read_text())).points

    folder.write_info(replace(folder.info(), reference=[40.0, 20.0]))
    before = points()
    assert [point.step for point in before if point.key == "hypervolume"] == [1, 2, 3]  # the fourth failed
    for record in folder.trials():
        folder.write_trial(replace(record, results={**record.results, "test": split_result(9)}))
    assert points() == before


def test_the_same_records_give_the_same_run():
    assert repr(trial_run(INFO, trial(4), on_front=True)) == repr(trial_run(INFO, trial(4), on_front=True))


def test_the_description_shows_the_front_beside_the_baselines():
    text = description(INFO, [trial(4), trial(5)], FRONT)
    assert "| 0005 58/8 gamma2=1.42 class_var=0.006 | 58.00 | 8.00 |" in text
    assert "0004" not in text
