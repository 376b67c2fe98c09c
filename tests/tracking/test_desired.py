"""The runs that MLflow should have: names, params, tags, metrics, curves, description and artifacts."""

import json
import posixpath
import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fpp_sweep.records.records import IMPORTED, TrialRecord, WorkTotals
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.tracking.desired import (
    KEY_LIMIT,
    METRICS_LIMIT,
    NAME_LIMIT,
    NO_FRONT,
    OPTIONAL_TAGS,
    PARAM_LIMIT,
    REASON_LIMIT,
    TAG_LIMIT,
    FrontDocument,
    description,
    metrics_table,
    param_text,
    run_name,
    safe_name,
    sweep_run,
    trial_run,
)
from fpp_sweep.tracking.folder_files import MAX_ARTIFACT_BYTES, find_artifacts
from tests.kit.names import SAM, TPT, ZERO_SHOT
from tests.kit.records import CREATED, DATASETS, baseline, build_sweep, failed, running, split_result, sweep_info, trial

INFO = sweep_info(name="perturb-20261120-185232")
DOCUMENT = {
    "members": [{"name": "trial-0005", "values": [58.0, 8.0]}],
    "hypervolume": [[trial(0).finished, 10.0], [trial(2).finished, 12.5]],
}
FRONT = FrontDocument.parse(DOCUMENT)


def curves(run):
    """Return each curve as pairs of step and value."""
    points = {}
    for point in run.curves:
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


@given(st.lists(st.text(max_size=20), unique=True, min_size=2))
def test_different_names_stay_different(names):
    assert len({safe_name(name) for name in names}) == len(names)


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


def test_a_cut_text_states_its_full_length():
    text = param_text("x" * 7000)
    assert len(text) <= PARAM_LIMIT
    assert text.endswith("... (7000 characters)")


def params_of(config, **changes):
    record = replace(trial(1), params={}, config=config.flat())
    return trial_run(INFO, replace(record, **changes)).params


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


def test_settings_of_a_measured_column_are_params():
    result = split_result(54.0, 10.8)
    measured = {"val": replace(result, average={**result.average, "sharpness": 0.1})}
    assert "measure.rho" in params_of(TrialConfig(), results=measured)
    assert "measure.rho" not in params_of(TrialConfig(), results={"val": result})


def test_a_searched_setting_is_a_param_with_its_resolved_value():
    record = replace(trial(1), params={"fpp.gamma2": "x2", "adapt.sam_rho": 0.5})
    config = TrialConfig().replace({"fpp.gamma2": 30.0, "adapt.sam_rho": 0.5})
    params = trial_run(INFO, replace(record, config=config.flat())).params
    assert (params["fpp.gamma2"], params["adapt.sam_rho"]) == ("30", "0.5")


def test_a_config_of_a_plugin_that_is_not_loaded_is_shown_whole():
    config = {"method": "of a plugin", "prompt": "fpp", "adapt.lr": 0.1, "a": None}
    params = trial_run(INFO, replace(trial(1), params={}, config=config)).params
    assert params == {"method": "of a plugin", "prompt": "fpp", "adapt.lr": "0.1", "a": "none"}


def test_params_and_metrics_have_six_digits_and_the_artifacts_have_all():
    config = TrialConfig().replace({"fpp.gamma2": 0.12345678901})
    result = split_result(54.0, 10.8)
    exact = replace(result, average={**result.average, "accuracy": 66.812345678})
    record = replace(trial(1), params={}, config=config.flat(), results={"val": exact})
    run = trial_run(INFO, record)
    assert run.params["fpp.gamma2"] == "0.123457"
    assert run.metrics["accuracy"] == 66.8123
    assert yaml.safe_load(run.texts["config.yaml"])["config"] == config.flat()
    assert "66.812345678" in run.texts["metrics.csv"]


# Metrics of a trial.


def test_averages_and_datasets_have_a_metric_each_and_test_has_a_prefix():
    record = replace(trial(2), results={"val": split_result(55.0, 10.1), "test": split_result(54.0, 10.8)})
    metrics = trial_run(INFO, record).metrics
    assert metrics["accuracy"] == split_result(55.0, 10.1).average["accuracy"]
    assert metrics["ece/textures"] == split_result(55.0, 10.1).datasets["textures"]["ece"]
    assert metrics["test/ece"] == pytest.approx(split_result(54.0, 10.8).average["ece"])
    assert metrics["duration"] == 50.0
    assert metrics["worker_seconds"] == 45.0


