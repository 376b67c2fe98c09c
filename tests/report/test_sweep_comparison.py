"""Comparisons of sweeps in parts: shared images, costs, settings, tests of the best trials, pictures and files."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.best_trials import best_trials_table, best_trials_verdict
from fpp_sweep.report.comparison import BestTrialsTest, ComparedSweep, compare_sweeps, identity_of
from fpp_sweep.report.comparison_files import LONGEST_NAME, _by_label, _default_folder, write_trial_comparison
from fpp_sweep.report.comparison_picture import _panel, comparison_figure
from fpp_sweep.report.comparison_view import _attainment_table, _cost_table, _settings_table, sweep_comparison_document
from fpp_sweep.report.document import document_to_text
from fpp_sweep.report.shared_images import LoadedSweep, MeasuredImages, shared_split
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.palette import BLUE, CROSS, GREY, MARKERS, PALETTE
from fpp_sweep.statistics.attainment import Attainment
from fpp_sweep.statistics.paired import Difference
from tests.kit.measured import DATASETS, FAR_APART, World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import CREATED, baseline, failed, split_result, sweep_info, trial

BETTER = {ZERO_SHOT: (0.6, 0.2), "trial-0001": (0.69, 0.05), "trial-0002": (0.74, 0.2)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write two sweeps on the same images, and a third one on a part of these."""
    root, world = tmp_path_factory.mktemp("sweeps"), World(400)
    return {
        "far": write_measured_sweep(root / "far", world, FAR_APART, ("val", "test")),
        "better": write_measured_sweep(root / "better", world, BETTER, ("val", "test")),
        "few": write_measured_sweep(root / "few", world, BETTER, limit=200),
    }


@pytest.fixture(scope="module")
def comparison(folders):
    return compare_sweeps({name: folders[name] for name in ("far", "better")})


def texts_of(table):
    return [[cell.text for cell in row.cells] for row in table.rows]


def with_info(comparison, *changes):
    """Return a comparison whose sweeps have records with these changes."""
    sweeps = []
    for sweep, fields in zip(comparison.sweeps, changes, strict=True):
        loaded = replace(sweep.loaded, info=replace(sweep.loaded.info, **fields))
        sweeps.append(replace(sweep, loaded=loaded))
    return replace(comparison, sweeps=sweeps)


# --- shared images ------------------------------------------------------------------------------------


def loaded(records, **info):
    return LoadedSweep("mine", SweepFolder(Path("mine")), sweep_info(**info), records)


def test_the_seconds_of_a_search_are_those_of_its_trials_until_a_time():
    lost = failed(1, seconds_without_result=7.0)
    elsewhere = trial(2, results={"test": split_result()}, seconds_without_result=3.0)
    running = trial(3, finished=None, results={}, values=None, state="running", seconds_without_result=100.0)
    sweep = loaded([baseline(ZERO_SHOT, 60, 9), trial(0), lost, elsewhere, running])
    ends = [CREATED + 50, CREATED + 65, CREATED + 170]
    assert [sweep.seconds_until(end) for end in ends] == [45, 52, 55]
    assert sweep.seconds_until(ends[0] - 1) == 0
    assert sweep.seconds_until(math.inf) == 155


def test_the_trials_of_a_search_are_those_that_ended_until_a_time():
    interrupted = trial(4, state="interrupted", values=None, results={})
    sweep = loaded([baseline(ZERO_SHOT, 60, 9), trial(0), failed(1), trial(2, finished=None), trial(3), interrupted])
    ends = [CREATED + 50, CREATED + 64, CREATED + 65, math.inf]
    assert [sweep.n_trials_until(end) for end in ends] == [1, 1, 2, 3]


def test_the_images_of_a_sweep_are_those_of_its_first_complete_record_with_statistics(folders, tmp_path):
    sweep = LoadedSweep.of("far", folders["far"])
    assert [record.state for record in sweep.complete] == ["complete"] * 4
    assert sweep.images("val").counts == dict.fromkeys(DATASETS, 400)
    assert sweep.images("final") is None
    incomplete = replace(sweep, records=[replace(record, state="failed") for record in sweep.records])
    assert (incomplete.complete, incomplete.images("val")) == ([], None)


