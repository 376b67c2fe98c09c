"""Comparisons of sweeps and of trials, on block statistics whose truth is known."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep import compare as command
from fpp_sweep.cli import run
from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import measured_value
from fpp_sweep.records.measurements import BLOCK_STATS_FILE, block_stats_file, read_block_stats
from fpp_sweep.records.pareto import hypervolume
from fpp_sweep.records.records import FINAL
from fpp_sweep.report.comparison import compare, front_hypervolumes, sweep_entries, trial_entries
from fpp_sweep.report.comparison_view import verdict
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import metric_value, to_bytes
from tests.kit.measured import FAR_APART, World, corrected_differences, sampled, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import HOSTILE, failed

SECONDS = Objective(metric="seconds", goal="min")
BETTER = {ZERO_SHOT: (0.6, 0.2), "trial-0001": (0.69, 0.05), "trial-0002": (0.74, 0.2)}
NAMES = ("trial-0002", TPT, "trial-0003")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with sweeps: two on the same images, one on fewer images, and one on another dataset."""
    world, root = World(1000), tmp_path_factory.mktemp("measured")
    write_measured_sweep(root / "far", world, FAR_APART, ("val", "test"))
    write_measured_sweep(root / "better", world, BETTER, ("val", "test"), space={"search": {"seed": 3}})
    write_measured_sweep(root / "few", world, BETTER, limit=200)
    write_measured_sweep(root / "pets", World(300, datasets=("pets",)), BETTER)
    return root