def test_a_cost_has_the_value_that_it_has_as_an_objective():
    record = replace(trial(2), results={"val": replace(split_result(55.0, 10.1), worker_seconds=48.0)})
    run = trial_run(replace(INFO, objectives=(Objective(metric="accuracy"), Objective(metric="seconds"))), record)
    assert (run.metrics["seconds"], run.metrics["worker_seconds"], run.metrics["duration"]) == (45.0, 48.0, 50.0)


def test_imported_predictions_have_no_duration_and_no_costs():
    imported = replace(baseline("theirs", 60.0, 5.0), started=0.0, origin=IMPORTED)
    assert not {"duration", "seconds", "worker_seconds"} & set(trial_run(INFO, imported).metrics)
    assert "duration" in trial_run(INFO, baseline("theirs", 60.0, 5.0)).metrics


def test_the_time_of_a_trials_metrics_is_the_time_of_its_end():
    assert trial_run(INFO, trial(2)).measured_at == round((CREATED + 2 * 60 + 50) * 1000)


def test_a_sweep_on_test_has_metrics_without_a_prefix():
    record = replace(trial(2), results={"test": split_result(55.0, 10.1)})
    metrics = trial_run(replace(INFO, search_split="test"), record).metrics
    assert "accuracy" in metrics
    assert not [key for key in metrics if key.startswith("test/")]


def test_metrics_of_eleven_datasets_fit_and_those_of_forty_are_left_out():
    eleven = [f"dataset {number}" for number in range(11)]
    record = replace(trial(0), results={"val": split_result(datasets=eleven), "test": split_result(datasets=eleven)})
    dataset_metrics = {f"{metric}/{name}" for metric in ("accuracy", "ece") for name in eleven}
    assert dataset_metrics <= set(trial_run(INFO, record).metrics)
    record = replace(trial(0), results={"val": split_result(datasets=[f"d{number}" for number in range(40)])})
    metrics = trial_run(INFO, record).metrics
    assert len(metrics) <= METRICS_LIMIT
    assert {"accuracy", "ece", "brier"} <= set(metrics)
    assert not [key for key in metrics if "/d" in key]


def test_an_objective_on_one_dataset_is_shown_on_every_split_however_many_datasets_there_are():
    datasets = [f"d{number}" for number in range(40)]
    val, final = split_result(datasets=datasets), split_result(69.0, 6.0, datasets=datasets)
    info = replace(INFO, objectives=(Objective(metric="accuracy"), Objective(metric="ece/d3")))
    metrics = trial_run(info, replace(trial(0), results={"val": val, "final": final})).metrics
    assert metrics["ece/d3"] == pytest.approx(val.datasets["d3"]["ece"], rel=1e-5)
    assert metrics["final/ece/d3"] == pytest.approx(final.datasets["d3"]["ece"], rel=1e-5)
    assert not [key for key in metrics if key.endswith("/d4")]


def test_the_table_has_all_metrics():
    text = metrics_table({"val": split_result(), "test": split_result(54.0, 10.8)})
    assert "\r" not in text
    table = text.splitlines()
    assert table[0] == "split,dataset,accuracy,brier,ece,nll,sce"
    assert len(table) == 1 + 2 * (len(DATASETS) + 2)


def test_losses_come_before_other_metrics():
    extra = dict.fromkeys(("mce", "aece", "aurc", "nll"), 1.0)
    result = split_result()
    record = replace(trial(0), results={"val": replace(result, average={**extra, **result.average})})
    metrics = trial_run(INFO, record).metrics
    assert {"aurc", "nll", "brier", "accuracy", "ece"} <= set(metrics)
    assert "aece" not in metrics


# Tags.


def test_a_failed_trial_has_its_reason_in_one_line_and_its_traceback_as_an_artifact():
    run = trial_run(INFO, replace(failed(3), reason="bad\nthing " * 200))
    assert run.status == "FAILED"
    assert "\n" not in run.tags["reason"]
    assert len(run.tags["reason"]) <= REASON_LIMIT
    assert run.tags["reason"].endswith("characters)")
    assert "Traceback" in run.texts["traceback.txt"]


def test_characters_that_a_database_or_a_file_refuses_are_replaced():
    """A file name that is not text is half of a character in a message."""
    record = failed(3, reason="no file \udcff", details="in \udcff\0", config={"prompt": "\udcff"})
    run = trial_run(INFO, record)
    assert run.tags["reason"] == "no file ?"
    assert run.texts["traceback.txt"] == "in ??"
    for text in [*run.texts.values(), *run.tags.values(), *run.params.values(), run.name]:
        assert text.encode().decode() == text
        assert "\0" not in text