def test_an_intersection_has_the_datasets_whose_images_are_shared():
    first = MeasuredImages.of(World(64, datasets=("a", "b", "c")).block_stats(0.6, 0.1))
    second = MeasuredImages.of(World(64, datasets=("a", "c", "d")).block_stats(0.6, 0.1))
    other = MeasuredImages.of(World(64, datasets=("c",), prefix="other").block_stats(0.6, 0.1))
    mixed = MeasuredImages({**second.datasets, "c": other.datasets["c"]})
    assert list(first.intersection(second).datasets) == ["a", "c"]
    assert list(first.intersection(mixed).datasets) == ["a"]  # other images under the same name


def test_most_sweeps_decide_the_split(folders, tmp_path):
    """Two sweeps share the test split, and one of them was searched on it; three share the validation split."""
    on_test = write_measured_sweep(tmp_path / "on_test", World(400), BETTER, ("test",), search_split="test")
    sweeps = [LoadedSweep.of(name, folders[name]) for name in ("far", "better", "few")]
    shared = shared_split(sweeps)
    assert (shared.split, list(shared.by_split), shared.excluded) == ("val", ["val"], [])  # `few` has no test split
    both = shared_split(sweeps[:2])
    assert (both.split, list(both.by_split)) == ("val", ["val", "test"])
    of_test = shared_split([*sweeps[:2], LoadedSweep.of("on_test", on_test)])
    assert (of_test.split, list(of_test.by_split), len(of_test.sweeps)) == ("test", ["test"], 3)
    three = shared_split([*sweeps, LoadedSweep.of("on_test", on_test)])
    assert three.split in ("val", "test")
    assert len(three.sweeps) == 3
    assert len(three.excluded) == 1
    assert three.excluded[0].endswith(": left out")


def test_sweeps_without_any_statistics_have_nothing_to_compare(tmp_path):
    sweeps = [LoadedSweep(name, SweepFolder(tmp_path / name), sweep_info(), [trial(0)]) for name in ("one", "other")]
    with pytest.raises(InputError, match=r"nothing to compare: one has no block statistics .* on val; other has no"):
        shared_split(sweeps)


# --- records and objectives ---------------------------------------------------------------------------


def test_records_are_the_same_if_their_settings_and_values_agree_to_six_digits():
    record = trial(1, 70.0, 5.0)
    near = replace(record, name="other", values=[70.0000001, 5.0])
    assert identity_of(near) == identity_of(record)
    for other in (
        replace(record, values=[70.000001, 5.0]),
        replace(record, key="another"),
        replace(record, kind="baseline"),
    ):
        assert identity_of(other) != identity_of(record)


def test_objectives_without_block_statistics_are_compared_without_a_test(folders, tmp_path):
    """Both sweeps have the same images, datasets and number of seeds."""
    goals = (Objective(metric="accuracy"), Objective(metric="sce"), Objective(metric="seconds"))
    world, sweeps = World(200), {}
    for name, seeds in (("one", (0,)), ("other", (1,)), ("more", (0, 1))):
        folder = write_measured_sweep(tmp_path / name, world, BETTER, seeds=seeds, reference=None)
        info = replace(folder.info(), objectives=goals, space={"work": {"seeds": list(seeds)}})
        folder.write_info(info)
        for record in folder.trials():
            result = record.results["val"]
            datasets = {dataset: {**numbers, "sce": 2.0} for dataset, numbers in result.datasets.items()}
            by_seed = {}
            for seed, numbers_of_seed in result.by_seed.items():
                by_seed[seed] = {dataset: {**numbers, "sce": 2.0} for dataset, numbers in numbers_of_seed.items()}
            result = replace(result, datasets=datasets, by_seed=by_seed)
            values = [record.values[0], 2.0, 45.0]
            folder.write_trial(replace(record, results={"val": result}, values=values))
        sweeps[name] = folder
    same = compare_sweeps({name: sweeps[name] for name in ("one", "other")})
    assert [objective.metric for objective in same.info.objectives] == ["accuracy", "sce", "seconds"]
    untested = [note for note in same.notes if "not tested" in note]
    assert untested == [
        "sce is not tested: it cannot be computed from block statistics",
        "seconds is not tested: it cannot be computed from block statistics",
    ]
    with_more = compare_sweeps({name: sweeps[name] for name in ("one", "more")})
    assert [objective.metric for objective in with_more.info.objectives] == ["accuracy", "sce"]
    assert "seconds cannot be compared: it depends on datasets and seeds that are not shared" in with_more.notes


