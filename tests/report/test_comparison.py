"""Comparisons of sweeps and of trials, on block statistics whose truth is known."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fpp_sweep import compare
from fpp_sweep.cli.command import run
from fpp_sweep.core.datasets import fair_order
from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import BLOCK_STATS_FILE, is_deterministic
from fpp_sweep.records.records import FINAL
from fpp_sweep.report.comparison import compare_sweeps, hypervolume_corner
from fpp_sweep.report.comparison_picture import _panel
from fpp_sweep.report.comparison_view import _attainment_cell, _cost_notes, _reaches, sweep_comparison_document
from fpp_sweep.report.document import document_to_text
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.report.shared_images import MeasuredImages
from fpp_sweep.report.trial_comparison import _shared_metrics, compare_trials
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.palette import CROSS
from fpp_sweep.statistics.attainment import Attainment
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, metric_value, to_bytes
from fpp_sweep.statistics.bootstrap import sample_split
from fpp_sweep.statistics.paired import corrected_differences
from fpp_sweep.statistics.paired import difference as paired_difference
from fpp_sweep.trial.artifacts import read_or_compute_block_stats
from tests.kit.measured import DATASETS, FAR_APART, World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import HOSTILE, baseline, failed, split_result, sweep_info, trial

SECONDS = Objective(metric="seconds", goal="min")
BETTER = {ZERO_SHOT: (0.6, 0.2), "trial-0001": (0.69, 0.05), "trial-0002": (0.74, 0.2)}


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """Sweeps in `sweeps/`: two on the same images, one on a part of them, and one on another dataset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    world, root = World(1000), tmp_path / "sweeps"
    return {
        "far": write_measured_sweep(root / "far", world, FAR_APART, ("val", "test")),
        "better": write_measured_sweep(root / "better", world, BETTER, ("val", "test"), space={"search": {"seed": 3}}),
        "few": write_measured_sweep(root / "few", world, BETTER, limit=200),
        "pets": write_measured_sweep(root / "pets", World(300, datasets=("pets",)), BETTER),
    }


def run_compare(capsys, *words):
    compare.main([str(word) for word in words])
    return capsys.readouterr().out


def compare_by_name(sweeps, *names):
    return compare_sweeps({name: sweeps[name] for name in names})


# ------------------------------------------------------------ shared images


def block_stats_of(images, first=None, seeds=(0,), datasets=DATASETS):
    return World(images, datasets=datasets).block_stats(0.6, 0.1, first, seeds)


@pytest.mark.parametrize(
    ("some", "other", "images"),
    [
        (block_stats_of(1000), block_stats_of(1000, 200), 200),
        (block_stats_of(1000, 200), block_stats_of(1000), 200),
        (block_stats_of(1000, 100), block_stats_of(1000), 96),  # whole blocks of 8
        (block_stats_of(50), block_stats_of(50), 50),
    ],
)
def test_the_first_images_are_shared_whatever_the_limit(some, other, images):
    common = MeasuredImages.of(some).intersection(MeasuredImages.of(other))
    assert common.counts == dict.fromkeys(DATASETS, images)
    restricted = [common.restrict(table) for table in (some, other)]
    for (dataset, seed), stats in restricted[0].items():
        assert stats.total == images
        assert np.array_equal(stats.digests, restricted[1][dataset, seed].digests)


def test_a_record_that_lacks_some_of_the_images_has_no_numbers_on_them():
    common = MeasuredImages.of(block_stats_of(300, seeds=(0, 1)))
    assert len(common.restrict(block_stats_of(300, seeds=(0, 1, 2)))) == 6  # the seeds may differ
    assert len(common.restrict(block_stats_of(300))) == 2
    assert common.restrict(block_stats_of(300, 200, seeds=(0, 1))) == {}
    assert common.restrict(block_stats_of(300, datasets=("digits", "pets"), seeds=(0, 1))) == {}
    both = common.intersection(MeasuredImages.of(block_stats_of(300, datasets=("digits", "pets"))))
    assert list(both.datasets) == ["digits"]
    assert common.intersection(MeasuredImages.of(block_stats_of(300, datasets=("pets",)))).datasets == {}


# ------------------------------------------------------------ sweeps