def test_tags_keep_to_mlflows_limits():
    run = sweep_run(replace(INFO, versions={"long version (all)!": "x" * 9000}), [])
    assert all(len(value) <= TAG_LIMIT for value in run.tags.values())
    assert all(safe_name(key) == key for key in run.tags)


def test_a_sweeps_run_has_its_provenance_as_tags():
    info = replace(
        INFO,
        plugins={"mine": "01"},
        datasets={"dtd": "ab", "pets": "cd"},
        work=WorkTotals(tasks=7),
        search_split="test",
    )
    tags = sweep_run(info, []).tags
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
    document = {**DOCUMENT, "support": {"trial-0004": "uncertain"}, "recommended": "trial-0005"}
    front = FrontDocument.parse(document)
    member, other = trial_run(INFO, trial(5), front).tags, trial_run(INFO, trial(4), front).tags
    assert (member["on_front"], member["recommended"]) == ("true", "true")
    assert (other["on_front"], other["recommended"], other["front_support"]) == ("false", "false", "uncertain")
    assert sweep_run(INFO, [], front).tags["recommended"] == "trial-0005"
    assert "recommended" not in trial_run(INFO, trial(5), FRONT).tags


def test_only_a_complete_trial_is_tagged_as_feasible_or_not():
    complete = trial(5, constraints={"accuracy": -0.3})
    assert trial_run(INFO, complete).tags["feasible"] == "true"
    assert trial_run(INFO, replace(complete, constraints={"accuracy": 0.3})).tags["feasible"] == "false"
    stopped = replace(complete, state="stopped", values=None)
    assert "feasible" not in trial_run(INFO, stopped).tags


def test_tags_that_a_run_may_lose_are_listed():
    full = FrontDocument.parse({**DOCUMENT, "support": {"trial-0005": "likely"}, "recommended": "trial-0005"})
    with_all = set(trial_run(INFO, trial(5, reason="why", constraints={"accuracy": -0.3}), full).tags)
    with_least = set(trial_run(INFO, running(5), NO_FRONT).tags)
    assert with_all - with_least == set(OPTIONAL_TAGS)


# The run of the sweep.


def test_curves_count_the_trials_that_ended_in_the_order_of_their_ends():
    records = [trial(2), trial(0), failed(1), running(3)]
    run = sweep_run(INFO, records, FRONT)
    assert curves(run)["trials_complete"] == [(1, 1), (2, 1), (3, 2)]
    assert curves(run)["trials_failed"] == [(1, 0), (2, 1), (3, 1)]
    assert curves(run)["worker_hours"] == [(1, 0.0125), (2, 0.0125), (3, 0.025)]
    assert curves(run)["hypervolume"] == [(1, 10.0), (3, 12.5)]
    ended = {1: CREATED + 50, 2: CREATED + 65, 3: CREATED + 170}  # the second trial to end failed after five seconds
    assert {(point.step, point.time) for point in run.curves} == {
        (step, round(at * 1000)) for step, at in ended.items()
    }


def test_worker_hours_include_stopped_trials():
    stopped = replace(failed(0), state="stopped", seconds_without_result=3600.0)
    later = replace(trial(1), seconds_without_result=1800.0)
    assert curves(sweep_run(INFO, [stopped, later]))["worker_hours"] == [(1, 1.0), (2, 1.5125)]


def test_the_sweeps_run_has_the_best_values_so_far_and_the_searched_ranges():
    broken = replace(trial(5), constraints={"accuracy": 0.1})
    run = sweep_run(INFO, [trial(1), trial(0), trial(2), broken, baseline("tpt", 73.0, 4.0)])
    assert curves(run)["best/accuracy"] == [(1, 53), (2, 54), (3, 55), (4, 55)]
    assert curves(run)["best/ece"] == [(1, 11.5), (2, 10.8), (3, 10.1), (4, 10.1)]
    assert run.params == {"fpp.gamma2": "0.1 to 15.0, log", "fpp.class_var": "0.001 to 0.02"}


def test_a_trial_below_the_floor_of_accuracy_is_never_the_best_as_in_the_tables():
    collapsed = trial(1, 3.0, 0.5)  # trials that have lost their accuracy often have a small calibration error
    run = sweep_run(INFO, [trial(0), collapsed, baseline(ZERO_SHOT, 53.0, 4.0)])
    assert curves(run)["best/accuracy"] == [(1, 53), (2, 53)]
    assert curves(run)["best/ece"] == [(1, 11.5), (2, 11.5)]