def test_sweeps_without_a_comparable_objective_are_refused(folders, tmp_path):
    goal = (Objective(metric="ece/scenes", goal="min"),)
    world = World(200)
    whole = write_measured_sweep(tmp_path / "whole", world, BETTER, objectives=goal)
    digits = write_measured_sweep(tmp_path / "digits", World(200, datasets=("digits",)), BETTER, objectives=goal)
    with pytest.raises(InputError, match=r"^ece/scenes cannot be compared: scenes is not shared$"):
        compare_sweeps({"whole": whole, "digits": digits})


def test_trials_that_lack_the_images_are_left_out_and_counted(folders, tmp_path):
    folder = write_measured_sweep(tmp_path / "lossy", World(400), {**BETTER, "trial-0003": (0.5, 0.3)}, ("val",))
    for file in folder.artifacts("trial-0003").glob("val/*"):
        file.unlink()
    compared = compare_sweeps({"far": folders["far"], "lossy": folder})
    assert compared.notes == ["lossy: 1 trial without these images: left out"]
    assert "lossy/trial-0003" not in [record.name for record in compared.statistics.front.finished]
    (folder.artifacts("trial-0003") / "val").rmdir()
    for name in ("trial-0001", "trial-0002"):
        for file in folder.artifacts(name).glob("val/*"):
            file.unlink()
    with pytest.raises(InputError, match=r"^lossy has no finished trial with block statistics of its predictions on"):
        compare_sweeps({"far": folders["far"], "lossy": folder})


# --- the best trials ----------------------------------------------------------------------------------


def best_trials_test(first, second, metric, value, p, split="test", marks=("knee",)):
    difference = Difference(
        first=first, second=second, metric=metric, value=value, standard_error=1.0, degrees_of_freedom=60.0, p_value=p,
        adjusted_p=p,
    )  # fmt: skip
    return BestTrialsTest(marks, split, difference)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """Compare sweeps whose test split has other images and seeds than the search."""
    root, world = tmp_path_factory.mktemp("seeded"), World(400)
    options = {"seeds": (0, 1, 2), "is_search_apart": True}
    folders = {}
    for name, sides in (("far", FAR_APART), ("better", BETTER)):
        folders[name] = write_measured_sweep(root / name, world, sides, ("val", "test"), **options)
    return compare_sweeps(folders)


def test_the_verdict_names_the_better_trial_of_each_significant_test(seeded):
    tests = [
        best_trials_test("far/trial-0002", "better/trial-0002", "accuracy", 3.0, 0.01),
        best_trials_test("far/trial-0002", "better/trial-0002", "ece", 3.0, 0.01),
        best_trials_test("far/trial-0003", "better/trial-0002", "accuracy", 3.0, 0.2),
    ]
    assert best_trials_verdict(replace(seeded, tests=tests)) == (
        "far/trial-0002 is better than better/trial-0002 in accuracy; "
        "better/trial-0002 is better than far/trial-0002 in ece."
    )
    assert best_trials_verdict(replace(seeded, tests=tests[2:])) == (
        "No difference between the sweeps' best trials is significant."
    )
    assert best_trials_verdict(replace(seeded, tests=[])) == (
        "No difference between the sweeps' best trials was tested."
    )


def test_differences_that_may_be_luck_are_counted_apart_from_the_verdicts(seeded):
    of_search = [
        best_trials_test("far/trial-0002", "better/trial-0002", metric, 3.0, 0.01, "val")
        for metric in ("accuracy", "ece")
    ]
    lucky = "2 significant differences, which may be luck: the trials were chosen by these val images."
    assert best_trials_verdict(replace(seeded, tests=of_search)) == f"No verdict on {lucky}"
    fresh = best_trials_test("far/trial-0002", "better/trial-0002", "accuracy", -3.0, 0.01)
    assert best_trials_verdict(replace(seeded, tests=[*of_search, fresh])) == (
        f"better/trial-0002 is better than far/trial-0002 in accuracy. No verdict on {lucky}"
    )