def test_the_union_of_two_sweeps_has_their_own_numbers(sweeps):
    comparison = compare_by_name(sweeps, "far", "better")
    front = comparison.statistics.front
    assert {member.name for member in front.members} == {"far/trial-0002", "better/trial-0001", "better/trial-0002"}
    for record in front.finished:
        sweep, name = record.name.split("/")
        assert record.values == pytest.approx(sweeps[sweep].trial(name).values, abs=1e-12)
    assert comparison.statistics.support.word("far/trial-0003") == "unlikely"
    assert not comparison.notes
    assert [sweep.label for sweep in comparison.sweeps] == ["far", "better"]
    assert [list(sweep.seconds) for sweep in comparison.sweeps] == [[45.0, 90.0], [45.0, 90.0]]


def test_the_cost_of_a_search_includes_trials_that_were_stopped_early(capsys, sweeps):
    far = sweeps["far"]
    lost = replace(failed(1), name="trial-0001", state="stopped", seconds_without_result=5.0, reason="beaten")
    far.write_trial(replace(lost, finished=far.trial("trial-0003").finished - 0.5))
    comparison = compare_by_name(sweeps, "far", "better")
    assert [list(sweep.seconds) for sweep in comparison.sweeps] == [[45.0, 95.0], [45.0, 90.0]]
    assert "far/trial-0001" not in [record.name for record in comparison.statistics.front.finished]
    assert re.search(r"\nfar +3 +1:35 ", run_compare(capsys, "far", "better"))


def test_the_cost_counts_the_trials_that_broke_a_constraint_as_their_time(capsys, sweeps):
    first = sweeps["better"].trial("trial-0001")
    sweeps["better"].write_trial(replace(first, constraints={"accuracy": 1.0}))
    text = run_compare(capsys, "far", "better", "--target", "70", "25")
    assert re.search(r"\nbetter +2 +1:30 +[\d.]+ +1:30, 2 trials\n", text)


def test_a_trial_at_the_target_reaches_it():
    objectives = sweep_info().objectives
    assert _reaches(objectives, [70.0, 5.0], [70.0, 5.0])
    assert not _reaches(objectives, [69.9, 5.0], [70.0, 5.0])
    assert not _reaches(objectives, [70.0, 5.1], [70.0, 5.0])


def test_a_position_that_few_resamples_reach_has_a_dash():
    reached = Attainment(
        positions=np.array([60.0, 70.0]),
        best=np.array([2.0, 3.0]),
        median=np.array([4.0, 5.0]),
        worst=np.array([6.0, np.inf]),
    )
    cells = [_attainment_cell("ece", reached, index) for index in (0, 1)]
    assert [(cell.text, cell.interval) for cell in cells] == [("4.00", "[2.00, 6.00]"), ("5.00", "[3.00, -]")]


def test_a_note_names_the_sweeps_whose_costs_are_too_small_because_of_cached_results(sweeps):
    far = sweeps["far"]
    info = far.info()
    far.write_info(replace(info, work=replace(info.work, cached=3)))
    better = sweeps["better"].info()
    sweeps["better"].write_info(replace(better, work=replace(better.work, cached=0)))
    notes = _cost_notes(compare_by_name(sweeps, "far", "better"), [], has_volume=True)
    assert "cached results cost nothing: far" in notes


def test_trials_are_compared_by_the_metrics_that_all_of_them_have():
    results = {"one": split_result(), "two": split_result()}
    assert _shared_metrics(sweep_info(), results)[:2] == ["accuracy", "ece"]
    del results["two"].average["accuracy"]
    shared = _shared_metrics(sweep_info(), results)
    assert "accuracy" not in shared
    assert len(shared) == len(set(shared))


def test_the_best_of_two_sweeps_are_tested_on_images_that_did_not_choose_them(sweeps):
    comparison = compare_by_name(sweeps, "far", "better")
    assert {test.split for test in comparison.tests} == {"test"}
    (accuracy, *_) = (test.difference for test in comparison.tests if "best accuracy" in test.marks)
    assert (accuracy.first, accuracy.second) == ("far/trial-0002", "better/trial-0002")
    tables = {
        sweep: read_or_compute_block_stats(sweeps[sweep].artifacts("trial-0002"), "test") for sweep in ("far", "better")
    }
    (expected,) = corrected_differences(sample_split("test", tables, ["accuracy"]), [("far", "better")], ["accuracy"])
    assert (accuracy.value, accuracy.standard_error) == pytest.approx((expected.value, expected.standard_error))
    assert accuracy.high < 0
    assert accuracy.mark == "-"
    smallest = min(test.difference.p_value for test in comparison.tests)
    adjusted = min(test.difference.adjusted_p for test in comparison.tests)
    assert adjusted == pytest.approx(min(1, len(comparison.tests) * smallest))
    assert {test.split for test in compare_by_name(sweeps, "few", "better").tests} == {"val"}