def test_stopped_trials_are_counted_from_the_first_one_on():
    stopped = replace(failed(1), state="stopped", reason="lower after 2 of 5 datasets")
    records = [trial(0), stopped, trial(2), replace(running(3), state="waiting")]
    run = sweep_run(INFO, records)
    assert curves(run)["trials_stopped"] == [(2, 1), (3, 1)]
    assert curves(run)["trials_complete"] == [(1, 1), (2, 1), (3, 2)]


def test_points_of_curves_do_not_change_after_the_test_split(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=4)

    def points():
        write_report(folder, pages=False)
        return sweep_run(folder.info(), folder.trials(), FrontDocument.read(folder)).curves

    folder.write_info(replace(folder.info(), reference=[40.0, 20.0]))
    before = points()
    assert [point.step for point in before if point.key == "hypervolume"] == [1, 2, 3]  # the fourth failed
    for record in folder.trials():
        folder.write_trial(replace(record, results={**record.results, "test": split_result(62.0, 5.2)}))
    assert points() == before


def test_equal_records_give_equal_runs():
    assert repr(trial_run(INFO, trial(4), FRONT)) == repr(trial_run(INFO, trial(4), FRONT))


def test_the_description_has_the_answer_and_the_front_of_the_report(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=4)
    write_report(folder, pages=False)
    front = FrontDocument.read(folder)
    text = description(folder.info(), front)
    written = (folder.report / "answer.md").read_text()
    assert written.startswith("# made\n")
    assert text.startswith(written.partition("\n")[2].strip())  # MLflow's page shows the first lines only
    assert "| trial-0002 |" in text
    (folder.report / "answer.md").unlink()
    assert description(folder.info(), FrontDocument.read(folder)).startswith("Search for accuracy (max) and ece (min)")


def test_a_long_answer_is_described_in_whole_lines_and_keeps_its_end(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=4)
    write_report(folder, pages=False)
    lines = [f"| größe-{number} | 70.00 [68.0, 72.0] |" for number in range(1000)]
    (folder.report / "answer.md").write_text("\n".join(["# made", *lines]), encoding="utf-8")
    text = sweep_run(folder.info(), [], FrontDocument.read(folder)).tags["mlflow.note.content"]
    shown, note, purpose, files = text.split("\n\n")
    assert shown.splitlines() == lines[: len(shown.splitlines())]
    assert TAG_LIMIT - len(lines[0]) - 3 < len(text) <= TAG_LIMIT
    assert note == "The rest is in the artifact `report/answer.md`."
    assert purpose.startswith("Search for accuracy")
    assert files.startswith("Artifacts: `report/sweep.html`")


def test_the_description_of_a_sweep_that_only_evaluates_does_not_speak_of_a_search():
    info = replace(INFO, space={"search": {"evaluate_only": True}})
    assert description(info, FrontDocument()).startswith("Evaluation by accuracy (max) and ece (min) on split `")


# Files.


@pytest.mark.parametrize("document", [{"members": [{"name": "x"}]}, {"recommended": "trial-0000"}])
def test_a_front_behind_a_link_out_of_the_folder_is_not_read(tmp_path, document):
    folder = build_sweep(tmp_path / "sent", trials=1, baselines=())
    outside = tmp_path / "front.json"
    outside.write_text(json.dumps(document))
    (folder.report / "front.json").unlink()
    (folder.report / "front.json").symlink_to(outside)
    assert FrontDocument.read(folder) == NO_FRONT


def test_links_are_no_artifacts_and_are_listed_as_left_out(tmp_path):
    folder = build_sweep(tmp_path / "sent", trials=1, baselines=())
    (tmp_path / "outside").mkdir()
    (folder.report / "inside").symlink_to("sweep.html")
    (folder.report / "out").symlink_to("/etc/hostname")
    (folder.report / "subfolder").symlink_to(tmp_path / "outside")
    (folder.report / ".partial").write_text("half")
    artifacts = find_artifacts(folder, folder.report, "report/")
    expected = {"report/front.json", "report/front.csv", "report/sweep.html"}
    assert set(artifacts.files) == expected | {"report/best/trial-0000.yaml"}
    assert artifacts.left_out == {"report/inside", "report/out", "report/subfolder"}


def test_a_file_that_is_too_large_for_an_artifact_is_listed_as_left_out(tmp_path):
    folder = build_sweep(tmp_path / "sent", trials=1, baselines=())
    for name, size in (("large", MAX_ARTIFACT_BYTES + 1), ("largest", MAX_ARTIFACT_BYTES)):
        with (folder.report / name).open("wb") as file:
            file.truncate(size)
    artifacts = find_artifacts(folder, folder.report, "report/")
    assert "report/largest" in artifacts.files
    assert "report/large" not in artifacts.files
    assert artifacts.left_out == {"report/large"}