def test_seeds_of_the_search_may_be_luck_if_a_compared_trial_was_chosen_with_them(tmp_path):
    """The test split has other images than the search, and the same seeds; a prompt in words has no seed."""
    root, world = tmp_path, World(400)
    folders = {}
    for name, sides in (("far", FAR_APART), ("better", BETTER)):
        folders[name] = write_measured_sweep(root / name, world, sides, ("val",), seeds=(0, 1, 2))
        final = write_measured_sweep(
            root / f"{name}-test", World(400, seed=1, prefix="fresh"), sides, ("test",), seeds=(0, 1, 2)
        )
        for record in final.trials():
            searched = folders[name].trial(record.name)
            folders[name].write_trial(replace(searched, results={**searched.results, **record.results}))
            source = final.artifacts(record.name) / "test"
            source.rename(folders[name].artifacts(record.name) / "test")
    comparison = compare_sweeps(folders)
    pair = best_trials_test("far/trial-0002", "better/trial-0002", "accuracy", 3.0, 0.01)
    lucky = "No verdict on 1 significant difference, which may be luck: the trials were chosen with these seeds."
    assert best_trials_verdict(replace(comparison, tests=[pair])) == lucky
    for name in ("trial-0002",):
        for folder in folders.values():
            record = folder.trial(name)
            folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    comparison = compare_sweeps(folders)
    assert best_trials_verdict(replace(comparison, tests=[pair])) == (
        "far/trial-0002 is better than better/trial-0002 in accuracy."
    )


def test_the_table_of_the_best_trials_has_differences_with_intervals_and_p_values(seeded):
    tests = [
        best_trials_test("far/trial-0002", "better/trial-0002", "accuracy", 3.0, 0.01, marks=("best accuracy", "knee")),
        best_trials_test("far/trial-0002", "better/trial-0002", "ece", 0.5, 0.4, "val"),
    ]
    table = best_trials_table(replace(seeded, tests=tests))
    assert [column.title for column in table.columns] == [
        "best in", "first", "second", "on", "metric", "difference", "p"
    ]  # fmt: skip
    assert [column.is_text for column in table.columns] == [True] * 5 + [False] * 2
    first, second = texts_of(table)
    names = ["far/trial-0002", "better/trial-0002"]
    assert first == ["best accuracy, knee", *names, "test", "accuracy", "+3.0", "0.010"]
    assert second == ["knee", *names, "val", "ece", "+0.5", "0.400"]
    cell = table.rows[0].cells[5]
    assert (cell.mark, cell.style, cell.interval) == ("*", "good", "[+1.0, +5.0]")
    assert table.notes == [
        "first minus second; p two-sided, after Holm's correction over these 2 tests; * below 0.05",
        "on test paired over images and seeds",
        "on val paired over images and seeds",
        "on val they were chosen by these images: optimistic",
    ]
    (none,) = best_trials_table(replace(seeded, tests=[])).notes
    assert none.startswith("none: a test takes two different best trials")


def test_a_note_says_for_each_split_what_the_differences_are_paired_over(seeded):
    """A search has one seed, and the test split several; the note on one of them does not speak for the other."""
    searched = seeded.statistics.splits["val"]
    of_one_seed = {}
    for name, record in searched.samples.records.items():
        of_one_seed[name] = replace(record, seeds=record.seeds[:1])
    searched = replace(searched, samples=replace(searched.samples, records=of_one_seed))
    splits = {**seeded.statistics.splits, "val": searched}
    tests = []
    for split in ("val", "test"):
        tests.append(best_trials_test("far/trial-0002", "better/trial-0002", "ece", 0.5, 0.4, split))
    statistics = replace(seeded.statistics, splits=splits)
    _, on_test, on_val, _ = best_trials_table(replace(seeded, tests=tests, statistics=statistics)).notes
    assert on_test == "on test paired over images and seeds"
    assert on_val == "on val paired over images, of one seed each"