@pytest.fixture
def sweeps(measured, tmp_path, monkeypatch):
    """Copies of the sweeps in `sweeps/`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    root = shutil.copytree(measured, tmp_path / "sweeps")
    return {name: SweepFolder(root / name) for name in ("far", "better", "few", "pets")}


def run_compare(capsys, *words):
    command.main([str(word) for word in words])
    return capsys.readouterr().out


def with_values(folder):
    """Give the records of a sweep the values of its own objectives."""
    for record in folder.trials():
        values = [measured_value(record.results["val"], objective.metric) for objective in folder.info().objectives]
        folder.write_trial(replace(record, values=values))
    return folder


def compare_sweeps(*folders, split=None):
    return compare(sweep_entries(folders), split)


def compare_trials(folder, names=NAMES, split=None):
    return compare(trial_entries(folder, names), split)


# --- sweeps -------------------------------------------------------------------------------------------


def test_the_best_trials_of_two_sweeps_are_tested_where_they_hold_the_same_mark(sweeps):
    comparison = compare_sweeps(sweeps["far"], sweeps["better"])
    assert comparison.split == "test"
    assert set(comparison.results) == {
        "far/trial-0002", "better/trial-0001", "better/trial-0002", f"far/{ZERO_SHOT}", f"far/{TPT}"
    }  # fmt: skip
    for first, second in comparison.pairs:
        assert first.sweep.label == "far"
        assert second.sweep.label == "better"
        assert set(first.marks) & set(second.marks)
    tables = {}
    for sweep in ("far", "better"):
        tables[sweep] = read_block_stats(sweeps[sweep].artifacts("trial-0002"), "test")
    (expected,) = corrected_differences(sampled(tables, ["accuracy"]), [("far", "better")], ["accuracy"])
    accuracy = comparison.differences["far/trial-0002", "better/trial-0002", "accuracy"]
    assert (accuracy.value, accuracy.standard_error) == pytest.approx((expected.value, expected.standard_error))
    assert accuracy.high < 0
    assert accuracy.mark == "-"


def test_all_averages_are_one_family_and_all_datasets_another(sweeps):
    for comparison in (compare_sweeps(sweeps["far"], sweeps["better"]), compare_trials(sweeps["far"])):
        by_kind = {False: [], True: []}
        for key, difference in comparison.differences.items():
            if key not in comparison.from_answer:
                by_kind["/" in key[2]].append(difference)
        n_pairs = len(comparison.pairs)
        smallest = min(difference.p_value for difference in by_kind[True])
        adjusted = min(difference.adjusted_p for difference in by_kind[True])
        assert adjusted == pytest.approx(min(1, 4 * n_pairs * smallest))
        assert by_kind[False]


def test_datasets_that_not_all_have_are_left_out_and_named(sweeps, tmp_path, capsys):
    half = write_measured_sweep(tmp_path / "half", World(1000, datasets=("digits", "pets")), BETTER, seeds=(0, 1),
                 objectives=(Objective(metric="nll", goal="min"),))  # fmt: skip
    comparison = compare_sweeps(sweeps["far"], with_values(half))
    assert comparison.left_out == ["pets", "scenes"]
    label = "half/trial-0001"
    table = read_block_stats(half.artifacts(label.partition("/")[2]), "val")
    expected = np.mean([metric_value("accuracy", table["digits", seed]) for seed in (0, 1)])
    assert comparison.results[label].average["accuracy"] == pytest.approx(expected)
    text = " ".join(run_compare(capsys, "far", "half").split())
    assert "left out, as not all have seen the same images: pets, scenes" in text
    assert "half searched nll (min)" in text


def test_hypervolume_is_that_of_the_fronts_on_the_shared_images_from_the_worst_baseline(sweeps, capsys):
    comparison = compare_sweeps(sweeps["far"], sweeps["better"])
    baselines = [comparison.results[f"far/{label}"].average for label in (ZERO_SHOT, TPT)]
    corner = [min(row["accuracy"] for row in baselines), max(row["ece"] for row in baselines)]
    expected = {}
    for name, members in {"far": ["trial-0002"], "better": ["trial-0001", "trial-0002"]}.items():
        averages = [sweeps[name].trial(member).results["test"].average for member in members]
        points = [[average["accuracy"], average["ece"]] for average in averages]
        expected[name] = hypervolume(points, ["max", "min"], corner)
    assert front_hypervolumes(comparison) == pytest.approx(expected)
    assert re.search(rf"\nfar +2 +1:30 +{expected['far']:.4g} +trial-0002 ", run_compare(capsys, "far", "better"))
    for folder in (sweeps["far"], sweeps["better"]):
        folder.write_info(replace(folder.info(), objectives=(SECONDS, *folder.info().objectives[1:]), reference=None))
    assert front_hypervolumes(compare_sweeps(sweeps["far"], sweeps["better"])) == {}


def test_the_time_of_a_search_includes_trials_that_have_no_result(capsys, sweeps):
    far = sweeps["far"]
    lost = replace(failed(1), name="trial-0001", state="stopped", seconds_without_result=5.0, reason="beaten")
    far.write_trial(replace(lost, finished=far.trial("trial-0003").finished - 0.5))
    info = far.info()
    far.write_info(replace(info, work=replace(info.work, cached=3)))
    text = run_compare(capsys, "far", "better")
    assert re.search(r"\nfar +3 +1:35 ", text)
    assert "cached results cost nothing: far" in text


def test_settings_are_listed_if_any_sweep_has_another_value(capsys, sweeps):
    text = run_compare(capsys, "far", "better")
    section = text[text.index("Settings of the sweeps that differ") : text.index("Settings of the trials")]
    assert re.search(r"\nsearch\.seed +\S+ +3\n", section)
    assert "git_commit" not in section


ONE_OF_FAR = {ZERO_SHOT: (0.6, 0.2), "trial-0002": (0.7, 0.1)}
ONE_OF_BETTER = {ZERO_SHOT: (0.6, 0.2), "trial-0002": (0.74, 0.3)}
MAY_BE_LUCK = "No verdict on 1 significant difference, which may be luck: the trials"


@pytest.mark.parametrize(
    ("sides", "splits", "seeds", "expected"),
    [
        (FAR_APART, ("val",), (0,), f"{MAY_BE_LUCK} were chosen by these val images and have too few seeds."),
        (FAR_APART, ("val",), (0, 1, 2), f"{MAY_BE_LUCK} were chosen by these val images."),
        (FAR_APART, ("val", "test"), (0,), f"{MAY_BE_LUCK} have too few seeds."),
        (FAR_APART, ("val", "test"), (0, 1, 2), "better/trial-0002 is better than far/trial-0002 in accuracy."),
        (ONE_OF_FAR, ("val",), (0, 1, 2), "better/trial-0002 is better than far/trial-0002 in accuracy."),
        (ONE_OF_FAR, ("val",), (0,), f"{MAY_BE_LUCK} have too few seeds."),
    ],
    ids=["val, one seed", "val", "test, one seed", "test", "single trials", "single trials, one seed"],
)
def test_a_difference_that_may_be_luck_is_no_verdict(capsys, tmp_path, sides, splits, seeds, expected):
    options = {"seeds": seeds, "objectives": (Objective(metric="accuracy", goal="max"),), "is_search_apart": True}
    folders = []
    for name, of_sweep in (("far", sides), ("better", ONE_OF_BETTER)):
        folders.append(with_values(write_measured_sweep(tmp_path / name, World(1000), of_sweep, splits, **options)))
    comparison = compare_sweeps(*folders)
    in_accuracy = {key: value for key, value in comparison.differences.items() if key[2] == "accuracy"}
    assert verdict(replace(comparison, differences=in_accuracy)) == expected
    text = run_compare(capsys, *[folder.path for folder in folders], "--out", tmp_path / "out")
    assert ("optimistic" in text) == ("chosen by these" in expected)


def test_one_trial_of_two_sweeps_is_not_tested_against_itself(sweeps, tmp_path):
    twin = shutil.copytree(sweeps["far"].path, tmp_path / "twin")
    comparison = compare_sweeps(sweeps["far"], SweepFolder(twin))
    assert comparison.pairs == []
    assert verdict(comparison) == "No difference was tested."


def test_a_baseline_of_several_sweeps_is_compared_once_under_the_first(sweeps, tmp_path):
    other = write_measured_sweep(tmp_path / "other", World(1000), {**BETTER, TPT: (0.55, 0.1)}, ("val", "test"))
    other.write_trial(replace(other.trial(f"baseline-{TPT}"), key="another"))
    labels = [label for label in compare_sweeps(sweeps["far"], other).results if "trial" not in label]
    assert labels == [f"far/{ZERO_SHOT}", f"far/{TPT}", f"other/{TPT}"]


def test_hostile_names_and_settings_are_escaped_in_every_output(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("<b>$x$_\033[2J", "b|&%")
    for name in names:
        write_measured_sweep(tmp_path / "sweeps" / name, World(100), BETTER, space={HOSTILE: f"{HOSTILE}\033[2J{name}"})
    out = tmp_path / "there\x1b[31m"
    text = run_compare(capsys, *names, "--out", out)
    assert "\033" not in text
    assert r"\textbackslash{}x1b" in (out / "comparison.tex").read_text()
    assert "| b/&%" in (out / "comparison.md").read_text()


# --- trials -------------------------------------------------------------------------------------------


def test_trials_are_written_as_text_markdown_and_latex(capsys, sweeps, tmp_path):
    comparison = compare_trials(sweeps["far"])
    assert (comparison.split, list(comparison.results)) == ("test", ["trial-0002", "trial-0003", TPT])
    difference = comparison.differences["trial-0002", "trial-0003", "ece"]
    text = run_compare(capsys, "far", *NAMES)
    bounds = f"[{difference.low:+.1f}, {difference.high:+.1f}]"
    assert f"{difference.debiased:+.1f}* {bounds}" in text
    assert format_interval("ece", comparison.statistics.interval("trial-0002", "ece")) in text
    assert "after Holm's correction over all averages, and over all single datasets" in " ".join(text.split())
    folder = tmp_path / "comparisons" / "far-trial-0002-trial-0003-tpt"
    assert f"| trial-0002 minus {TPT} |" in (folder / "comparison.md").read_text()
    latex = (folder / "comparison.tex").read_text()
    assert f"{difference.debiased:+.1f}* {bounds}".replace("-", "$-$") in latex
    assert "$<$0.001" in latex
    assert {path.name for path in folder.iterdir()} == {"comparison.md", "comparison.tex"}


def test_the_split_is_test_if_all_were_run_there_or_the_one_that_is_given(sweeps):
    far = sweeps["far"]
    assert compare_trials(far, split="val").split == "val"
    record = far.trial("trial-0003")
    far.write_trial(replace(record, results={"val": record.results["val"]}))
    assert compare_trials(far).split == "val"
    assert compare_trials(far, NAMES[:2]).split == "test"


def test_trials_have_the_intervals_of_the_sweep_with_its_variance_of_seeds(capsys, tmp_path, monkeypatch):
    """The final stage tells how much seeds change the trials; the search has one seed of each."""
    monkeypatch.chdir(tmp_path)
    far = write_measured_sweep(tmp_path / "sweeps" / "far", World(1000), FAR_APART)
    shifts = {"trial-0002": (-0.05, 0.0, 0.05), "trial-0003": (-0.02, 0.0, 0.03)}
    final = write_measured_sweep(tmp_path / "final", World(1000), FAR_APART, (FINAL,), seeds=(1, 2, 3), shifts=shifts)
    for record in final.trials():
        searched = far.trial(record.name)
        far.write_trial(replace(searched, results={**searched.results, **record.results}))
        shutil.copytree(final.artifacts(record.name) / FINAL, far.artifacts(record.name) / FINAL)
    statistics = statistics_of(far, far.info(), far.trials())
    names = ["trial-0002", "trial-0003", f"baseline-{ZERO_SHOT}"]
    for split in ("val", FINAL):
        comparison = compare_trials(far, names, split)
        for record in map(far.trial, names):
            for metric in ("accuracy", "accuracy/digits", "ece"):
                interval = statistics.interval(record, split, metric)
                assert comparison.statistics.interval(record.label, metric) == interval
    interval = statistics.interval(far.trial("trial-0002"), "val", "accuracy")
    assert format_interval("accuracy", interval) in run_compare(capsys, "far", *names, "--split", "val")
    expected = statistics.splits["val"].difference("trial-0002", "trial-0003", "accuracy")
    shown = compare_trials(far, names, "val").differences["trial-0002", "trial-0003", "accuracy"]
    assert (shown.low, shown.high) == pytest.approx((expected.low, expected.high))


def test_trials_of_few_images_have_no_test_and_the_reason_for_it(capsys, sweeps, tmp_path):
    write_measured_sweep(tmp_path / "sweeps" / "tiny", World(20), FAR_APART)
    text = run_compare(capsys, "tiny", "trial-0002", "trial-0003")
    assert "accuracy: no paired test\n" in text
    assert "fewer than 30 images\n" in text
    assert "Holm" not in text
    assert "optimistic" in text


def test_trials_are_optimistic_on_the_images_or_with_the_seeds_that_chose_them(tmp_path):
    folder = write_measured_sweep(tmp_path / "mine", World(200), FAR_APART)
    fresh = write_measured_sweep(tmp_path / "fresh", World(200, seed=1, prefix="fresh"), FAR_APART, (FINAL,))
    for record in fresh.trials():
        searched = folder.trial(record.name)
        folder.write_trial(replace(searched, results={**searched.results, **record.results}))
        (fresh.artifacts(record.name) / FINAL).rename(folder.artifacts(record.name) / FINAL)

    def chosen_by(split):
        return {entry.chosen_by(split) for entry in trial_entries(folder, NAMES)}

    assert chosen_by("val") == {"images", ""}  # the baseline was not chosen
    assert chosen_by(FINAL) == {"seeds", ""}
    for name in ("trial-0002", "trial-0003"):
        record = folder.trial(name)
        folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    assert chosen_by(FINAL) == {""}
    folder.write_info(replace(folder.info(), space={"search": {"evaluate_only": True}}))
    assert chosen_by("val") == {""}


@pytest.mark.parametrize("names", [["trial-0002", TPT], [TPT, "trial-0002"]])
def test_a_pair_of_the_sweeps_answer_has_the_same_verdict_in_the_comparison(sweeps, names):
    far = sweeps["far"]
    comparison = compare_trials(far, names)
    answer = statistics_of(far, far.info(), far.trials()).answer
    for metric in ("accuracy", "ece"):
        expected = answer.differences[f"baseline-{TPT}", metric]
        difference = comparison.differences["trial-0002", TPT, metric]
        assert difference.adjusted_p == expected.adjusted_p
        assert difference.mark == expected.mark != ""
    assert comparison.from_answer == {("trial-0002", TPT, "accuracy"), ("trial-0002", TPT, "ece")}
    assert compare_trials(far, names, "val").from_answer == frozenset()


def test_a_dataset_of_which_a_trial_has_other_images_is_left_out(sweeps):
    far = sweeps["far"]
    file = far.artifacts("trial-0003") / "test" / BLOCK_STATS_FILE
    table = read_block_stats(far.artifacts("trial-0003"), "test")
    skipped = table["digits", 0].take(slice(1, None))
    file.write_bytes(to_bytes({**table, ("digits", 0): skipped}))
    record = far.trial("trial-0003")
    result = record.results["test"]
    on_digits = {**result.datasets["digits"], "accuracy": metric_value("accuracy", skipped)}
    result = replace(result, datasets={**result.datasets, "digits": on_digits})
    far.write_trial(replace(record, results={**record.results, "test": result}))
    comparison = compare_trials(far)
    assert (comparison.images, comparison.left_out) == ({"scenes": 1000}, ["digits"])


def test_a_metric_after_a_map_has_the_interval_of_the_sweep_and_no_test(sweeps):
    far = sweeps["far"]
    names = ("trial-0002", "trial-0003")
    for name in names:
        record = far.trial(name)
        result = record.results["test"]
        datasets = {}
        for dataset, values in result.datasets.items():
            datasets[dataset] = {**values, "ece@temperature_val": values["ece"]}
        average = {**result.average, "ece@temperature_val": result.average["ece"]}
        result = replace(result, average=average, datasets=datasets)
        far.write_trial(replace(record, results={**record.results, "test": result}))
        stats = far.artifacts(name) / "test"
        (stats / block_stats_file("temperature_val")).write_bytes((stats / BLOCK_STATS_FILE).read_bytes())
    info = far.info()
    far.write_info(replace(info, space={**info.space, "work": {"posthoc": ["temperature_val"]}}))
    comparison = compare_trials(far, names)
    statistics = statistics_of(far, far.info(), far.trials())
    interval = comparison.statistics.interval("trial-0002", "ece@temperature_val")
    assert interval == statistics.interval(far.trial("trial-0002"), "test", "ece@temperature_val")
    assert interval.low < interval.high
    assert (*names, "ece@temperature_val") not in comparison.differences


def test_a_metric_that_cannot_be_resampled_has_values_and_no_test(sweeps, capsys):
    far = sweeps["far"]
    far.write_info(replace(far.info(), objectives=(Objective(metric="sce", goal="min"),), reference=None))
    for record in far.trials():
        result = record.results["test"]
        datasets = {dataset: {**numbers, "sce": 0.25} for dataset, numbers in result.datasets.items()}
        results = {**record.results, "test": replace(result, datasets=datasets)}
        far.write_trial(replace(record, values=[0.25], results=results))
    text = run_compare(capsys, "far", "trial-0002", "trial-0003")
    assert re.search(r"\ntrial-0003 +0\.2500 +0\.2500 +0\.2500\n", text)
    assert "sce: no paired test\n" in text


# --- refused comparisons ------------------------------------------------------------------------------


def test_a_record_that_lacks_a_seed_of_a_dataset_is_refused_by_its_name(tmp_path):
    folder = write_measured_sweep(tmp_path / "two", World(200), FAR_APART, seeds=(0, 1))
    table = dict(read_block_stats(folder.artifacts("trial-0003"), "val"))
    del table["digits", 1]
    (folder.artifacts("trial-0003") / "val" / BLOCK_STATS_FILE).write_bytes(to_bytes(table))
    with pytest.raises(InputError, match=r"^trial-0003: .* its seeds have different images"):
        compare_trials(folder, ["trial-0002", "trial-0003"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["far", "pets"], "share no images of val; compare records of the same images"),
        (["far"], "far alone: give another sweep, or two or more of its trials and baselines"),
        (["far", "trial-0002"], "trial-0002 alone: give two or more trials or baselines, or another sweep"),
        (["far", "trial-0002", "trial-0009"], "unknown trial of far 'trial-0009'; choose from"),
        (["far", "trial-0002", "trial-0007"], "trial-0007 is failed: only complete trials can be compared"),
        (["far", "better", "trial-0002"], "unknown sweep 'trial-0002'"),
        (["far", "."], ". is not a sweep's folder (it has no sweep.json)"),
        (["far", "far"], "far: is given twice; give different sweeps"),
        (["far", "none"], "none: no trial is complete"),
        (["few", "trial-0001", "trial-0002", "--split", "test"], "--split: not all were run on test; all were on val"),
        (["bare", "trial-0001", "trial-0002"], "trial-0001 has no block statistics on val: nothing can be paired"),
        (["far", "better", "--plugin", "empty.py"], "plugin empty.py: registers nothing"),
        (["far", "damaged"], "sweeps/damaged/sweep.json: not readable as a record of a sweep"),
    ],
)
def test_a_comparison_that_is_impossible_is_refused_in_one_line(sweeps, capsys, words, complaint):
    root = sweeps["far"].path.parent
    sweeps["far"].write_trial(failed(7))
    (root.parent / "empty.py").touch()
    write_measured_sweep(root / "none", World(1000), {ZERO_SHOT: (0.6, 0.2)})
    bare = write_measured_sweep(root / "bare", World(1000), BETTER)
    for file in bare.path.glob("artifacts/*/val/*"):
        file.unlink()
    write_measured_sweep(root / "damaged", World(100), BETTER).info_file.write_text("{")
    with pytest.raises(SystemExit) as ended:
        run(lambda: command.main(words))
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert complaint in captured.err
    assert not (root.parent / "comparisons").exists()


def test_the_command_needs_neither_ray_nor_torch(sweeps):
    code = (
        "import sys; from fpp_sweep.__main__ import main\n"
        "main(['compare', 'far', 'better']); main(['compare', 'far', 'trial-0002', 'tpt'])\n"
        "heavy = {'torch', 'ray', 'mlflow', 'optuna', 'plotly', 'sklearn'}\n"
        "import json; print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
