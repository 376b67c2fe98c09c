"""The runs that MLflow should have: names, params, tags, metrics, points, description and artifacts."""

import posixpath
import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import front_of
from fpp_sweep.records.recommendation import Answer
from fpp_sweep.records.records import IMPORTED, TrialRecord, WorkTotals
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.tracking.runs import (
    KEY_LIMIT,
    NAME_LIMIT,
    TAG_LIMIT,
    desired_runs,
    run_name,
    safe_name,
    sweep_run,
    trial_run,
)
from tests.kit.names import SAM, TPT, ZERO_SHOT
from tests.kit.records import (
    CREATED,
    baseline,
    below_floor,
    build_sweep,
    failed,
    running,
    split_result,
    sweep_info,
    trial,
)

INFO = sweep_info(name="perturb-20261120-185232")


def statistics_of_records(records, info=INFO, *, recommended=None, support=None):
    """Return statistics with the front of the records, and with this answer and support."""
    return SweepStatistics(front_of(info, records), {}, support or {}, Answer(recommended=recommended))


def run_of(record, info=INFO):
    return trial_run(record, statistics_of_records([record], info))


def run_of_sweep(records, info=INFO, description=""):
    return sweep_run(records, statistics_of_records(records, info), description)


def description_of(folder):
    return desired_runs(folder)[0].tags["mlflow.note.content"]


def curves(run):
    """Return each curve as pairs of step and value."""
    points = {}
    for point in run.points:
        points.setdefault(point.key, []).append((point.step, point.value))
    return points


# Names.


@given(st.text(max_size=300))
def test_any_name_becomes_one_that_mlflow_accepts(name):
    safe = safe_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_./ -]+", safe)
    assert len(safe) <= KEY_LIMIT
    assert posixpath.normpath(safe) == safe
    assert safe not in (".", "..")
    assert not safe.startswith(("/", "../"))


def test_names_of_runs_sort_by_number_and_have_objectives_and_searched_settings():
    names = [run_name(trial(number)) for number in (0, 2, 11)]
    assert names == sorted(names)
    assert names[0] == "0000 53/11.5 code gamma2=0.1 class_var=0.001"
    assert names[1] == "0002 55/10.1 gamma2=0.289 class_var=0.003"
    assert run_name(baseline("tpt", 54.0, 10.8)) == "baseline tpt 54/10.8"
    retry = TrialRecord(name="trial-0004", kind="trial", state="running", origin="retry of trial-0003")
    assert run_name(retry) == "0004 retry of 0003"
    many = replace(trial(1), params={f"fpp.setting{number}": 0.123456 for number in range(20)})
    assert len(run_name(many)) <= NAME_LIMIT


# Params.


def params_of(config, **changes):
    record = replace(trial(1), params={}, config=config.flat())
    return run_of(replace(record, **changes)).params


def test_params_are_the_settings_that_the_method_reads():
    pretrained = params_of(TrialConfig(method=TPT))
    assert {"method", "prompt", "precision", "fpp.gamma2", "adapt.lr", "views.count"} <= set(pretrained)
    assert "adapt.sam_rho" not in pretrained
    assert "adapt.sam_rho" in params_of(TrialConfig(method=SAM[TPT]))
    words = params_of(TrialConfig(method=TPT, prompt="a photo of a"))
    assert not [key for key in words if key.startswith("fpp.")]
    assert "adapt.lr" in words
    plain = params_of(TrialConfig(method=ZERO_SHOT, prompt="a photo of a"))
    assert not [key for key in plain if key.startswith(("fpp.", "adapt.", "views.", "measure."))]
    assert plain["prompt"] == "a photo of a"


def test_a_config_of_a_plugin_that_is_not_loaded_is_shown_whole():
    config = {"method": "of a plugin", "prompt": "fpp", "adapt.lr": 0.1, "a": None}
    params = run_of(replace(trial(1), params={}, config=config)).params
    assert params == {"method": "of a plugin", "prompt": "fpp", "adapt.lr": "0.1", "a": "none"}


def test_params_and_metrics_have_six_digits_and_the_config_has_all():
    config = TrialConfig().replace({"fpp.gamma2": 0.12345678901})
    result = split_result(54.0, 10.8)
    exact = replace(result, average={**result.average, "accuracy": 66.812345678})
    record = replace(trial(1), params={}, config=config.flat(), results={"val": exact})
    run = run_of(record)
    assert run.params["fpp.gamma2"] == "0.123457"
    assert run.metrics["accuracy"] == 66.8123
    assert yaml.safe_load(run.files["config.yaml"])["config"] == config.flat()