def test_best_trials_by_an_objective_on_one_dataset_are_tested_on_that_dataset(folders, tmp_path):
    """They are judged by the objectives that can be compared, which the notes name."""
    objectives = (Objective(metric="accuracy"), Objective(metric="ece/digits"), Objective(metric="ece/lost"))
    far = SweepFolder(shutil.copytree(folders["far"].path, tmp_path / "far"))
    far.write_info(replace(far.info(), objectives=objectives, reference=None))
    for record in far.trials():
        far.write_trial(replace(record, values=[*record.values, 1.0]))
    comparison = compare_sweeps({"far": far, "better": folders["better"]})
    assert {test.difference.metric for test in comparison.tests} == {"accuracy", "ece/digits"}
    assert comparison.notes[-2:] == [
        "ece/lost cannot be compared: lost is not shared",
        "better searched accuracy (max) and ece (min); all are judged by accuracy (max) and ece/digits (min)",
    ]


def test_only_members_that_hold_the_same_mark_are_tested_in_every_metric(comparison):
    pairs = {(test.difference.first, test.difference.second) for test in comparison.tests}
    assert pairs == {("far/trial-0002", "better/trial-0002"), ("far/trial-0002", "better/trial-0001")}
    by_pair = {}
    for test in comparison.tests:
        by_pair.setdefault(test.difference.second, []).append((test.difference.metric, test.marks, test.split))
    for tests in by_pair.values():
        assert [metric for metric, _, _ in tests] == ["accuracy", "ece"]
        assert {split for _, _, split in tests} == {"test"}
    marks = {name: set(tests[0][1]) for name, tests in by_pair.items()}
    assert marks["better/trial-0002"] | marks["better/trial-0001"] == {"best accuracy", "best ece", "knee"}
    assert not marks["better/trial-0002"] & marks["better/trial-0001"]


# --- attainment, cost and settings --------------------------------------------------------------------


def test_the_attainment_of_sweeps_is_shown_at_even_steps_without_the_ends(comparison):
    positions = np.linspace(60.0, 72.0, 13)
    attainments = []
    for shift in (0.0, 1.0):
        ece = np.linspace(3.0, 9.0, 13) + shift
        attainments.append(Attainment(positions=positions, best=ece - 0.5, median=ece, worst=ece + 0.5))
    sweeps = [replace(s, attainment=a) for s, a in zip(comparison.sweeps, attainments, strict=True)]
    table = _attainment_table(replace(comparison, sweeps=sweeps))
    assert [column.title for column in table.columns] == ["accuracy", "ece of far", "ece of better"]
    assert texts_of(table) == [
        ["62.00", "4.00", "5.00"],
        ["64.00", "5.00", "6.00"],
        ["66.00", "6.00", "7.00"],
        ["68.00", "7.00", "8.00"],
        ["70.00", "8.00", "9.00"],
    ]
    assert table.rows[0].cells[1].interval == "[3.50, 4.50]"
    assert table.notes == ["reached in half of the resamples [in 10 %, in 90 % of them] at that accuracy or better"]
    without = [sweeps[0], replace(sweeps[1], attainment=None)]
    assert len(_attainment_table(replace(comparison, sweeps=without)).columns) == 2
    neither = [replace(sweep, attainment=None) for sweep in sweeps]
    assert not _attainment_table(replace(comparison, sweeps=neither)).rows


def test_costs_are_shown_until_shares_of_the_hypervolume(comparison):
    _, best = comparison.statistics.front.hypervolume[-1]
    volumes = {"far": (0.5 * best, 0.5 * best), "better": (0.3 * best, 0.95 * best)}
    sweeps = []
    for sweep in comparison.sweeps:
        first, second = (trial.finished for trial in sweep.front.trials)
        steps = list(zip((first, second), volumes[sweep.label], strict=True))
        sweeps.append(replace(sweep, front=_front_with_hypervolume(sweep.front, steps)))
    table = _cost_table(replace(comparison, sweeps=sweeps), [])
    assert [column.title for column in table.columns] == [
        "sweep", "trials", "worker time", "hypervolume", "50%", "90%", "99%"
    ]  # fmt: skip
    assert [column.is_text for column in table.columns] == [True] + [False] * 6
    far, better = texts_of(table)
    assert far == ["far", "2", "1:30", f"{0.5 * best:.4g}", "45 s, 1 trial", "never", "never"]
    assert better == ["better", "2", "1:30", f"{0.95 * best:.4g}", "1:30, 2 trials", "1:30, 2 trials", "never"]
    assert table.notes[0] == (
        "worker time until that share of the union's hypervolume; by values as measured, on the shared images"
    )


