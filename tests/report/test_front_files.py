"""The files front.csv and front.json, answer.md, and the configs in best/."""

import csv
import json
import shutil
from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import FINAL
from fpp_sweep.report.trial_table import trial_table
from fpp_sweep.report.writing import write_report
from fpp_sweep.sweep.notebook import as_html
from fpp_sweep.sweep.summary import summary_lines
from fpp_sweep.tracking.desired import FrontDocument
from tests.kit.measured import CLOSE_TOGETHER, FAR_APART, World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import ACCURACY, WORKER_SECONDS, sweep_info, trial, write_sweep

SIDES = {**FAR_APART, "trial-0004": (0.69, 0.11)}


@pytest.fixture
def far(tmp_path):
    return write_measured_sweep(
        tmp_path / "far", World(1000), FAR_APART, ("val", "test"), seeds=(0, 1, 2), is_search_apart=True
    )


def document(folder):
    return json.loads((folder.report / "front.json").read_text())


def rows(folder):
    with (folder.report / "front.csv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_front_json_and_csv_have_intervals_support_and_the_answer(far):
    write_report(far, pages=False)
    front = document(far)
    (member,) = front["members"]
    interval = member["intervals"]["val"]["accuracy"]
    row = rows(far)["trial-0002"]
    assert float(row["accuracy (val) low"]) == interval["low"] < interval["high"] == float(row["accuracy (val) high"])
    assert row["support"] == front["support"]["trial-0002"] == "likely"
    assert front["support"]["trial-0003"] == "unlikely"
    assert front["recommended"] == "trial-0002"
    assert front["answer"]["sentence"].startswith("Recommended: trial-0002")
    differences = {(entry["second"], entry["metric"]): entry for entry in front["answer"]["differences"]}
    assert differences[f"baseline-{TPT}", "ece"]["high"] < 0
    assert differences[f"baseline-{TPT}", "ece"]["mark"] == "+"


def files_of_report(folder):
    return {path.relative_to(folder.report): path.read_bytes() for path in folder.report.rglob("*") if path.is_file()}


def test_tables_are_the_same_with_the_statistics_that_a_running_sweep_keeps(far):
    statistics = write_report(far, pages=False)
    expected = files_of_report(far)
    kept = statistics.for_tables()
    names_of_trials = [trial.name for trial in kept.front.trials]
    assert len(statistics.front.trials) > 1
    assert names_of_trials == list(dict.fromkeys(["trial-0002", *statistics.answer.finalists]))
    shutil.rmtree(far.report)
    write_report(far, pages=False, statistics=kept)
    assert files_of_report(far) == expected


def test_the_answer_is_written_as_markdown(far):
    write_report(far, pages=False)
    text = (far.report / "answer.md").read_text()
    assert text.startswith("# far\n\n## Answer\n\nRecommended: trial-0002")
    assert f"| finalist | metric | {ZERO_SHOT} | ± | {TPT} |" in text
    assert "## Front" in text


def test_the_files_are_utf_8_in_any_locale(far, ascii_locale):
    far.write_trial(replace(far.trial("trial-0002"), params={"prompt": "ein Foto einer Straße"}))
    write_report(far, pages=True)
    for name in ("front.csv", "answer.md", "sweep.html"):
        assert "Straße" in (far.report / name).read_text(encoding="utf-8"), name


def test_mlflow_reads_the_front_that_the_report_wrote(far):
    write_report(far, pages=False)
    assert FrontDocument.read(far).support == {"trial-0002": "likely", "trial-0003": "unlikely"}
    (far.report / "front.json").write_text(json.dumps({"members": [], "support": []}))
    assert FrontDocument.read(far) == FrontDocument()


def test_a_finalist_that_is_not_on_the_front_has_a_row_and_a_config(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(1000), SIDES, ("val",))
    finalist = folder.trial("trial-0004")
    best = folder.report / "best"
    write_report(folder, pages=False)
    assert (best / "trial-0002.yaml").exists()
    assert not (best / "trial-0004.yaml").exists()
    folder.write_trial(replace(finalist, results={**finalist.results, FINAL: finalist.results["val"]}))
    write_report(folder, pages=False)
    comment, *_ = (best / "trial-0004.yaml").read_text().splitlines()
    assert comment == "# trial-0004 of sweep sweep, beside its front, finalist"
    assert rows(folder)["trial-0004"]["marks"] == "finalist"
    (rival,) = document(folder)["rivals"]
    assert (rival["name"], rival["marks"]) == ("trial-0004", ["finalist"])
    folder.write_trial(finalist)
    write_report(folder, pages=False)
    assert not (best / "trial-0004.yaml").exists()


def test_the_recommended_config_names_its_evidence(far):
    write_report(far, pages=False)
    lines = (far.report / "best" / "recommended.yaml").read_text().splitlines()
    assert lines[0].startswith("# trial-0002 of sweep far, on its front, best accuracy, best ece, knee, recommended")
    assert "# compared with the baselines on 3 seeds, 2 x 1000 test images" in lines


def test_a_config_names_the_baselines_that_it_does_not_beat(tmp_path):
    folder = write_measured_sweep(tmp_path / "near", World(200), CLOSE_TOGETHER)
    write_report(folder, pages=False)
    front = document(folder)
    name = front["members"][0]["name"]
    assert (
        f"# not shown to be better in accuracy than {ZERO_SHOT}"
        in (folder.report / "best" / f"{name}.yaml").read_text()
    )
    assert front["recommended"] == f"baseline-{ZERO_SHOT}"
    assert (
        f"baseline-{ZERO_SHOT} of sweep near, recommended" in (folder.report / "best" / "recommended.yaml").read_text()
    )


def test_a_report_between_two_pages_uses_the_statistics_of_the_last_page(far):
    statistics = write_report(far, pages=True)
    for file in far.path.glob("artifacts/*/*/block_stats.npz"):
        file.unlink()
    assert write_report(far, pages=False, statistics=statistics) is statistics
    assert document(far)["support"]["trial-0002"] == "likely"


def test_a_sweep_without_block_statistics_has_a_report_without_intervals(tmp_path):
    folder = SweepFolder(tmp_path / "old")
    folder.write_info(sweep_info())
    folder.write_trial(trial(0))
    write_report(folder, pages=True)
    (member,) = document(folder)["members"]
    assert member["intervals"]["val"]["accuracy"] == "no interval: no block statistics of these images"
    assert document(folder)["support"] == {}


def test_a_sweep_that_only_evaluates_has_no_answer_anywhere(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(200), {**FAR_APART, "trial-0004": (0.8, 0.01)})
    folder.write_info(replace(folder.info(), space={"search": {"evaluate_only": True}}))
    write_report(folder, pages=True)
    assert document(folder)["recommended"] is None
    assert document(folder)["answer"]["finalists"] == []
    assert not (folder.report / "best" / "recommended.yaml").exists()
    page = (folder.report / "sweep.html").read_text()
    texts = [(folder.report / "answer.md").read_text(), page, as_html(folder), "\n".join(summary_lines(folder, 200))]
    for text in texts:
        assert "trial-0004" in text
        assert "on the front" in text
        for word in ("Answer", "Front</h", "## Front", "recommended", "use it", "the knee", "Finalists", "Holm"):
            assert word not in text


def test_a_cost_has_its_value_in_tables_files_and_configs(tmp_path):
    record = trial(0, 70, 5, values=[70.0, 45.0])
    folder = write_sweep(tmp_path, sweep_info((ACCURACY, WORKER_SECONDS), reference=None), [record])
    write_report(folder, pages=False)
    assert rows(folder)["trial-0000"]["worker_seconds (val)"] == "45.0"
    assert "worker_seconds 45.0" in (folder.report / "best" / "knee.yaml").read_text()
    table = (folder.report / "answer.md").read_text()
    assert "| 45.0 |" in table
    info = folder.info()
    all_trials = trial_table(info, [record], statistics_of(folder, info, [record]))
    assert "worker_seconds" in [column.title for column in all_trials.columns]


def test_a_trial_that_equals_a_baseline_has_a_report(tmp_path):
    """Their difference is 0 without any variance, so its degrees of freedom are infinite, which JSON lacks."""
    folder = write_measured_sweep(tmp_path / "sweep", World(200), {ZERO_SHOT: (0.6, 0.2), TPT: (0.62, 0.3)})
    baseline_of_trial = folder.trial(f"baseline-{TPT}")
    same = replace(trial(2), results=baseline_of_trial.results, values=baseline_of_trial.values)
    folder.write_trial(same)
    shutil.copytree(folder.artifacts(baseline_of_trial.name), folder.artifacts(same.name))
    write_report(folder, pages=False)
    equal = [entry for entry in document(folder)["answer"]["differences"] if entry["second"] == f"baseline-{TPT}"]
    assert {entry["value"] for entry in equal} == {0.0}
    assert None in {entry["degrees_of_freedom"] for entry in equal}