# Metrics of a trial.


def test_averages_and_datasets_have_a_metric_each_and_test_has_a_prefix():
    record = replace(trial(2), results={"val": split_result(55.0, 10.1), "test": split_result(54.0, 10.8)})
    metrics = run_of(record).metrics
    assert metrics["accuracy"] == split_result(55.0, 10.1).average["accuracy"]
    assert metrics["ece/textures"] == split_result(55.0, 10.1).datasets["textures"]["ece"]
    assert metrics["test/ece"] == pytest.approx(split_result(54.0, 10.8).average["ece"])
    assert metrics["duration"] == 50.0
    assert metrics["worker_seconds"] == 45.0


def test_imported_predictions_have_no_duration_and_no_costs():
    imported = replace(baseline("theirs", 60.0, 5.0), started=0.0, origin=IMPORTED)
    assert not {"duration", "seconds", "worker_seconds"} & set(run_of(imported).metrics)
    assert "duration" in run_of(baseline("theirs", 60.0, 5.0)).metrics


def test_an_objective_on_one_dataset_is_shown_on_every_split_however_many_datasets_there_are():
    datasets = [f"d{number}" for number in range(40)]
    val, final = split_result(datasets=datasets), split_result(69.0, 6.0, datasets=datasets)
    info = replace(INFO, objectives=(Objective(metric="accuracy"), Objective(metric="ece/d3")))
    metrics = run_of(replace(trial(0), results={"val": val, "final": final}), info).metrics
    assert metrics["ece/d3"] == pytest.approx(val.datasets["d3"]["ece"], rel=1e-5)
    assert metrics["final/ece/d3"] == pytest.approx(final.datasets["d3"]["ece"], rel=1e-5)


# Tags.


def test_characters_that_a_database_or_a_file_refuses_are_replaced():
    """A file name that is not text is half of a character in a message."""
    record = failed(3, reason="no file \udcff", details="in \udcff\0", config={"prompt": "\udcff"})
    run = run_of(record)
    assert run.tags["reason"] == "no file ?"
    for text in [run.files["config.yaml"], *run.tags.values(), *run.params.values(), run.name]:
        assert text.encode().decode() == text
        assert "\0" not in text


def test_tags_keep_to_mlflows_limits():
    run = run_of_sweep([], replace(INFO, versions={"long version (all)!": "x" * 9000}), "y" * 9000)
    assert all(len(value) <= TAG_LIMIT for value in run.tags.values())
    assert all(safe_name(key) == key for key in run.tags)


def test_a_sweeps_run_has_its_provenance_as_tags():
    info = replace(
        INFO,
        plugins={"mine": "01"},
        digests={"dtd test": "ab", "pets test": "cd"},
        work=WorkTotals(tasks=7),
        search_split="test",
    )
    tags = run_of_sweep([], info).tags
    expected = {
        "seeds": "0, 1",
        "torch": "2.15.0",
        "plugins": "mine 01",
        "datasets_digest": "ab, cd",
        "work_tasks": "7",
    }
    assert {name: tags.get(name) for name in expected} == expected
    assert tags["warning"].startswith("hyperparameters were searched on the test split")


def test_front_and_recommendation_are_tags():
    statistics = statistics_of_records(
        [trial(4), trial(5)], recommended="trial-0005", support={"trial-0004": "uncertain"}
    )
    member, other = trial_run(trial(5), statistics).tags, trial_run(trial(4), statistics).tags
    assert (member["on_front"], member["recommended"]) == ("true", "true")
    assert (other["on_front"], other["recommended"], other["front_support"]) == ("false", "false", "uncertain")
    assert sweep_run([], statistics, "").tags["recommended"] == "trial-0005"
    assert "recommended" not in run_of(trial(5)).tags


# The run of the sweep.