def _front_with_hypervolume(front, steps):
    changed = replace(front)
    changed.__dict__["hypervolume"] = steps
    return changed


def test_costs_until_targets_are_those_of_the_first_trial_as_good_in_every_objective(comparison):
    table = _cost_table(comparison, [69.0, 10.0])
    assert [column.title for column in table.columns][4:] == ["accuracy 69.00, ece 10.00"]
    far, better = (row[4] for row in texts_of(table))
    values = {record.name: record.values for record in comparison.sweeps[1].front.trials}
    assert values["better/trial-0001"][1] < 10 < values["better/trial-0002"][1]
    reached = values["better/trial-0001"][0] >= 69.0
    assert better == ("45 s, 1 trial" if reached else "never")
    assert far in ("never", "45 s, 1 trial")
    assert table.notes[0].startswith("worker time until the first trial as good as that; ")


def test_without_a_hypervolume_a_note_asks_for_targets(comparison):
    nothing = replace(comparison.statistics, front=_front_with_hypervolume(comparison.statistics.front, []))
    sweeps = [replace(s, front=_front_with_hypervolume(s.front, [(t.finished, 0.0) for t in s.front.trials]))
              for s in comparison.sweeps]  # fmt: skip
    table = _cost_table(replace(comparison, statistics=nothing, sweeps=sweeps), [])
    assert [row[3:] for row in texts_of(table)] == [["0", "never", "never", "never"]] * 2
    note = "no trial is better in every objective than the hypervolume's reference point; give --target VALUES"
    assert note in table.notes
    assert note not in _cost_table(replace(comparison, statistics=nothing, sweeps=sweeps), [70.0, 5.0]).notes
    assert note not in _cost_table(comparison, []).notes


def test_notes_on_costs_name_other_devices_and_cached_results(comparison):
    work = comparison.sweeps[0].loaded.info.work
    same = with_info(comparison, {"device": "H100"}, {"device": "H100"})
    assert len(_cost_table(same, []).notes) == 1
    other = with_info(comparison, {"device": "H100", "work": replace(work, cached=1)}, {"device": "H200"})
    assert _cost_table(other, []).notes[1:] == [
        "cached results cost nothing: far",
        "the sweeps ran on different devices: their times are not comparable",
    ]


def test_settings_are_listed_if_any_sweep_has_another_value(comparison):
    spaces = (
        {"question": "a", "name": "a", "search": {"seed": 1, "trials": 8}, "prompt": "p" * 60, "work": {"limit": None}},
        {"question": "b", "name": "b", "search": {"seed": 2, "trials": 8}, "prompt": "q" * 60},
    )
    changed = with_info(
        comparison,
        {"space": spaces[0], "device": "H100", "git_commit": "abc", "model": "tiny"},
        {"space": spaces[1], "device": "H200", "git_commit": "abc", "model": "other"},
    )
    table = _settings_table(changed)
    assert [column.title for column in table.columns] == ["setting", "far", "better"]
    assert all(column.is_text for column in table.columns)
    rows = {row[0]: row[1:] for row in texts_of(table)}
    assert rows["search.seed"] == ["1", "2"]
    assert rows["device"] == ["H100", "H200"]
    assert rows["work.limit"] == ["none", "-"]
    assert {len(text) for text in rows["prompt"]} == {40}
    for key in ("question", "name", "search.trials", "git_commit", "model", "created"):
        assert key not in rows
    equal = with_info(comparison, {"space": spaces[0]}, {"space": spaces[0]})
    assert _settings_table(equal).notes == ["none"]
    assert _settings_table(changed).notes == []


def test_the_document_has_a_section_for_each_part_that_has_content(comparison):
    full = sweep_comparison_document(replace(comparison, notes=["left out"]), [])
    titles = [section.title for section in full.sections]
    front = f"Union front of far, better, by accuracy (max) and ece (min) on {comparison.info.search_split}"
    assert titles == [
        front, "Notes on what is compared", "The sweeps' best trials against each other", "Attainment", "Cost",
        "Settings that differ",
    ]  # fmt: skip
    assert "left out" in document_to_text(full)
    bare = [replace(sweep, attainment=None) for sweep in comparison.sweeps]
    document = sweep_comparison_document(replace(comparison, sweeps=bare, notes=[]), [])
    assert [section.title for section in document.sections] == [titles[0], titles[2], *titles[4:]]
    (table,) = [block for block in full.sections[0].blocks if hasattr(block, "columns")]
    assert "fpp.gamma2" not in [column.title for column in table.columns]  # the settings have another section