ONE_OF_FAR = {ZERO_SHOT: (0.6, 0.2), "trial-0002": (0.7, 0.1)}
ONE_OF_BETTER = {ZERO_SHOT: (0.6, 0.2), "trial-0002": (0.74, 0.3)}
MAY_BE_LUCK = "No verdict on 1 significant difference, which may be luck: the trials"


@pytest.mark.parametrize(
    ("sides", "splits", "seeds", "verdict"),
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
def test_a_difference_that_may_be_luck_is_no_verdict(tmp_path, sides, splits, seeds, verdict):
    options = {"seeds": seeds, "objectives": (Objective(metric="accuracy", goal="max"),), "is_search_apart": True}
    folders = {}
    for name, of_sweep in (("far", sides), ("better", ONE_OF_BETTER)):
        folders[name] = write_measured_sweep(tmp_path / name, World(1000), of_sweep, splits, **options)
    comparison = compare_sweeps(folders)
    text = document_to_text(sweep_comparison_document(comparison, []), 200)
    assert verdict in text
    assert ("optimistic" in text) == ("chosen by these" in verdict)


def test_without_a_significant_difference_the_verdict_says_so(tmp_path):
    folders = {}
    for name, accuracy in (("one", 0.700), ("other", 0.701)):
        sides = {ZERO_SHOT: (0.6, 0.2), "trial-0002": (accuracy, 0.1)}
        options = {"seeds": (0, 1, 2), "is_search_apart": True}
        folders[name] = write_measured_sweep(tmp_path / name, World(400), sides, ("val", "test"), **options)
    text = document_to_text(sweep_comparison_document(compare_sweeps(folders), []), 200)
    assert "No difference between the sweeps' best trials is significant." in text


@pytest.mark.parametrize(
    ("records", "reference", "corner"),
    [
        ([baseline(ZERO_SHOT, 66.0, 3.0), baseline(TPT, 69.0, 9.0), trial(1, 50.0, 20.0)], (None, None), [66.0, 9.0]),
        ([trial(1, 50.0, 20.0), trial(2, 70.0, 30.0)], (None, None), [50.0, 30.0]),
        ([baseline(ZERO_SHOT, 66.0, 3.0), baseline(TPT, 69.0, 9.0)], (60.0, None), [60.0, 9.0]),
    ],
)
def test_hypervolume_is_measured_from_the_worst_baseline_in_each_objective(records, reference, corner):
    accuracy, ece = reference
    objectives = [
        Objective(metric="accuracy", goal="max", reference=accuracy),
        Objective(metric="ece", goal="min", reference=ece),
    ]
    assert hypervolume_corner(objectives, records) == corner


def test_sweeps_with_other_limits_are_compared_on_the_images_that_both_have(sweeps):
    comparison = compare_by_name(sweeps, "far", "few")
    assert comparison.notes == [
        "far: compared on the images of val that all have seen, 200 of 1000 of digits, 200 of 1000 of scenes"
    ]
    for record in comparison.statistics.front.trials:
        result = record.results["val"]
        sweep, name = record.name.split("/")
        table = read_or_compute_block_stats(sweeps[sweep].artifacts(name), "val")
        for dataset in DATASETS:
            ids = [f"image {index}" for index in range(1000)]
            first = table[dataset, 0].with_block_size(8).take(slice(0, 25))
            assert first.total == 200 == len(fair_order(dataset, ids)[0][:200])
            assert result.datasets[dataset]["ece"] == pytest.approx(metric_value("ece", first))
        accuracies = [result.datasets[dataset]["accuracy"] for dataset in DATASETS]
        assert result.average["accuracy"] == pytest.approx(np.mean(accuracies))
    assert comparison.statistics.splits["val"].samples.images == dict.fromkeys(DATASETS, 200)


def test_a_note_names_everything_that_cannot_be_paired(sweeps, tmp_path):
    half = write_measured_sweep(tmp_path / "half", World(1000, datasets=("digits", "pets")), BETTER, seeds=(0, 1),
                 objectives=(Objective(metric="nll", goal="min"),))  # fmt: skip
    comparison = compare_sweeps({"far": sweeps["far"], "half": half, "pets": sweeps["pets"]})
    assert comparison.notes == [
        "pets shares no whole block of images of val with far, half: left out",
        "far: scenes of val cannot be paired; left out of every number here",
        "half: pets of val cannot be paired; left out of every number here",
        "half searched nll (min); all are judged by accuracy (max) and ece (min)",
    ]
    (record,) = (trial for trial in comparison.statistics.front.trials if trial.name == "half/trial-0001")
    table = read_or_compute_block_stats(half.artifacts("trial-0001"), "val")
    expected = np.mean([metric_value("accuracy", table["digits", seed]) for seed in (0, 1)])
    assert record.results["val"].average["accuracy"] == pytest.approx(expected)
    objectives = (Objective(metric="sce", goal="min"), Objective(metric="ece/scenes", goal="min"),
                  Objective(metric="ece", goal="min"))  # fmt: skip
    with_seconds = write_measured_sweep(tmp_path / "all", World(1000), BETTER, objectives=(*objectives[1:], SECONDS))
    comparison = compare_sweeps({"all": with_seconds, "half": half})
    assert "seconds cannot be compared: it depends on datasets and seeds that are not shared" in comparison.notes
    first = write_measured_sweep(tmp_path / "first", World(1000), BETTER, limit=600, objectives=objectives)
    comparison = compare_sweeps({"first": first, "half": half})
    assert "sce cannot be compared: it cannot be computed on a part of the images" in comparison.notes
    assert "ece/scenes cannot be compared: scenes is not shared" in comparison.notes
    assert [objective.metric for objective in comparison.info.objectives] == ["ece"]


def test_a_baseline_on_a_part_of_its_images_is_recognised_and_listed_once(tmp_path):
    world = World(1000)
    whole = write_measured_sweep(tmp_path / "whole", world, BETTER)
    part = write_measured_sweep(tmp_path / "part", world, BETTER, limit=200)
    table = read_or_compute_block_stats(whole.artifacts(f"baseline-{ZERO_SHOT}"), "val")
    first = {key: stats.with_block_size(8).take(slice(0, 25)) for key, stats in table.items()}
    (part.artifacts(f"baseline-{ZERO_SHOT}") / "val" / BLOCK_STATS_FILE).write_bytes(to_bytes(first))
    record = part.trial(f"baseline-{ZERO_SHOT}")
    datasets = {}
    for name in DATASETS:
        datasets[name] = {metric: metric_value(metric, first[name, 0]) + 1e-12 for metric in BLOCKWISE_METRICS}
    part.write_trial(replace(record, results={"val": replace(record.results["val"], datasets=datasets)}))
    comparison = compare_sweeps({"whole": whole, "part": part})
    assert [record.label for record in comparison.statistics.front.baselines] == [ZERO_SHOT]


def test_a_note_names_datasets_whose_files_or_labels_differ(sweeps, tmp_path):
    for name, images, labels in (("far", "12", "ab"), ("better", "13", "ac"), ("few", "45", "de")):
        datasets, files = dict(zip(DATASETS, labels, strict=True)), dict(zip(DATASETS, images, strict=True))
        sweeps[name].write_info(replace(sweeps[name].info(), datasets=datasets, images=files))
    notes = compare_by_name(sweeps, "far", "better", "few").notes
    assert [note for note in notes if "compared on" not in note] == [
        "better: class names, labels or views of scenes differ from far's; paired by their names",
        "better: image files (size or time) of scenes differ from far's; paired by their names",
    ]


def test_a_sweep_that_was_searched_on_the_test_split_is_compared_there(sweeps, tmp_path):
    other = write_measured_sweep(tmp_path / "other", World(1000), BETTER, ("test",), search_split="test")
    comparison = compare_sweeps({"far": sweeps["far"], "other": other})
    assert comparison.info.search_split == "test"
    text = document_to_text(sweep_comparison_document(comparison, []), 100)
    assert "on test they were chosen by these images: optimistic" in text
    picture = _panel(comparison, (0, 1))
    assert [points.marker for points in picture.points if points.kind == "baseline"] == [CROSS]
    assert comparison.notes == ["far searched val: its records that were run on test, too, are compared"]


def test_a_baseline_that_is_the_same_in_both_sweeps_is_listed_once(sweeps, tmp_path):
    first, second = (tmp_path / name for name in ("first", "second"))
    world = World(300)
    one = write_measured_sweep(first, world, {**BETTER, TPT: (0.5, 0.1)})
    other = write_measured_sweep(second, world, {**BETTER, TPT: (0.5, 0.1)})
    for part in ("trials/baseline-tpt.json", f"artifacts/baseline-tpt/val/{BLOCK_STATS_FILE}"):
        (second / part).write_bytes((first / part).read_bytes())
    comparison = compare_sweeps({"first": one, "second": other})
    assert {record.label for record in comparison.statistics.front.baselines} == {TPT, ZERO_SHOT, f"second/{ZERO_SHOT}"}


def test_a_comparison_is_written_as_text_page_picture_markdown_and_latex(capsys, sweeps, tmp_path):
    text = run_compare(capsys, "far", sweeps["better"].path, "--target", "70", "25")
    for title in ("Union front of far, better", "The sweeps' best trials against each other", "Attainment", "Cost",
                  "Settings that differ"):  # fmt: skip
        assert f"\n{title}" in text
    assert re.search(r"\nbetter/trial-0002 +7\d\.\d\d .* likely +best accuracy\n  95 % +\[7\d\.\d, 7\d\.\d\]", text)
    assert "3 of 4 finished trials: 1 of far, 2 of better; images: 1000 of digits, 1000 of scenes\n" in text
    assert re.search(r"\n +\d+\.\d\d +\S+ +\[\S+, \S+\] +\S+ +\[\S+, \S+\]\n", text.partition("\nAttainment")[2])
    assert re.search(r"\nbetter +2 +1:30 +[\d.]+ +1:30, 2 trials\n", text)
    assert re.search(r"\nfar +2 +1:30 +[\d.]+ +never\n", text)
    assert re.search(r"\nsearch\.seed +- +3\n", text)
    folder = tmp_path / "comparisons" / "far-better"
    Image.open(folder / "comparison.png").verify()
    page = (folder / "comparison.html").read_text()
    assert page.count("<svg") == 1
    assert ">better/trial-0002</th>" in page
    for name in ("comparison.md", "comparison.tex"):
        assert "better/trial-0002" in (folder / name).read_text()


def test_a_trial_that_two_sweeps_have_is_listed_once(capsys, sweeps, tmp_path):
    shutil.copytree(sweeps["far"].path, tmp_path / "sweeps" / "twin")
    twin = type(sweeps["far"])(tmp_path / "sweeps" / "twin")
    comparison = compare_sweeps({"far": sweeps["far"], "twin": twin})
    assert {trial.name.partition("/")[0] for trial in comparison.statistics.front.finished} == {"far"}
    assert not comparison.tests
    assert all(sweep.attainment is not None for sweep in comparison.sweeps)
    text = run_compare(capsys, "far", "twin")
    assert "No difference between the sweeps' best trials was tested." in text
    assert re.search(r"(\d) of 2 finished trials: \1 of far, \1 of twin", text)


def test_marks_of_a_sweep_take_shared_baselines_into_account(tmp_path):
    """A trial far below zero-shot is not marked as best in either sweep."""
    reached = {ZERO_SHOT: (0.7, 0.2), "trial-0001": (0.75, 0.1), "trial-0002": (0.3, 0.02)}
    first = write_measured_sweep(tmp_path / "first", World(1000), reached)
    shutil.copytree(first.path, tmp_path / "second")
    comparison = compare_sweeps({"first": first, "second": type(first)(tmp_path / "second")})
    marks, others = ([*sweep.front.marks.values()] for sweep in comparison.sweeps)
    assert marks == others == [["best accuracy", "best ece", "knee"], []]


def test_sweeps_with_one_and_with_three_objectives_are_compared(sweeps, tmp_path):
    for goals in ((("accuracy", "max"),), (("accuracy", "max"), ("ece", "min"), ("brier", "min"))):
        objectives = tuple(Objective(metric=metric, goal=goal) for metric, goal in goals)
        sweeps["far"].write_info(replace(sweeps["far"].info(), objectives=objectives, reference=None))
        compare.main(["far", "better", "--out", str(tmp_path / "there")])
        Image.open(tmp_path / "there" / "comparison.png").verify()


def test_a_sweep_without_a_feasible_trial_has_a_cost_and_no_front(capsys, sweeps):
    for name in ("trial-0001", "trial-0002"):
        sweeps["better"].write_trial(replace(sweeps["better"].trial(name), constraints={"accuracy": 1.0}))
    text = run_compare(capsys, "far", "better")
    assert "1 of 4 finished trials: 1 of far, 0 of better" in text
    assert "\nbetter: 2 trials not on the front, for constraints of that sweep\n" in text
    assert "The sweeps' best trials against each other\n" in text
    assert "none: a test takes two different best trials, enough shared images" in " ".join(text.split())
    assert re.search(r"\nbetter +2 +1:30 +0 +never +never +never\n", text)


def test_hostile_names_and_settings_are_escaped_in_every_output(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("<b>$x$_\033[2J", "b|&%")
    for name in names:
        write_measured_sweep(tmp_path / "sweeps" / name, World(100), BETTER, space={HOSTILE: f"{HOSTILE}\033[2J{name}"})
    out = tmp_path / "there\x1b[31m"
    text = run_compare(capsys, *names, "--out", out)
    assert "\033" not in text
    page = (out / "comparison.html").read_text()
    assert "<b>" not in page
    assert "<img" not in page
    assert r"\textbackslash{}x1b" in (out / "comparison.tex").read_text()


# ------------------------------------------------------------ trials


def test_trials_are_compared_on_average_and_by_dataset_in_two_families(capsys, sweeps, tmp_path):
    far = sweeps["far"]
    comparison = compare_trials(far, ["trial-0002", "trial-0003", TPT])
    assert (comparison.split, list(comparison.results)) == ("test", ["trial-0002", "trial-0003", TPT])
    sizes = {("/" in key[2]): record.family_size for key, record in comparison.differences.items()
             if key not in comparison.from_answer}  # fmt: skip
    assert sizes == {False: 6, True: 12}
    difference = comparison.differences["trial-0002", "trial-0003", "ece"]
    text = run_compare(capsys, "far", "trial-0002", "trial-0003", TPT)
    bounds = f"[{difference.low:+.1f}, {difference.high:+.1f}]"
    assert f"{difference.debiased:+.1f}* {bounds}" in text
    joined = " ".join(text.split())
    assert "the 6 tests of averages in this comparison" in joined
    assert "the 12 tests of single datasets in this comparison" in joined
    folder = tmp_path / "comparisons" / "far-trial-0002-trial-0003-tpt"
    assert f"| trial-0002 minus {TPT} |" in (folder / "comparison.md").read_text()
    latex = (folder / "comparison.tex").read_text()
    assert latex.count(r"\begin{tabular}{lrrr}") == latex.count(r"\bottomrule") - 1 == 4  # one for the settings
    assert re.search(r"\nSettings\n+trial +fpp\.\S+.*\ntrial-0002 +\S+", text)
    assert f"{difference.debiased:+.1f}* {bounds}".replace("-", "$-$") in latex
    assert "$<$0.001" in latex
    on_val = run_compare(capsys, "far", "trial-0002", "trial-0003", "--split", "val")
    assert "trials were chosen by these images: optimistic" in " ".join(on_val.split())
    assert format_interval("ece", comparison.statistics.interval("trial-0002", "ece")) in text


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
    seeds = statistics.splits["val"].seeds["accuracy"]
    expected = paired_difference(statistics.splits["val"].samples, "trial-0002", "trial-0003", "accuracy", seeds)
    shown = compare_trials(far, names, "val").differences["trial-0002", "trial-0003", "accuracy"]
    assert (shown.low, shown.high) == pytest.approx((expected.low, expected.high))


def test_trials_of_few_images_have_no_test_and_the_reason_for_it(capsys, sweeps, tmp_path):
    write_measured_sweep(tmp_path / "sweeps" / "tiny", World(20), FAR_APART)
    text = run_compare(capsys, "tiny", "trial-0002", "trial-0003")
    assert "accuracy: no paired test\nfewer than 30 images\n" in text
    assert "families" not in text
    assert "optimistic" in text


def test_trials_that_were_only_evaluated_were_not_chosen_by_their_images(capsys, sweeps):
    far = sweeps["far"]
    far.write_info(replace(far.info(), space={"search": {"evaluate_only": True}}))
    assert "optimistic" not in run_compare(capsys, "far", "trial-0002", "trial-0003", "--split", "val")


def test_seeds_change_no_record_whose_prompt_is_not_pretrained(sweeps):
    far = sweeps["far"]
    plain = far.trial(f"baseline-{ZERO_SHOT}")
    far.write_trial(replace(plain, config={**plain.config, "prompt": "a photo of a"}))
    records = compare_trials(far, ["trial-0002", ZERO_SHOT]).statistics.samples.records
    assert {label: record.deterministic for label, record in records.items()} == {"trial-0002": False, ZERO_SHOT: True}


@pytest.mark.parametrize(
    ("prompt", "seeds", "expected"),
    [("a photo of a", (0,), True), ("a photo of a", (0, 1), False), ("fpp", (0,), False), ("fpp", (0, 1), False)],
)
def test_a_record_is_deterministic_with_a_prompt_of_words_and_one_seed(prompt, seeds, expected):
    record = trial(2, accuracy=60.0, ece=10.0)
    assert is_deterministic(replace(record, config={**record.config, "prompt": prompt}), seeds) is expected


@pytest.mark.parametrize("names", [["trial-0002", TPT], [TPT, "trial-0002"]])
def test_a_pair_of_the_sweeps_answer_has_the_same_verdict_in_the_comparison(sweeps, names):
    far = sweeps["far"]
    comparison = compare_trials(far, names)
    answer = statistics_of(far, far.info(), far.trials()).answer
    for metric in ("accuracy", "ece"):
        expected = answer.difference("trial-0002", f"baseline-{TPT}", metric)
        difference = comparison.differences["trial-0002", TPT, metric]
        assert (difference.adjusted_p, difference.family_size) == (expected.adjusted_p, expected.family_size)
        assert difference.mark == expected.mark != ""
    assert comparison.from_answer == {("trial-0002", TPT, "accuracy"), ("trial-0002", TPT, "ece")}


def test_numbers_on_all_images_equal_the_recorded_ones(sweeps):
    comparison = compare_trials(sweeps["far"], ["trial-0002", "trial-0003"])
    record = sweeps["far"].trial("trial-0002").results["test"]
    assert comparison.results["trial-0002"].datasets == record.datasets
    assert comparison.results["trial-0002"].average == pytest.approx(record.average)


def test_trials_that_skipped_images_are_compared_on_whole_blocks(sweeps, capsys):
    far = sweeps["far"]
    file = far.artifacts("trial-0003") / "test" / BLOCK_STATS_FILE
    table = read_or_compute_block_stats(far.artifacts("trial-0003"), "test")
    digits = table["digits", 0]
    without_a_block = digits.take(np.arange(len(digits)) != 5)
    file.write_bytes(to_bytes({**table, ("digits", 0): without_a_block}))
    record = far.trial("trial-0003")
    result = record.results["test"]
    on_digits = {**result.datasets["digits"], "accuracy": metric_value("accuracy", without_a_block)}
    result = replace(result, datasets={**result.datasets, "digits": on_digits})
    far.write_trial(replace(record, results={**record.results, "test": result}))
    comparison = compare_trials(far, ["trial-0002", "trial-0003"])
    assert comparison.statistics.samples.images == {"digits": 5 * 8, "scenes": 1000}
    assert "images that all have seen: 40 of digits, 1000 of scenes" in run_compare(
        capsys, "far", "trial-0002", "trial-0003"
    )


def test_block_statistics_of_another_record_are_refused(sweeps, tmp_path):
    folder = SweepFolder(shutil.copytree(sweeps["far"].path, tmp_path / "far"))
    of_another = folder.artifacts("trial-0002") / "test" / BLOCK_STATS_FILE
    shutil.copy(of_another, folder.artifacts("trial-0003") / "test" / BLOCK_STATS_FILE)
    with pytest.raises(InputError, match=r"^trial-0003: the block statistics of split test are of another record: "):
        compare_trials(folder, ["trial-0003", TPT])


def test_a_ranking_is_not_compared_on_a_part_of_the_images(sweeps):
    """Its contributions depend on all images of the dataset."""
    auroc = Objective(metric="auroc", goal="max")
    for name in ("far", "few"):
        info = sweeps[name].info()
        sweeps[name].write_info(replace(info, objectives=(*info.objectives, auroc), reference=None))
    comparison = compare_by_name(sweeps, "far", "few")
    assert "auroc cannot be compared: it cannot be computed on a part of the images" in comparison.notes
    for record in comparison.statistics.front.trials:
        if record.name.startswith("far/"):
            average = record.results["val"].average
            assert "accuracy" in average
            assert "auroc" not in average


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
    assert "sce: no paired test\nit cannot be computed from block statistics\n" in text


# ------------------------------------------------------------ refused comparisons


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["far", "pets"],
            "nothing to compare: pets shares no whole block of images of val with far; give sweeps on the same images",
        ),
        (["far"], "far alone: give another sweep, or two or more of its trials and baselines"),
        (["far", "trial-0002"], "trial-0002 alone: give two or more trials or baselines, or another sweep"),
        (["far", TPT, f"baseline-{TPT}"], f"{TPT} alone: give two or more"),
        (["far", "trial-0002", "trial-0009"], "unknown trial of far 'trial-0009'; choose from"),
        (["far", "trial-0002", "trial-0007"], "trial-0007 is failed: only complete trials can be compared"),
        (["far", "better", "trial-0002"], "unknown sweep 'trial-0002'"),
        (["nowhere", "far"], "unknown sweep 'nowhere'"),
        (["far", "."], ". is not a sweep's folder (it has no sweep.json)"),
        (["far", "far"], "far: is given twice; give different sweeps"),
        (["far", "none"], "none has no finished trial"),
        (["far", "better", "--target", "5"], "--target: give a value of each of accuracy (max) and ece (min), got [5."),
        (["far", "better", "--target", "70", "nan"], "--target: give a value of each of accuracy (max) and ece (min)"),
        (["far", "better", "--target", "x"], "argument --target: invalid float value: 'x'"),
        (["few", "trial-0001", "trial-0002", "--split", "test"], "--split: not all were run on test; all were on val"),
        (["bare", "trial-0001", "trial-0002"], "trial-0001 has no block statistics on val: nothing can be paired"),
        (["far", "bare"], "nothing to compare: bare has no block statistics of its predictions on val"),
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
        run(lambda: compare.main(words))
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert complaint in captured.err
    assert not (root.parent / "comparisons").exists()


def test_a_name_means_the_baseline_even_if_a_folder_has_the_same_name(capsys, sweeps, tmp_path):
    (tmp_path / TPT).mkdir()
    assert f"trial-0002 minus {TPT}" in run_compare(capsys, "far", "trial-0002", TPT)


def test_the_tables_are_utf_8_in_any_locale(capsys, sweeps, tmp_path, ascii_locale):
    write_measured_sweep(tmp_path / "Straße", World(1000), BETTER)
    run_compare(capsys, "far", "Straße", "--out", tmp_path / "out")
    for name in ("comparison.md", "comparison.tex", "comparison.html"):
        assert "Straße/trial-0002" in (tmp_path / "out" / name).read_text(encoding="utf-8"), name


def test_two_sweeps_of_one_name_are_labelled_by_their_folders(capsys, sweeps, tmp_path):
    write_measured_sweep(tmp_path / "elsewhere" / "far", World(1000), BETTER)
    text = run_compare(capsys, "far", "elsewhere/far")
    assert "elsewhere/far/trial-0002" in text


def test_the_command_needs_neither_ray_nor_torch(sweeps):
    code = (
        "import sys; from fpp_sweep.__main__ import main\n"
        "main(['compare', 'far', 'better']); main(['compare', 'far', 'trial-0002', 'tpt'])\n"
        "heavy = {'torch', 'ray', 'mlflow', 'optuna', 'plotly', 'sklearn'}\n"
        "import json; print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