def test_the_sweeps_run_has_the_best_values_so_far_and_the_hypervolume():
    broken = replace(trial(5), constraints={"accuracy": 0.1})
    records = [trial(1), trial(0), trial(2), broken, running(6), baseline("tpt", 73.0, 4.0)]
    run = run_of_sweep(records, replace(INFO, reference=[50.0, 20.0]))
    assert curves(run)["best/accuracy"] == [(1, 53), (2, 54), (3, 55), (4, 55)]
    assert curves(run)["best/ece"] == [(1, 11.5), (2, 10.8), (3, 10.1), (4, 10.1)]
    assert curves(run)["hypervolume"][0] == (1, 25.5)
    times = {point.step: point.time for point in run.points}
    assert times == {number + 1: CREATED + 60 * number + 50 for number in (0, 1, 2)} | {4: CREATED + 60 * 5 + 50}


def test_a_trial_below_the_floor_of_accuracy_is_never_the_best_as_in_the_tables():
    collapsed = below_floor(1, 3.0, 0.5)  # trials that have lost their accuracy often have a small calibration error
    run = run_of_sweep([trial(0), collapsed, baseline(ZERO_SHOT, 53.0, 4.0)])
    assert curves(run)["best/accuracy"] == [(1, 53), (2, 53)]
    assert curves(run)["best/ece"] == [(1, 11.5), (2, 11.5)]


def test_the_description_has_the_answer_the_picture_and_the_front(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=4)
    assert "get-artifact" not in description_of(folder)  # there is no picture yet
    write_report(folder, pages=False)
    (folder.report / "front.png").touch()
    text = description_of(folder)
    answer, picture, front = text.index("## Answer"), text.index("![front](get-artifact?"), text.index("## Front")
    assert answer < picture < front < text.index("| trial-0002 |")
    assert text.endswith("`space.yaml`.")


def test_a_long_answer_is_described_in_whole_lines_and_keeps_its_end(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=40, failed_trials=())
    for number in range(40):
        folder.write_trial(trial(number, 60 + number, 10 + number, params={"fpp.gamma2": 0.123456, "a" * 80: "b" * 80}))
    text = description_of(folder)
    assert len(text) <= TAG_LIMIT
    shown, note, purpose, files = text.rsplit("\n\n", 3)
    assert shown.endswith("|")
    assert note == "The rest is in the artifact `report/answer.md`."
    assert purpose.startswith("Search for accuracy")
    assert files.startswith("Artifacts: `report/sweep.html`")


# All runs of a folder.


def test_equal_folders_give_equal_runs_and_the_sweeps_run_comes_first(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=4)
    runs = desired_runs(folder)
    assert repr(desired_runs(folder)) == repr(runs)
    assert runs[0].name == "made"
    assert len({run.id for run in runs}) == len(runs) == 8


def test_a_change_of_a_value_or_of_a_file_changes_the_digest(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=1, baselines=())
    (_, before) = desired_runs(folder)
    (folder.artifacts("trial-0000") / "prompts" / "new").write_text("")
    (_, with_file) = desired_runs(folder)
    folder.write_trial(replace(folder.trial("trial-0000"), attempt=2))
    (_, with_value) = desired_runs(folder)
    assert with_file.values_digest == before.values_digest != with_value.values_digest
    assert before.files_digest != with_file.files_digest == with_value.files_digest


def test_no_run_is_in_progress_of_a_sweep_whose_driver_was_killed(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=2, running_trials=(1,), state="running")
    assert {run.status for run in desired_runs(folder)} == {"KILLED", "FINISHED"}
    with folder.locked():
        statuses = [run.status for run in desired_runs(folder)]
    assert statuses.count("RUNNING") == 2


def test_links_and_unfinished_files_are_no_artifacts(tmp_path):
    folder = build_sweep(tmp_path / "sent", trials=1, baselines=("tpt",))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").touch()
    (folder.report / "out").symlink_to("/etc/hostname")
    (folder.report / "subfolder").symlink_to(tmp_path / "outside")
    (folder.report / ".partial").write_text("half")
    (folder.path / "artifacts" / "baseline-tpt").symlink_to(tmp_path / "outside")
    sweep, baseline_run, trial_of_sweep = desired_runs(folder)
    report = {"report/front.csv", "report/sweep.html", "report/best/trial-0000.yaml"}
    assert set(sweep.files) == report | {"space.yaml"}
    assert set(baseline_run.files) == {"config.yaml", "baseline-tpt.json"}
    assert "prompts/digits-0.safetensors" in trial_of_sweep.files