# --- pictures and files -------------------------------------------------------------------------------


def test_a_panel_has_the_trials_the_front_and_the_region_of_each_sweep_and_all_baselines_once(comparison):
    panel = _panel(comparison, (0, 1))
    looks = [(points.kind, points.label, points.color, points.marker) for points in panel.points]
    assert looks == [
        ("trials", "", PALETTE[0], MARKERS[0]),
        ("front", "far", PALETTE[0], MARKERS[0]),
        ("trials", "", PALETTE[1], MARKERS[0]),
        ("front", "better", PALETTE[1], MARKERS[1]),
        ("baseline", "baselines", GREY, CROSS),
    ]
    for points in panel.points:
        assert len(points.records) == len(points.xs) == len(points.ys) > 0
        assert list(points.xs) == [record.values[0] for record in points.records]
        assert list(points.ys) == [record.values[1] for record in points.records]
    assert {record.name for record in panel.points[2].records} == {"better/trial-0001", "better/trial-0002"}
    assert [staircase.color for staircase in panel.staircases] == list(PALETTE[:2])
    assert [region.color for region in panel.regions] == list(PALETTE[:2])
    assert (panel.x_title, panel.y_title, panel.pair) == ("accuracy  (better →)", "ece  (better ↓)", (0, 1))


def test_the_picture_has_panels_of_fronts_and_hypervolume_over_cost(comparison):
    picture = comparison_figure(comparison)
    assert picture.kind == "comparison"
    assert picture.caption == "far, better: trials, their fronts, and the fronts of 10 to 90 % of the resamples."
    canvas = Figure()
    picture.draw(canvas)
    assert tuple(canvas.get_size_inches()) == pytest.approx((10.4, 4.4))  # 5.2 inches for each panel
    fronts, costs = canvas.axes
    assert fronts.get_xlabel() == "accuracy  (better →)"
    assert (costs.get_xlabel(), costs.get_ylabel()) == ("worker seconds", "hypervolume")
    for line, sweep, color in zip(costs.lines, comparison.sweeps, PALETTE, strict=False):
        assert (list(line.get_xdata()), list(line.get_ydata())) == (list(sweep.seconds), sweep.volumes)
        assert to_hex(line.get_color()) == color.lower()
        assert line.get_drawstyle() == "steps-post"  # a trial counts from its end on
    assert len(costs.lines) == 2
    assert to_hex(costs.lines[0].get_color()) == BLUE.lower()


def test_more_sweeps_than_colors_are_drawn(comparison):
    first = comparison.sweeps[0]
    many = replace(comparison, sweeps=[first] * (len(PALETTE) + 1))
    colors = [points.color for points in _panel(many, (0, 1)).points if points.kind == "front"]
    assert colors == [*PALETTE, PALETTE[0]]
    assert isinstance(first, ComparedSweep)


