"""Sweeps and trials against each other, on sums of predictions whose truth is known."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from math import erfc, sqrt

import numpy as np
import pytest
from PIL import Image

from fpp_sweep import compare
from fpp_sweep.cli.command import run
from fpp_sweep.core.datasets import fair_order
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.report.comparison import compare_sweeps, compare_trials
from fpp_sweep.report.document import Part, as_latex, as_markdown, as_text
from fpp_sweep.space.objectives import Objective
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, BlockStats, metric_value, to_bytes
from fpp_sweep.statistics.old_bootstrap import Common, averaged, drawn, holm
from fpp_sweep.trial.artifacts import read_sums
from tests.names import PLAIN, TPT
from tests.report.made import HOSTILE, failed
from tests.report.worlds import FAR, SETS, World, write

SECONDS = Objective(metric="seconds", goal="min")
BETTER = {PLAIN: (0.6, 0.2), "trial-0001": (0.69, 0.05), "trial-0002": (0.74, 0.2)}


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """Two sweeps on the same images, one on a part of them, one on another dataset; they are in `sweeps/`."""
    monkeypatch.chdir(tmp_path)
    world, root = World(1000), tmp_path / "sweeps"
    return {
        "far": write(SweepFolder(root / "far"), world, FAR, ("val", "test")),
        "better": write(SweepFolder(root / "better"), world, BETTER, ("val", "test"), space={"search": {"seed": 3}}),
        "few": write(SweepFolder(root / "few"), world, BETTER, limit=200),
        "pets": write(SweepFolder(root / "pets"), World(300, sets=("pets",)), BETTER),
    }


def shown(capsys, *words):
    compare.main([str(word) for word in words])
    return capsys.readouterr().out


def union(sweeps, *names):
    return compare_sweeps({name: sweeps[name] for name in names})


# ------------------------------------------------------------ what is shared


def table_of(images, first=None, seeds=(0,), sets=SETS):
    return World(images, sets=sets).sums(0.6, 0.1, first, seeds)


@pytest.mark.parametrize(
    ("some", "other", "images"),
    [
        (table_of(1000), table_of(1000, 200), 200),
        (table_of(1000, 200), table_of(1000), 200),
        (table_of(1000, 100), table_of(1000), 96),  # whole blocks of 8
        (table_of(50), table_of(50), 50),
    ],
)
def test_the_first_images_are_shared_whatever_the_limit(some, other, images):
    common = Common.of(some).shared(Common.of(other))
    assert common.images == dict.fromkeys(SETS, images)
    for table in (some, other):
        taken = common.taken(table)
        for (dataset, seed), one in taken.items():
            assert one.total == images
            assert np.array_equal(one.digests, taken[dataset, seed].digests)


def test_nothing_is_taken_of_a_table_that_lacks_something():
    common = Common.of(table_of(300, seeds=(0, 1)))
    assert len(common.taken(table_of(300, seeds=(0, 1, 2)))) == 4
    assert common.taken(table_of(300)) == {}
    assert common.taken(table_of(300, 200, seeds=(0, 1))) == {}
    assert common.taken(table_of(300, sets=("digits", "pets"), seeds=(0, 1))) == {}
    both = common.shared(Common.of(table_of(300, sets=("digits", "pets"), seeds=(1, 2))))
    assert (list(both.datasets), both.seeds) == (["digits"], (1,))
    assert common.shared(Common.of(table_of(300, sets=("pets",)))).datasets == {}


# ------------------------------------------------------------ sweeps


def test_the_union_of_two_sweeps_on_the_same_images(sweeps):
    found = union(sweeps, "far", "better")
    assert {member.name for member in found.front.members} == {"far/trial-0002", "better/trial-0001",
                                                              "better/trial-0002"}  # fmt: skip
    for name in found.evidence.support:
        sweep, trial = name.split("/")
        assert list(found.evidence.splits["val"].found("ece")[0]) == ["accuracy", "ece", "debiased_ece"]
        own = sweeps[sweep].trial(trial)
        (here,) = (one for one in found.front.finished if one.name == name)
        assert here.values == pytest.approx(own.values, abs=1e-12)
    assert found.evidence.support["far/trial-0003"] == 0
    assert not found.notes
    assert [side.label for side in found.sides] == ["far", "better"]
    assert [list(side.spent) for side in found.sides] == [[12.0, 24.0], [12.0, 24.0]]


def test_what_a_search_cost_includes_trials_that_lost_a_race(sweeps):
    far = sweeps["far"]
    lost = replace(failed(1), name="trial-0001", state="stopped", estimate=(60.0, 9.0), held=5.0, reason="beaten")
    far.write_trial(replace(lost, finished=far.trial("trial-0003").finished - 0.5))
    found = union(sweeps, "far", "better")
    assert [list(side.spent) for side in found.sides] == [[12.0, 29.0], [12.0, 24.0]]
    assert "far/trial-0001" not in [record.name for record in found.front.finished]


def test_what_one_sweep_has_confirmed_is_not_said_of_the_union(capsys, sweeps):
    far = sweeps["far"]
    outcome = "on fresh images: trial-0002 best accuracy 70.00"
    far.write_info(replace(far.info(), confirmed=outcome, confirmed_front=["trial-0002"]))
    assert "fresh images: trial-0002" not in shown(capsys, "far", "better")


def test_the_best_of_two_sweeps_are_tested_where_they_were_not_chosen(sweeps):
    found = union(sweeps, "far", "better")
    assert {test.split for test in found.tests} == {"test"}
    (accuracy, *_) = (test for test in found.tests if "best accuracy" in test.marks)
    assert accuracy.names == ("far/trial-0002", "better/trial-0002")
    tables = [read_sums(sweeps[sweep].artifacts("trial-0002"), "test") for sweep in ("far", "better")]
    sets = [drawn(name, "test", [[table[name, 0]] for table in tables], ["accuracy"]) for name in SETS]
    expected = averaged(sets)["accuracy"].difference(0, 1)
    assert (accuracy.gap.value, accuracy.gap.sd) == pytest.approx((expected.value, expected.sd))
    assert expected.high < 0
    plain = sorted(erfc(abs(test.gap.value) / test.gap.sd / sqrt(2)) for test in found.tests)
    assert min(test.p for test in found.tests) == pytest.approx(min(1, len(plain) * plain[0]))
    few = union(sweeps, "few", "better")
    assert {test.split for test in few.tests} == {"val"}


def test_sweeps_with_other_limits_are_compared_on_the_images_that_both_have(sweeps):
    found = union(sweeps, "far", "few")
    assert found.notes == [
        "far: compared on the images of val that all have seen, 200 of 1000 of digits, 200 of 1000 of scenes"
    ]
    for name, result in ((one.name, one.results["val"]) for one in found.front.trials):
        sweep, trial = name.split("/")
        table = read_sums(sweeps[sweep].artifacts(trial), "val")
        for dataset in SETS:
            ids = [f"image {index}" for index in range(1000)]
            one = table[dataset, 0]
            first = one.with_block_size(8).take(slice(0, 25))
            assert first.total == 200 == len(fair_order(dataset, ids)[0][:200])
            assert result.datasets[dataset]["ece"] == pytest.approx(metric_value("ece", first))
        assert result.average["accuracy"] == pytest.approx(
            np.mean([result.datasets[each]["accuracy"] for each in SETS])
        )
    assert found.evidence.splits["val"].images == dict.fromkeys(SETS, 200)


def test_what_cannot_be_paired_is_said(sweeps, tmp_path):
    half = write(SweepFolder(tmp_path / "half"), World(1000, sets=("digits", "pets")), BETTER, seeds=(0, 1),
                 objectives=(Objective(metric="nll", goal="min"),))  # fmt: skip
    found = compare_sweeps({"far": sweeps["far"], "half": half, "pets": sweeps["pets"]})
    assert found.notes == [
        "pets shares no image of val with far, half: left out",
        "far: scenes of val cannot be paired; left out of every number here",
        "half: pets of val cannot be paired; left out of every number here",
        "half: compared on seeds (0) of (0, 1)",
        "half searched nll (min); all are judged by accuracy (max) and ece (min)",
    ]
    (trial,) = (one for one in found.front.trials if one.name == "half/trial-0001")
    expected = metric_value("accuracy", read_sums(half.artifacts("trial-0001"), "val")["digits", 0])
    assert trial.results["val"].average["accuracy"] == pytest.approx(expected)
    objectives = (Objective(metric="aurc", goal="min"), Objective(metric="ece/scenes", goal="min"),
                  Objective(metric="ece", goal="min"))  # fmt: skip
    of_all = write(SweepFolder(tmp_path / "all"), World(1000), BETTER, objectives=(*objectives[1:], SECONDS))
    found = compare_sweeps({"all": of_all, "half": half})
    assert "seconds cannot be compared: it does not follow from a part of the images" in found.notes
    first = write(SweepFolder(tmp_path / "first"), World(1000), BETTER, limit=600, objectives=objectives)
    found = compare_sweeps({"first": first, "half": half})
    assert "aurc cannot be compared: it does not follow from a part of the images" in found.notes
    assert "ece/scenes cannot be compared: scenes is not shared" in found.notes
    assert [objective.metric for objective in found.info.objectives] == ["ece"]


def test_a_baseline_on_a_part_of_its_images_is_the_same(tmp_path):
    world = World(1000)
    whole = write(SweepFolder(tmp_path / "whole"), world, BETTER)
    part = write(SweepFolder(tmp_path / "part"), world, BETTER, limit=200)
    table = read_sums(whole.artifacts(f"baseline-{PLAIN}"), "val")
    first = {key: one.with_block_size(8).take(slice(0, 25)) for key, one in table.items()}
    (part.artifacts(f"baseline-{PLAIN}") / "val" / BLOCK_STATS_FILE).write_bytes(to_bytes(first))
    record = part.trial(f"baseline-{PLAIN}")
    result = replace(record.results["val"], datasets={
        name: {metric: metric_value(metric, first[name, 0]) + 1e-12 for metric in BLOCKWISE_METRICS} for name in SETS})  # fmt: skip
    part.write_trial(replace(record, results={"val": result}))
    found = compare_sweeps({"whole": whole, "part": part})
    assert [record.label for record in found.front.baselines] == [PLAIN]


def test_images_of_one_name_with_other_files_or_labels_are_named(sweeps, tmp_path):
    for name, images, labels in (("far", "12", "ab"), ("better", "13", "ac"), ("few", "45", "de")):
        datasets, files = dict(zip(SETS, labels, strict=True)), dict(zip(SETS, images, strict=True))
        sweeps[name].write_info(replace(sweeps[name].info(), datasets=datasets, images=files))
    notes = union(sweeps, "far", "better", "few").notes
    assert [note for note in notes if "compared on" not in note] == [
        "better: labels or views of scenes differ from far's; paired by their names",
        "better: image files (size or time) of scenes differ from far's; paired by their names",
    ]


def test_a_sweep_that_was_searched_on_the_test_split_is_compared_there(sweeps, tmp_path):
    other = write(SweepFolder(tmp_path / "other"), World(1000), BETTER, ("test",), search_split="test")
    found = compare_sweeps({"far": sweeps["far"], "other": other})
    assert found.info.search_split == "test"
    assert found.notes == ["far searched val: what of it was run on test, too, is compared"]


def test_a_baseline_of_both_sweeps_is_there_once_and_what_differs_twice(sweeps, tmp_path):
    first, second = (tmp_path / name for name in ("first", "second"))
    world = World(300)
    one = write(SweepFolder(first), world, {**BETTER, TPT: (0.5, 0.1)})
    other = write(SweepFolder(second), world, {**BETTER, TPT: (0.5, 0.1)})
    for part in ("trials/baseline-tpt.json", f"artifacts/baseline-tpt/val/{BLOCK_STATS_FILE}"):
        (second / part).write_bytes((first / part).read_bytes())
    found = compare_sweeps({"first": one, "second": other})
    assert {record.label for record in found.front.baselines} == {TPT, PLAIN, f"second/{PLAIN}"}


def test_terminal_page_picture_markdown_and_latex(capsys, sweeps, tmp_path):
    text = shown(capsys, "far", sweeps["better"].path, "--target", "70", "25")
    for title in ("Union front of far, better", "The sweeps' best against each other", "Attainment", "Cost",
                  "Settings that differ"):  # fmt: skip
        assert f"\n{title}" in text
    assert re.search(r"\n  better/trial-0002 +7\d\.\d\d \[7\d\.\d, 7\d\.\d\].* clear 1\.00, best accuracy", text)
    assert "  3 of 4 trials: 1 of far, 2 of better; images: 1000 of digits, 1000 of scenes\n" in text
    assert re.search(r"\n  better +2 +24 s +[\d.]+ +24 s, 2 trials\n", text)
    assert re.search(r"\n  far +2 +24 s +[\d.]+ +never\n", text)
    assert re.search(r"\n  search\.seed +- +3\n", text)
    place = tmp_path / "comparisons" / "far-better"
    Image.open(place / "comparison.png").verify()
    page = (place / "comparison.html").read_text()
    assert page.count("<svg") == 1
    assert "better/trial-0002</th>" in page
    for name in ("comparison.md", "comparison.tex"):
        assert "better/trial-0002" in (place / name).read_text()


def test_a_single_objective_and_three(sweeps, tmp_path):
    for goals in ((("accuracy", "max"),), (("accuracy", "max"), ("ece", "min"), ("brier", "min"))):
        objectives = tuple(Objective(metric=metric, goal=goal) for metric, goal in goals)
        sweeps["far"].write_info(replace(sweeps["far"].info(), objectives=objectives))
        compare.main(["far", "better", "--out", str(tmp_path / "there")])
        Image.open(tmp_path / "there" / "comparison.png").verify()


def test_a_sweep_none_of_whose_trials_is_feasible(capsys, sweeps):
    for name in ("trial-0001", "trial-0002"):
        sweeps["better"].write_trial(replace(sweeps["better"].trial(name), constraints={"accuracy": 1.0}))
    text = shown(capsys, "far", "better")
    assert "1 of 4 trials: 1 of far, 0 of better" in text
    assert "\n  better: 2 trials not on the front, for constraints of that sweep\n" in text
    assert "The sweeps' best against each other\n" in text
    assert "no two of them can be paired" in text
    assert re.search(r"\n  better +2 +24 s +0 +never +never +never\n", text)


def test_nothing_that_is_read_can_steer_terminal_page_or_latex(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("<b>$x$_\033[2J", "b|&%")
    for name in names:
        write(SweepFolder(tmp_path / "sweeps" / name), World(100), BETTER, space={HOSTILE: f"{HOSTILE}\033[2J{name}"})
    text = shown(capsys, *names, "--out", "there")
    assert "\033" not in text
    page = (tmp_path / "there" / "comparison.html").read_text()
    assert "<b>" not in page
    assert "<img" not in page
    assert r"\textbackslash{}x1b" in (tmp_path / "there" / "comparison.tex").read_text()


# ------------------------------------------------------------ trials


def test_trials_of_a_sweep_against_each_other(capsys, sweeps, tmp_path):
    far = sweeps["far"]
    found = compare_trials(far, ["trial-0002", "trial-0003", TPT])
    assert (found.split, list(found.results)) == ("test", ["trial-0002", "trial-0003", TPT])
    tables = [read_sums(far.artifacts(name), "test") for name in ("trial-0002", "trial-0003", f"baseline-{TPT}")]
    sets = {name: drawn(name, "test", [[table[name, 0]] for table in tables], ["debiased_ece"]) for name in SETS}
    gap = averaged(list(sets.values()))["debiased_ece"].difference(0, 2)
    assert found.evidence.difference("trial-0002", TPT, "ece") == gap
    assert found.evidence.difference("trial-0002", TPT, "ece/digits") == sets["digits"]["debiased_ece"].difference(0, 2)
    assert len(found.ps) == 3 * 2 * 3
    averages = {key: p for key, p in found.ps.items() if "/" not in key[2]}
    raw = {key: found.evidence.difference(*key).p for key in averages}
    assert averages == pytest.approx(dict(zip(raw, naive_holm(list(raw.values())), strict=True)))
    text = shown(capsys, "far", "trial-0002", "trial-0003", TPT)
    low, high = f"{gap.low:+.1f}", f"{gap.high:+.1f}"
    assert f"{gap.value:+.1f} [{low}, {high}]" in text
    assert "corrected by Holm over the 6 tests of averages, and over the 12" in text
    place = tmp_path / "comparisons" / "far-trial-0002-trial-0003-tpt"
    assert f"| trial-0002 less {TPT} |" in (place / "comparison.md").read_text()
    latex = (place / "comparison.tex").read_text()
    assert latex.count(r"\begin{tabular}{lrrr}") == latex.count(r"\bottomrule") == 4
    assert f"{gap.value:+.1f} [{low}, {high}]".replace("-", "$-$") in latex
    assert "$<$0.001*" in latex
    on_val = shown(capsys, "far", "trial-0002", "trial-0003", "--split", "val")
    assert "trials were chosen by these images: optimistic" in " ".join(on_val.split())


def test_numbers_on_all_images_are_those_on_record(sweeps):
    found = compare_trials(sweeps["far"], ["trial-0002", "trial-0003"])
    record = sweeps["far"].trial("trial-0002").results["test"]
    assert found.results["trial-0002"].datasets == record.datasets
    assert found.results["trial-0002"].average == pytest.approx(record.average)


def test_trials_that_skipped_images_are_compared_on_those_of_whole_blocks(sweeps, capsys):
    far = sweeps["far"]
    file = far.artifacts("trial-0003") / "test" / BLOCK_STATS_FILE
    table = read_sums(far.artifacts("trial-0003"), "test")
    first = table["digits", 0]
    file.write_bytes(to_bytes({**table, ("digits", 0): first.take(np.arange(len(first)) != 5)}))
    found = compare_trials(far, ["trial-0002", "trial-0003"])
    assert found.evidence.images == {"digits": 5 * 8, "scenes": 1000}
    assert "images that all have seen: 40 of digits, 1000 of scenes" in shown(capsys, "far", "trial-0002", "trial-0003")


def test_a_metric_that_does_not_follow_from_sums_has_values_and_no_test(sweeps, capsys):
    far = sweeps["far"]
    far.write_info(replace(far.info(), objectives=(Objective(metric="aurc", goal="min"),)))
    for name in ("trial-0002", "trial-0003"):
        record = far.trial(name)
        result = record.results["test"]
        datasets = {dataset: {**numbers, "aurc": 0.25} for dataset, numbers in result.datasets.items()}
        far.write_trial(replace(record, results={**record.results, "test": replace(result, datasets=datasets)}))
    text = shown(capsys, "far", "trial-0002", "trial-0003")
    assert re.search(r"\n  trial-0003 +0\.2500 +0\.2500 +0\.2500\n", text)
    assert "aurc: no paired test\n  it does not follow from sums over images\n" in text


def naive_holm(ps):
    """As it is taught: the i-th smallest of m times m - i + 1, none below the one before it."""
    order = np.argsort(ps)
    scaled = [(len(ps) - rank) * ps[index] for rank, index in enumerate(order)]
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return corrected.tolist()


def test_holm_equals_its_definition():
    for count in (0, 1, 2, 7, 40):
        ps = np.random.default_rng(count).random(count).round(2).tolist()
        assert holm(ps) == pytest.approx(naive_holm(ps))


def test_of_equal_trials_hardly_any_is_told_apart():
    """In 200 splits with four trials that differ by chance alone, at least one of six tests is below 0.05 in few."""
    false = 0
    for split in range(200):
        generator = np.random.default_rng(split)
        hard, count = generator.random(500), 500
        ids = [f"image {index}" for index in range(count)]
        trials = [[_of(ids, hard + 0.2 * generator.standard_normal(count) < 0.6)] for _ in range(4)]
        found = drawn("digits", "val", trials, ["accuracy"])["accuracy"]
        false += min(holm([found.difference(*pair).p for pair in combinations(range(4), 2)])) < 0.05
    assert false <= 16


def _of(ids, right):
    from fpp_sweep.core.metrics import Confidences

    sure, ones = np.full(len(ids), 0.6, np.float32), np.ones(len(ids))
    return BlockStats.of("digits", ids, Confidences(sure, right), ones, ones)


# ------------------------------------------------------------ what cannot be done


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["far", "pets"], "nothing to compare: pets shares no image of val with far; give sweeps on the same images"),
        (["far"], "far alone: give another sweep, or two or more of its trials and baselines"),
        (["far", "trial-0002"], "trial-0002 alone: give two or more trials or baselines, or another sweep"),
        (["far", TPT, f"baseline-{TPT}"], f"{TPT} alone: give two or more"),
        (["far", "trial-0002", "trial-0009"], "unknown trial of far 'trial-0009', did you mean 'trial-000"),
        (["far", "trial-0002", "trial-0007"], "trial-0007 is failed: only what is complete is compared"),
        (["far", "better", "trial-0002"], "unknown sweep 'trial-0002'"),
        (["nowhere", "far"], "unknown sweep 'nowhere'"),
        (["far", "."], ". is not a sweep's folder (it has no sweep.json)"),
        (["far", "far"], "far is given twice"),
        (["far", "none"], "none has no finished trial with sums of its predictions on val"),
        (["far", "better", "--target", "5"], "--target: give a value of each of accuracy (max) and ece (min), got [5."),
        (["far", "better", "--target", "70", "nan"], "--target: give a value of each of accuracy (max) and ece (min)"),
        (["far", "better", "--target", "x"], "argument --target: invalid float value: 'x'"),
        (["few", "trial-0001", "trial-0002", "--split", "test"], "--split: not all were run on test; all were on val"),
        (
            ["bare", "trial-0001", "trial-0002"],
            "trial-0001 has no sums of its predictions on val: nothing can be paired",
        ),
        (["far", "bare"], "nothing to compare: bare has no sums of predictions on val"),
        (["far", "damaged"], "sweeps/damaged/sweep.json: not readable as a record of a sweep"),
    ],
)
def test_what_cannot_be_compared_is_one_line(sweeps, capsys, words, complaint):
    root = sweeps["far"].path.parent
    sweeps["far"].write_trial(failed(7))
    write(SweepFolder(root / "none"), World(1000), {PLAIN: (0.6, 0.2)})
    bare = write(SweepFolder(root / "bare"), World(1000), BETTER)
    for file in bare.path.glob("artifacts/*/val/*"):
        file.unlink()
    write(SweepFolder(root / "damaged"), World(100), BETTER).info_file.write_text("{")
    with pytest.raises(SystemExit) as ended:
        run(lambda: compare.main(words))
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert complaint in captured.err
    assert not (root.parent / "comparisons").exists()


def test_a_baseline_is_one_where_a_folder_has_its_name(capsys, sweeps, tmp_path):
    (tmp_path / TPT).mkdir()
    assert f"trial-0002 less {TPT}" in shown(capsys, "far", "trial-0002", TPT)


def test_two_sweeps_with_one_name_are_told_apart_by_their_folders(capsys, sweeps, tmp_path):
    write(SweepFolder(tmp_path / "elsewhere" / "far"), World(1000), BETTER)
    text = shown(capsys, "far", "elsewhere/far")
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


def test_parts_without_a_table():
    parts = [Part(title="a_b", lines=["50 %"])]
    assert as_text(parts) == "\na_b\n  50 %"
    assert as_markdown("t", parts) == "# t\n\n## a_b\n\n- 50 %\n"
    assert as_latex(parts).splitlines()[1] == "% A_b. 50 %."
