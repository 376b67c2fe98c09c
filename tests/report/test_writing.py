"""The files front.csv and answer.md, the configs in best/, and results.json."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import yaml

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import FINAL, IMPORTED
from fpp_sweep.report.front_table import trial_table
from fpp_sweep.report.writing import write_report, write_results
from fpp_sweep.sweep.api import Sweep
from fpp_sweep.sweep.summary import summary_lines
from tests.kit.measured import CLOSE_TOGETHER, FAR_APART, World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import ACCURACY, SECONDS, baseline, sweep_info, trial, write_sweep

SIDES = {**FAR_APART, "trial-0004": (0.69, 0.11)}


@pytest.fixture
def far(tmp_path):
    return write_measured_sweep(
        tmp_path / "far", World(1000), FAR_APART, ("val", "test"), seeds=(0, 1, 2), is_search_apart=True
    )


def rows(folder):
    with (folder.report / "front.csv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_the_csv_has_intervals_and_support(far):
    write_report(far, pages=False)
    row = rows(far)["trial-0002"]
    assert float(row["accuracy (val) low"]) < float(row["accuracy (val)"]) < float(row["accuracy (val) high"])
    assert row["support"] == "likely"


def test_the_answer_is_written_as_markdown(far):
    write_report(far, pages=False)
    text = (far.report / "answer.md").read_text()
    assert text.startswith("# far\n\n## Answer\n\nUse trial-0002 (")
    assert f"| finalist | metric | {ZERO_SHOT} | ± | {TPT} |" in text
    assert "## Front" in text


def test_the_files_are_utf_8_in_any_locale(far, ascii_locale):
    far.write_trial(replace(far.trial("trial-0002"), params={"prompt": "ein Foto einer Straße"}))
    write_report(far, pages=True)
    for name in ("front.csv", "answer.md", "sweep.html"):
        assert "Straße" in (far.report / name).read_text(encoding="utf-8"), name


def test_a_finalist_that_is_not_on_the_front_has_a_row_and_a_config(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(1000), SIDES, ("val",))
    finalist = folder.trial("trial-0004")
    best = folder.report / "best"
    write_report(folder, pages=False)
    assert (best / "trial-0002.yaml").exists()
    assert not (best / "trial-0004.yaml").exists()
    folder.write_trial(replace(finalist, results={**finalist.results, FINAL: finalist.results["val"]}))
    write_report(folder, pages=False)
    _, comment, *_ = (best / "trial-0004.yaml").read_text().splitlines()
    assert comment == "# trial-0004 of sweep sweep, beside its front, finalist"
    assert rows(folder)["trial-0004"]["marks"] == "finalist"
    folder.write_trial(finalist)
    write_report(folder, pages=False)
    assert not (best / "trial-0004.yaml").exists()


def test_the_recommended_config_names_its_evidence(far):
    write_report(far, pages=False)
    lines = (far.report / "best" / "recommended.yaml").read_text().splitlines()
    assert lines[1].startswith("# trial-0002 of sweep far, on its front, best accuracy, best ece, knee, recommended")
    assert "# compared with the baselines on 3 seeds and 2 x 1000 test images" in lines


def test_the_best_baseline_is_not_called_recommended(tmp_path):
    folder = write_measured_sweep(tmp_path / "near", World(200), CLOSE_TOGETHER)
    write_report(folder, pages=False)
    assert "Use zero_shot: " in (folder.report / "answer.md").read_text()
    assert "recommended.yaml" not in configs(folder)
    _, comment, *_ = (folder.report / "best" / "baseline.yaml").read_text().splitlines()
    assert comment == f"# baseline-{ZERO_SHOT} of sweep near, the baseline to use; no trial is recommended"


def test_a_report_between_two_pages_uses_the_statistics_of_the_last_page(far):
    statistics = write_report(far, pages=True)
    for file in far.path.glob("artifacts/*/*/block_stats.npz"):
        file.unlink()
    assert write_report(far, pages=False, statistics=statistics) is statistics
    assert rows(far)["trial-0002"]["support"] == "likely"


def test_a_sweep_without_block_statistics_has_a_report_without_intervals(tmp_path):
    folder = SweepFolder(tmp_path / "old")
    folder.write_info(sweep_info())
    folder.write_trial(trial(0))
    write_report(folder, pages=True)
    row = rows(folder)["trial-0000"]
    assert (row["accuracy (val) low"], row["support"]) == ("", "")


def test_a_sweep_that_only_evaluates_has_no_answer_anywhere(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(200), {**FAR_APART, "trial-0004": (0.8, 0.01)})
    folder.write_info(replace(folder.info(), space={"search": {"evaluate_only": True}}))
    write_report(folder, pages=True)
    assert not (folder.report / "best" / "recommended.yaml").exists()
    page = (folder.report / "sweep.html").read_text()
    texts = [
        (folder.report / "answer.md").read_text(),
        page,
        Sweep(folder)._repr_html_(),
        "\n".join(summary_lines(folder, 200)),
    ]
    for text in texts:
        assert "trial-0004" in text
        assert "on the front" in text
        for word in ("Answer", "Front</h", "## Front", "recommended", "use it", "the knee", "Finalists", "Holm"):
            assert word not in text


def test_a_cost_has_its_value_in_tables_files_and_configs(tmp_path):
    record = trial(0, 70, 5, values=[70.0, 45.0])
    folder = write_sweep(tmp_path, sweep_info((ACCURACY, SECONDS), reference=None), [record])
    write_report(folder, pages=False)
    assert rows(folder)["trial-0000"]["seconds (val)"] == "45.0"
    assert "seconds 45.0" in (folder.report / "best" / "knee.yaml").read_text()
    table = (folder.report / "answer.md").read_text()
    assert "| 45.0 |" in table
    info = folder.info()
    all_trials = trial_table(info, [record], statistics_of(folder, info, [record]))
    assert "seconds" in [column.title for column in all_trials.columns]


# --- front.csv ----------------------------------------------------------------------------------------


def simple_sweep(tmp_path, *records, **changes):
    folder = write_sweep(tmp_path, sweep_info(name="mine", **changes), records)
    write_report(folder, pages=False)
    return folder


def test_the_csv_has_values_intervals_and_settings_of_members_and_baselines(tmp_path):
    folder = simple_sweep(
        tmp_path,
        trial(0, 70, 5, params={"a": 1}, test=True),
        trial(1, 71, 6, params={"b": "x\ny"}),
        trial(2, 60, 9, params={"c": 1}),
        baseline(ZERO_SHOT, 66.0, 9.0),
    )
    content = (folder.report / "front.csv").read_bytes().decode()
    heads = content.partition("\r\n")[0].split(",")
    values = [f"{metric} ({split})" for split in ("val", "test") for metric in ("accuracy", "ece")]
    bounds = [f"{value} {end}" for value in values for end in ("low", "high")]
    assert heads == ["name", "kind", "marks", "feasible", "support", *values, *bounds, "b", "a"]
    table = rows(folder)
    assert set(table) == {"trial-0000", "trial-0001", f"baseline-{ZERO_SHOT}"}
    assert (table["trial-0000"]["a"], table["trial-0000"]["b"]) == ("1", "")
    assert table["trial-0001"]["b"] == "x\ny"
    assert (table["trial-0001"]["accuracy (val)"], table["trial-0001"]["accuracy (test)"]) == ("71.0", "")
    assert table["trial-0001"]["accuracy (val) low"] == ""
    assert table[f"baseline-{ZERO_SHOT}"]["kind"] == "baseline"
    assert table["trial-0001"]["feasible"] == "True"
    assert "\r\r" not in content


def test_without_a_record_the_csv_has_a_column_for_names(tmp_path):
    folder = simple_sweep(tmp_path)
    assert (folder.report / "front.csv").read_text().splitlines() == ["name"]


def test_a_text_that_is_no_unicode_is_written_with_escapes(tmp_path):
    folder = simple_sweep(tmp_path, trial(0, params={"prompt": "\udcff"}))
    assert rows(folder)["trial-0000"]["prompt"] == r"\udcff"


def test_the_answer_in_markdown_has_notes_only_if_there_are_any(far):
    statistics = write_report(far, pages=False)
    assert "## Notes" not in (far.report / "answer.md").read_text()
    write_report(far, pages=False, statistics=replace(statistics, notes=["one image is missing"]))
    text = (far.report / "answer.md").read_text()
    assert "## Notes\n\none image is missing\n\n## Front\n" in text
    assert "| trial-0002 | " in text


# --- configs ------------------------------------------------------------------------------------------


def configs(folder):
    return {path.name for path in (folder.report / "best").iterdir()}


def test_each_member_has_a_config_for_its_name_and_each_of_its_marks(tmp_path):
    members = [trial(0, 70, 5), trial(1, 71, 6)]
    folder = simple_sweep(tmp_path, *members, trial(2, 60, 9), baseline(ZERO_SHOT, 66.0, 9.0))
    names = ["trial-0000", "trial-0001", "best-accuracy", "best-ece", "knee", "baseline"]
    assert configs(folder) == {f"{name}.yaml" for name in names}
    best = (folder.report / "best" / "best-accuracy.yaml").read_text()
    assert best == (folder.report / "best" / "trial-0001.yaml").read_text()
    comments = [line for line in best.splitlines() if line.startswith("#")]
    marks = ", ".join(front_of(folder.info(), folder.trials()).marks["trial-0001"])
    assert comments == [
        "# Written by fpp_sweep, and overwritten or deleted by its next report: copy this file to change it.",
        f"# trial-0001 of sweep mine, on its front, {marks}",
        "# val: accuracy 71.00, ece 6.00",
        "# model tiny; settings in units of embeddings hold for this model only",
    ]
    assert yaml.safe_load(best)["config"] == dict(members[1].config)


def test_an_imported_baseline_has_no_config(tmp_path):
    folder = write_measured_sweep(tmp_path / "near", World(200), CLOSE_TOGETHER)
    statistics = write_report(folder, pages=False)
    assert "baseline.yaml" in configs(folder)
    record = folder.trial(f"baseline-{ZERO_SHOT}")
    assert statistics.answer.best_baseline == record.name
    folder.write_trial(replace(record, origin=IMPORTED))
    write_report(folder, pages=False, statistics=statistics)
    assert "baseline.yaml" not in configs(folder)


def test_only_baselines_that_are_not_beaten_are_named(far):
    statistics = write_report(far, pages=False)
    answer = statistics.answer
    file = far.report / "best" / "trial-0002.yaml"
    assert "not shown to be better" not in file.read_text()
    key = (f"baseline-{TPT}", "ece")
    differences = {**answer.differences, key: replace(answer.differences[key], adjusted_p=1.0)}
    write_report(far, pages=False, statistics=replace(statistics, answer=replace(answer, differences=differences)))
    assert f"# not shown to be better in ece than {TPT}\n" in file.read_text()
    assert "better in accuracy" not in file.read_text()
    untested = replace(answer, differences={})
    write_report(far, pages=False, statistics=replace(statistics, answer=untested))
    assert "compared with" not in file.read_text()


def test_a_member_that_is_no_finalist_names_no_comparison(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(1000), {**SIDES, "trial-0005": (0.75, 0.35)}, ("val",))
    finalist = folder.trial("trial-0002")
    folder.write_trial(replace(finalist, results={**finalist.results, FINAL: finalist.results["val"]}))
    shutil.copytree(folder.artifacts("trial-0002") / "val", folder.artifacts("trial-0002") / FINAL)
    for name in (f"baseline-{ZERO_SHOT}", f"baseline-{TPT}"):
        record = folder.trial(name)
        folder.write_trial(replace(record, results={**record.results, FINAL: record.results["val"]}))
        shutil.copytree(folder.artifacts(name) / "val", folder.artifacts(name) / FINAL)
    statistics = write_report(folder, pages=False)
    assert statistics.answer.champion == "trial-0002"
    text = {name: (folder.report / "best" / f"trial-000{name}.yaml").read_text() for name in (2, 5)}
    assert ("compared with" in text[2], "compared with" in text[5]) == (True, False)


def test_files_of_an_earlier_front_are_replaced_or_deleted_and_those_of_the_user_stay(tmp_path):
    folder = simple_sweep(tmp_path, trial(0, 70, 5), trial(1, 71, 6))
    best = folder.report / "best"
    (best / "mine.yaml").write_text("# of the user\n")
    outside = tmp_path / "outside.yaml"
    outside.write_text((best / "knee.yaml").read_text())
    (best / "linked.yaml").symlink_to(outside)
    for number in (0, 1):
        folder.trial_file(f"trial-000{number}").unlink()
    folder.write_trial(trial(2, 80, 1))
    write_report(folder, pages=False)
    members = {"trial-0002.yaml", "best-accuracy.yaml", "best-ece.yaml", "knee.yaml"}
    assert configs(folder) == {*members, "mine.yaml", "linked.yaml"}
    assert (best / "mine.yaml").read_text() == "# of the user\n"
    assert "# trial-0002 of sweep mine" in (best / "knee.yaml").read_text()
    assert outside.exists()


# --- results.json -------------------------------------------------------------------------------------


def test_results_have_the_numbers_and_intervals_of_every_trial_that_was_measured(far):
    unmeasured = replace(far.trial("trial-0003"), results={}, values=None, state="failed")
    far.write_trial(unmeasured)
    path = write_results(far)
    assert path == far.path / "results.json"
    results = json.loads(path.read_text())
    assert (results["sweep"], results["split"]) == ("far", "val")
    assert results["origin"] == json.loads(json.dumps(far.info().provenance()))
    by_name = {entry["name"]: entry for entry in results["trials"]}
    assert set(by_name) == {"trial-0002", f"baseline-{ZERO_SHOT}", f"baseline-{TPT}"}
    record, entry = far.trial("trial-0002"), by_name["trial-0002"]
    result = record.results["val"]
    assert entry["files"] == "artifacts/trial-0002"
    assert (entry["config"], entry["key"], entry["images"]) == (record.config, record.key, result.samples)
    assert (entry["average"], entry["datasets"], entry["by_seed"]) == (result.average, result.datasets, result.by_seed)
    assert set(entry["intervals"]) == {
        key for metric in result.average for key in (metric, f"{metric}/digits", f"{metric}/scenes")
    }
    interval = statistics_of(far, far.info(), far.trials()).interval(record, "val", "accuracy/digits")
    assert entry["intervals"]["accuracy/digits"] == pytest.approx({"low": interval.low, "high": interval.high}, abs=0.3)
    low, high = (entry["intervals"]["accuracy"][end] for end in ("low", "high"))
    assert low < result.average["accuracy"] < high