def test_a_sweep_is_labelled_by_as_many_folders_as_tell_it_from_the_others(tmp_path):
    names = ["a/one", "b/one", "c/two"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    folders = [SweepFolder(tmp_path / name) for name in names]
    assert list(_by_label(folders)) == ["a/one", "b/one", "two"]
    assert list(_by_label(folders[1:])) == ["one", "two"]
    assert _by_label(folders)["b/one"].path == tmp_path / "b/one"
    with pytest.raises(InputError, match="is given twice"):
        _by_label([folders[0], folders[0]])


def test_the_folder_of_a_comparison_is_named_after_the_sweeps_up_to_a_length():
    assert str(_default_folder(["a/one", "two"])) == "comparisons/a_one-two"
    assert len(_default_folder(["x" * 200]).name) == LONGEST_NAME == 150


def test_a_shared_baseline_has_its_plain_name_and_another_one_that_of_its_sweep(folders, tmp_path):
    shared = write_measured_sweep(tmp_path / "twin", World(400), {**BETTER, TPT: (0.55, 0.1)})
    comparison = compare_sweeps({"far": folders["far"], "twin": shared})
    names = {record.name for sweep in comparison.sweeps for record in sweep.front.baselines}
    assert f"baseline-twin/{TPT}" in names
    assert f"baseline-{TPT}" in names


def test_members_with_different_marks_are_not_tested_against_each_other(folders):
    """In both sweeps trial-0002 is the most accurate one, and trial-0001 has the lowest ECE."""
    comparison = compare_sweeps({name: folders[name] for name in ("better", "few")})
    pairs = {(test.difference.first, test.difference.second) for test in comparison.tests}
    assert {("better/trial-0001", "few/trial-0001"), ("better/trial-0002", "few/trial-0002")} <= pairs
    for first, second in pairs:
        marks = [sweep.front.marks[name] for sweep, name in zip(comparison.sweeps, (first, second), strict=True)]
        assert set(marks[0]) & set(marks[1])
    assert len(pairs) < 4


def test_a_record_with_a_prompt_in_words_is_resampled_without_a_variance_of_seeds(folders, tmp_path):
    folder = write_measured_sweep(tmp_path / "words", World(400), BETTER)
    record = folder.trial("trial-0001")
    folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    comparison = compare_sweeps({"far": folders["far"], "words": folder})
    samples = comparison.statistics.splits["val"].samples.records
    is_deterministic = {name: samples[name].deterministic for name in ("words/trial-0001", "words/trial-0002")}
    assert is_deterministic == {"words/trial-0001": True, "words/trial-0002": False}


def test_numbers_after_a_posthoc_map_are_compared_without_a_test(tmp_path):
    goals = (Objective(metric="accuracy"), Objective(metric="ece@temperature_val"))
    folders = {}
    for name in ("one", "other"):
        folder = write_measured_sweep(tmp_path / name, World(200), BETTER, reference=None)
        folder.write_info(replace(folder.info(), objectives=goals))
        for record in folder.trials():
            result = record.results["val"]
            datasets = {dataset: {**row, "ece@temperature_val": 2.0} for dataset, row in result.datasets.items()}
            results = {"val": replace(result, datasets=datasets)}
            folder.write_trial(replace(record, results=results, values=[record.values[0], 2.0]))
        folders[name] = folder
    notes = compare_sweeps(folders).notes
    assert notes == ["ece@temperature_val is not tested: the statistics of maps are not compared"]


def test_numbers_on_shared_images_have_no_deviation_of_all_images(folders, tmp_path):
    folder = write_measured_sweep(tmp_path / "deviating", World(400), BETTER, seeds=(0, 1))
    for record in folder.trials():
        result = replace(record.results["val"], deviation={"accuracy": 0.5})
        folder.write_trial(replace(record, results={"val": result}))
    comparison = compare_sweeps({"far": folders["far"], "deviating": folder})
    for record in comparison.statistics.front.compared:
        assert record.results["val"].deviation == {}
        assert record.results["val"].by_seed == {}


def test_block_statistics_without_numbers_of_their_dataset_are_refused(folders, tmp_path):
    folder = write_measured_sweep(tmp_path / "lacking", World(400), BETTER)
    record = folder.trial("trial-0001")
    result = record.results["val"]
    folder.write_trial(
        replace(record, results={"val": replace(result, datasets={"digits": result.datasets["digits"]})})
    )
    with pytest.raises(InputError, match=r"^trial-0001: .*; run it again$"):
        compare_sweeps({"far": folders["far"], "lacking": folder})


def test_trials_are_compared_into_the_folder_that_is_given(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "there"
    text = write_trial_comparison(folders["far"].path, ["trial-0002", "trial-0003"], None, out)
    assert {path.name for path in out.iterdir()} == {"comparison.md", "comparison.tex"}
    assert text.endswith(f"\n\nMarkdown  {out}/comparison.md\nLaTeX     {out}/comparison.tex")
    write_trial_comparison(folders["far"].path, ["trial-0002", "trial-0003"], "val", None)
    assert (tmp_path / "comparisons" / "far-trial-0002-trial-0003" / "comparison.md").is_file()
    assert (out / "comparison.md").read_text().startswith("# far: trial-0002, trial-0003\n")
