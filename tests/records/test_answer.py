"""The answer of a sweep, read from its folder."""

import re
import shutil
from dataclasses import replace

import pytest

from fpp_sweep.records.answer import sentence_of, statistics_of
from fpp_sweep.records.measurements import read_block_stats
from fpp_sweep.records.records import FINAL
from fpp_sweep.space.objectives import Objective
from fpp_sweep.statistics.paired import adjust_p_values
from tests.kit.measured import SEARCH_SEED, World, write_block_stats, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import ACCURACY, ECE

BETTER = {ZERO_SHOT: (0.60, 0.15), TPT: (0.60, 0.25), "trial-0002": (0.64, 0.05), "trial-0003": (0.55, 0.3)}
EQUAL = {ZERO_SHOT: (0.60, 0.15), TPT: (0.601, 0.15), "trial-0002": (0.602, 0.15), "trial-0003": (0.599, 0.15)}


def write_sweep_of(tmp_path, sides, splits=("val", FINAL, "test"), images=1000, seeds=(0, 1, 2), **changes):
    changes = {"is_search_apart": True, **changes}
    return write_measured_sweep(tmp_path / "sweep", World(images, seed=3), sides, splits, seeds=seeds, **changes)


def read_statistics(folder):
    return statistics_of(folder, folder.info(), folder.trials())


def test_a_trial_that_beats_both_references_without_a_loss_is_to_be_used(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER)
    statistics = read_statistics(folder)
    answer = statistics.answer
    assert (answer.recommended, answer.best_baseline, answer.split) == ("trial-0002", None, "test")
    assert answer.references == (f"baseline-{ZERO_SHOT}", f"baseline-{TPT}")
    assert answer.differences[f"baseline-{ZERO_SHOT}", "accuracy"].mark == "+"
    sentence = sentence_of(statistics)
    assert sentence.startswith("Use trial-0002 (gamma2 ")
    for gain in ("points less ece than tpt from words", "points more accuracy than zero_shot"):
        assert gain in sentence
    assert sentence.endswith(", on 3 seeds and 2 x 1000 test images.")


def test_an_objective_without_a_shown_gain_is_equal_within_its_interval(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.15), TPT: (0.60, 0.25), "trial-0002": (0.602, 0.05)}
    statistics = read_statistics(write_sweep_of(tmp_path, sides))
    paired = statistics.answer.differences[f"baseline-{TPT}", "accuracy"]
    bound = max(abs(paired.low), abs(paired.high))
    assert f"accuracy equal within {bound:.1f} (95 %)" in sentence_of(statistics)


def test_a_trial_that_equals_zero_shot_is_not_recommended_for_beating_its_method_from_words(tmp_path):
    """Adaptation of words costs calibration, which each trial without an effect then gains."""
    sides = {ZERO_SHOT: (0.60, 0.05), TPT: (0.60, 0.25), "trial-0002": (0.60, 0.05)}
    answer = read_statistics(write_sweep_of(tmp_path, sides)).answer
    assert answer.differences[f"baseline-{TPT}", "ece"].mark == "+"
    assert (answer.recommended, answer.best_baseline) == (None, f"baseline-{ZERO_SHOT}")


def test_a_trial_that_its_method_from_words_equals_is_not_recommended(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.15), TPT: (0.64, 0.05), "trial-0002": (0.64, 0.05)}
    answer = read_statistics(write_sweep_of(tmp_path, sides)).answer
    assert (answer.recommended, answer.best_baseline) == (None, f"baseline-{TPT}")  # which passes the same rule
    assert answer.reason.endswith("in the final stage, is not shown to be better than tpt from words")


def test_a_baseline_that_loses_calibration_is_not_the_one_to_use_however_accurate_it_is(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.05), TPT: (0.66, 0.25), "trial-0002": (0.60, 0.05)}
    assert read_statistics(write_sweep_of(tmp_path, sides)).answer.best_baseline == f"baseline-{ZERO_SHOT}"


def test_without_a_shown_gain_the_sentence_says_what_was_measured_and_what_could_be_shown(tmp_path):
    statistics = read_statistics(write_sweep_of(tmp_path, EQUAL))
    assert statistics.answer.best_baseline == f"baseline-{ZERO_SHOT}"
    sentence = sentence_of(statistics)
    assert sentence.startswith(
        "Use zero_shot: the champion trial-0002, chosen by its gain in the final stage, is not shown to be better"
    )
    assert re.search(r"trial-0002 has [\d.]+ ± [\d.]+ points (more|less) (accuracy|ece) than ", sentence)
    assert re.search(r"this sweep could show [\d.]+ \(80 % power\)", sentence)
    assert not [difference for difference in statistics.answer.differences.values() if difference.mark]


def with_limit(folder, limit, **changes):
    """Write that a sweep used so many images of larger datasets."""
    space = folder.info().space
    work = {**space["work"], "limit": limit}
    folder.write_info(replace(folder.info(), space={**space, "work": work}, **changes))
    return folder


def test_the_answer_ends_in_the_command_that_could_show_a_smaller_difference(tmp_path):
    folder = with_limit(write_sweep_of(tmp_path, EQUAL), 1000, spent=120.0)
    sentence = sentence_of(read_statistics(folder))
    could, would = re.search(r"could show ([\d.]+) .* To show ([\d.]+): ", sentence).groups()
    assert float(would) < 0.8 * float(could)
    assert "`fpp-sweep tune --resume sweep --set search.finalists.images=4000" in sentence
    assert re.search(r"`, about \d+ minutes?\.$", sentence)


def test_seeds_are_added_where_they_matter_more_than_images(tmp_path):
    shifts = {"trial-0002": (-0.05, 0.0, 0.05)}
    sides = {name: side for name, side in EQUAL.items() if name != "trial-0003"}
    folder = write_sweep_of(tmp_path, sides, shifts=shifts)
    assert "--set search.finalists.seeds=6`" in sentence_of(read_statistics(folder))  # the datasets have no more images
    assert "images=4000 search.finalists.seeds=6`" in sentence_of(read_statistics(with_limit(folder, 1000)))


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"state": "interrupted"}, "To go on: `fpp-sweep tune --resume sweep`."),
        ({"state": "interrupted", "address": "auto"}, "To go on: `fpp-sweep tune --resume sweep --address auto`."),
        ({"space": {"search": {"finalists": {"seeds": 1}}}}, "--set search.finalists.seeds=3`."),
    ],
)
def test_what_keeps_a_trial_from_being_judged_is_put_right_by_the_command(tmp_path, changes, command):
    folder = write_sweep_of(tmp_path, EQUAL)
    folder.write_info(replace(folder.info(), **changes))
    assert sentence_of(read_statistics(folder)).endswith(command)


def test_a_running_sweep_and_a_recommended_trial_need_no_command(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER)
    assert "`" not in sentence_of(read_statistics(folder))
    folder.write_info(replace(folder.info(), state="running"))
    assert "`" not in sentence_of(read_statistics(folder))


def test_the_families_are_the_differences_to_each_reference_and_all_others(tmp_path):
    sides = {**BETTER, "fpp_paper": (0.638, 0.051), "fpp_code": (0.641, 0.049)}
    differences = read_statistics(write_sweep_of(tmp_path, sides)).answer.differences
    families = {}
    for (baseline, _), paired in differences.items():
        is_reference = baseline in (f"baseline-{ZERO_SHOT}", f"baseline-{TPT}")
        families.setdefault(baseline if is_reference else "others", []).append(paired)
    assert [len(family) for family in families.values()] == [2, 2, 4]
    for family in families.values():
        assert family == adjust_p_values(family)


def test_before_finalists_run_there_is_no_answer_and_no_promise_of_a_final_stage(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER, ("val",), seeds=(0,))
    folder.write_info(replace(folder.info(), state="running", space={"search": {"finalists": {"seeds": 1}}}))
    statistics = read_statistics(folder)
    assert statistics.answer.recommended is None
    assert sentence_of(statistics).startswith("Use zero_shot: no trial has been judged yet")


def test_without_a_trial_that_keeps_the_constraints_a_baseline_is_named(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER)
    for record in folder.trials():
        if record.kind == "trial":
            folder.write_trial(replace(record, constraints={"ece": 1.0}))
    assert sentence_of(read_statistics(folder)).startswith("Use zero_shot: no trial keeps all constraints. ")
    for record in folder.trials():
        if record.kind == "trial":
            folder.write_trial(replace(record, state="failed", values=None, results={}))
    assert sentence_of(read_statistics(folder)).startswith("Use zero_shot: no trial is complete. ")


def test_nothing_is_recommended_if_seeds_may_matter_and_each_trial_has_one(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER, ("val", "test"), seeds=(0,))
    answer = read_statistics(folder).answer
    assert answer.best_baseline is not None
    assert answer.reason == "trial-0002 ran with too few seeds: one may be a lucky one"
    for record in folder.trials():  # prompts of words have no seed
        folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    assert read_statistics(folder).answer.recommended == "trial-0002"


def test_intervals_of_the_search_have_the_variance_of_seeds_from_the_final_stage(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER, ("val",), seeds=(0,))
    narrow = read_statistics(folder).interval(folder.trial("trial-0002"), "val", "accuracy")
    world = World(1000, seed=3)
    shifts = {"trial-0002": (-2.0, 0.0, 2.0)}
    final = write_measured_sweep(tmp_path / "final", world, BETTER, (FINAL,), seeds=(1, 2, 3), shifts=shifts)
    add_results_on_final(folder, final)
    wide = read_statistics(folder).interval(folder.trial("trial-0002"), "val", "accuracy")
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize(
    ("splits", "judged_on"), [(("val",), "val"), (("val", FINAL), FINAL), (("val", FINAL, "test"), "test")]
)
def test_finalists_are_judged_on_the_latest_stage(tmp_path, splits, judged_on):
    assert read_statistics(write_sweep_of(tmp_path, BETTER, splits)).answer.split == judged_on


@pytest.mark.parametrize(("search_split", "later"), [("val", FINAL), ("test", FINAL), ("val", "test")])
def test_a_trial_is_recommended_only_on_images_that_did_not_choose_it(tmp_path, search_split, later):
    """The best of many trials is lucky with the images of the search, which the test split may have, too."""
    folder = write_sweep_of(tmp_path, BETTER, (search_split, later), search_split=search_split, is_search_apart=False)
    answer = read_statistics(folder).answer
    assert answer.split == later
    assert answer.best_baseline is not None
    assert answer.reason == "trial-0002 was chosen by these images, so a gain may be luck with them"
    if later == "test":
        return
    fresh = World(1000, seed=4, prefix="fresh")
    final = write_measured_sweep(tmp_path / "final", fresh, BETTER, (FINAL,), seeds=(3, 4, 5))
    add_results_on_final(folder, final)
    assert read_statistics(folder).answer.recommended == "trial-0002"
    shutil.rmtree(folder.artifacts("trial-0002") / FINAL)
    shutil.rmtree(folder.artifacts("trial-0003") / FINAL)
    answer = read_statistics(folder).answer
    assert answer.split == search_split
    assert answer.best_baseline is not None


def add_results_on_final(folder, source):
    """Replace the results of the final stage by those of another folder with the same trials."""
    for record in source.trials():
        ours = folder.trial(record.name)
        folder.write_trial(replace(ours, results={**ours.results, FINAL: record.results[FINAL]}))
        shutil.rmtree(folder.artifacts(record.name) / FINAL, ignore_errors=True)
        shutil.copytree(source.artifacts(record.name) / FINAL, folder.artifacts(record.name) / FINAL)


def test_nothing_is_recommended_if_the_images_of_the_search_are_unknown(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER, ("val", "test"))
    for record in folder.trials():
        shutil.rmtree(folder.artifacts(record.name) / "val")
    answer = read_statistics(folder).answer
    assert answer.best_baseline is not None
    assert answer.reason == "trial-0002 was chosen on images of val that have no block statistics"


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_no_trial_is_recommended_before_the_sweep_has_finished(tmp_path, state):
    folder = write_sweep_of(tmp_path, BETTER, ("val", FINAL))
    folder.write_info(replace(folder.info(), state=state))
    answer = read_statistics(folder).answer
    assert (answer.split, answer.reason) == (FINAL, "the sweep has not finished")
    assert answer.best_baseline is not None
    assert answer.differences


def test_finalists_and_baselines_must_keep_the_constraints_on_the_images_they_are_judged_by(tmp_path):
    """Here all trials keep the constraints of the search: on its images, by luck."""
    folder = write_sweep_of(tmp_path, BETTER)
    assert read_statistics(folder).answer.recommended == "trial-0002"
    for constraint in (
        {"name": "c", "metric": "ece", "at_most": 1.0},
        {"name": "c", "metric": "accuracy", "at_least": 20.0, "baseline": "zero_shot"},
        {"name": "c", "metric": "ece/digits", "at_most": 1.0},
    ):
        folder.write_info(replace(folder.info(), space={"constraints": [constraint]}))
        answer = read_statistics(folder).answer
        assert (answer.recommended, answer.reason) == (None, "trial-0002 breaks a constraint on the test images")
    accuracy = folder.trial("baseline-tpt").results["test"].average["ece"]
    folder.write_info(
        replace(folder.info(), space={"constraints": [{"name": "c", "metric": "ece", "at_least": accuracy}]})
    )
    answer = read_statistics(folder).answer
    assert (answer.recommended, answer.best_baseline) == (None, "baseline-tpt")


@pytest.mark.parametrize(
    "constraint",
    [
        {"name": "c", "metric": "ece", "at_most": 50.0},
        {"name": "c", "metric": "seconds", "at_most": 135.0},
        {"name": "c", "metric": "nll@other", "at_most": 0.0},  # not measured
        {"name": "c", "metric": "ece", "at_most": 0.0, "baseline": "otpt"},  # a baseline that did not run
    ],
)
def test_constraints_that_hold_or_cannot_be_judged_prevent_no_recommendation(tmp_path, constraint):
    folder = write_sweep_of(tmp_path, BETTER)
    folder.write_info(replace(folder.info(), space={"constraints": [constraint]}))
    assert read_statistics(folder).answer.recommended == "trial-0002"


def test_costs_are_constrained_as_the_search_has_measured_them(tmp_path):
    """Later stages have more seeds and images; the search judges trials, and nothing else judges baselines."""
    folder = write_sweep_of(tmp_path, EQUAL)
    constraint = {"name": "c", "metric": "seconds", "at_most": 135.0}
    folder.write_info(replace(folder.info(), space={"constraints": [constraint]}))
    for record in folder.trials():
        slow = replace(record.results["test"], costs={"a": {"adapt": 1e9}})
        folder.write_trial(replace(record, results={**record.results, "test": slow}))
    assert read_statistics(folder).answer.best_baseline == "baseline-zero_shot"
    zero_shot = folder.trial("baseline-zero_shot")
    slow = replace(zero_shot.results["val"], costs={"a": {"adapt": 46.0}})
    folder.write_trial(replace(zero_shot, results={**zero_shot.results, "val": slow}))
    assert read_statistics(folder).answer.best_baseline == "baseline-tpt"


def test_no_trial_is_recommended_on_the_seeds_that_chose_it(tmp_path):
    """With `search.finalists.seeds: 1` the front runs on the test split with the seeds of the search."""
    folder = write_sweep_of(tmp_path, BETTER, ("val", "test"))
    assert read_statistics(folder).answer.recommended == "trial-0002"
    for record in folder.trials():
        table = read_block_stats(folder.artifacts(record.name), "val")
        with_same_seeds = {(dataset, seed - SEARCH_SEED): stats for (dataset, seed), stats in table.items()}
        write_block_stats(folder, record.name, "val", with_same_seeds)
        same_seeds = replace(record.results["val"], by_seed=record.results["test"].by_seed)
        folder.write_trial(replace(record, results={**record.results, "val": same_seeds}))
    answer = read_statistics(folder).answer
    assert answer.best_baseline is not None
    assert answer.reason == "trial-0002 was chosen by these seeds, so a gain may be luck with them"
    for record in folder.trials():  # seeds that draw views only are others on other images
        folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    assert read_statistics(folder).answer.recommended == "trial-0002"


@pytest.mark.parametrize("judged_split", ["test", FINAL])
def test_no_trial_is_recommended_while_a_baseline_that_may_be_better_has_no_results_there(tmp_path, judged_split):
    """The final stage runs zero-shot only; finalists are judged there if their jobs on the test split failed."""
    sides = {ZERO_SHOT: (0.60, 0.10), TPT: (0.75, 0.02), "trial-0002": (0.66, 0.05)}
    folder = write_sweep_of(tmp_path, sides)
    for record in folder.trials():
        results = dict(record.results)
        if judged_split == FINAL and record.kind == "trial":
            del results["test"]
        if record.label == TPT:
            del results[judged_split]
        folder.write_trial(replace(record, results=results))
    answer = read_statistics(folder).answer
    assert answer.split == judged_split
    assert answer.recommended is None
    assert answer.reason == f"tpt has no usable results on the {judged_split} images"


def test_a_trial_whose_seeds_collapse_is_not_the_champion(tmp_path):
    """Its mean is the best, but its seeds in the final stage differ."""
    sides = {ZERO_SHOT: (0.60, 0.20), TPT: (0.60, 0.19), "trial-0002": (0.66, 0.05), "trial-0004": (0.70, 0.04)}
    folder = write_sweep_of(tmp_path, sides, shifts={"trial-0004": (-0.30, 0.0, 0.30)})
    answer = read_statistics(folder).answer
    assert answer.champion == "trial-0002"


def answer_by_ece(folder):
    """Return the answer of a sweep whose only objective is the ECE."""
    for record in folder.trials():
        folder.write_trial(replace(record, values=[record.results["val"].average["ece"]]))
    return read_statistics(folder).answer


def test_the_floor_of_accuracy_holds_on_the_images_that_decide(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.20), TPT: (0.60, 0.19), "trial-0002": (0.58, 0.05)}
    folder = write_sweep_of(tmp_path, sides, objectives=(ECE,))
    record = folder.trial("trial-0002")
    test = record.results["test"]
    fallen = replace(test, average=test.average | {"accuracy": 31.0})
    folder.write_trial(replace(record, results=record.results | {"test": fallen}))
    assert answer_by_ece(folder).reason == "trial-0002 breaks a constraint on the test images"


def test_no_trial_is_recommended_if_zero_shot_failed(tmp_path):
    """A trial that is better than TPT may be much worse than zero-shot."""
    sides = {ZERO_SHOT: (0.66, 0.02), TPT: (0.60, 0.25), "trial-0002": (0.62, 0.12), "trial-0003": (0.55, 0.3)}
    folder = write_sweep_of(tmp_path, sides)
    space = folder.info().space
    work = {**space["work"], "baselines": ["zero_shot", "tpt"]}
    folder.write_info(replace(folder.info(), space={**space, "work": work}))
    zero_shot = folder.trial("baseline-zero_shot")
    folder.write_trial(replace(zero_shot, state="failed", values=None, results={}, reason="the disk"))
    answer = read_statistics(folder).answer
    assert answer.best_baseline is not None
    assert answer.reason == "zero_shot has no usable results on the test images"


def test_a_metric_without_a_test_is_the_reason(tmp_path):
    """Few images do not tell two calibrated models apart, though their accuracies differ."""
    sides = {ZERO_SHOT: (0.60, 0.0), TPT: (0.60, 0.1), "trial-0002": (0.70, 0.0)}
    answer = read_statistics(write_sweep_of(tmp_path, sides, images=200)).answer
    assert answer.reason.startswith("no difference in ece can be tested (too near to ")


def test_an_objective_of_a_dataset_without_images_has_no_test(tmp_path):
    objectives = (ACCURACY, Objective(metric="ece/pets"))
    answer = read_statistics(write_sweep_of(tmp_path, BETTER, objectives=objectives)).answer
    assert answer.reason == "no difference in ece/pets can be tested (no block statistics of these images)"


def test_the_search_split_is_judged_only_if_a_member_of_the_front_has_statistics(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER, ("val",))
    shutil.rmtree(folder.artifacts("trial-0002"))
    answer = read_statistics(folder).answer
    assert (answer.split, answer.reason) == ("", "the trials have no usable block statistics")


def test_an_answer_from_one_seed_states_that(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER, ("val", "test"), seeds=(0,))
    assert "on one seed and 2 x 1000 test images" in sentence_of(read_statistics(folder))


def test_without_baselines_nothing_is_recommended(tmp_path):
    folder = write_sweep_of(tmp_path, {"trial-0002": (0.64, 0.05), "trial-0003": (0.6, 0.04)})
    assert sentence_of(read_statistics(folder)).startswith(
        "Nothing can be recommended: there are no baselines to compare with"
    )


def test_without_zero_shot_the_first_baseline_is_the_reference(tmp_path):
    sides = {name: side for name, side in BETTER.items() if name != ZERO_SHOT}
    folder = write_sweep_of(tmp_path, sides)
    answer = read_statistics(folder).answer
    assert (answer.references, answer.recommended) == ((f"baseline-{TPT}",), "trial-0002")


def test_few_images_are_not_tested_and_the_answer_keeps_finalists_images_and_the_best_baseline(tmp_path):
    statistics = read_statistics(write_sweep_of(tmp_path, BETTER, images=20))
    answer = statistics.answer
    assert sentence_of(statistics).startswith(
        "Use zero_shot: no difference in accuracy can be tested (fewer than 30 images) "
        "(on 3 seeds and 2 x 20 test images). "
    )
    assert (answer.split, answer.images) == ("test", {"digits": 20, "scenes": 20})
    assert answer.champion == "trial-0002"
    assert not answer.differences


@pytest.mark.parametrize("splits", [("val",), ("val", FINAL), ("val", "test")])
def test_missing_block_statistics_are_not_taken_for_finalists_that_have_not_run(tmp_path, splits):
    folder = write_sweep_of(tmp_path, BETTER, splits)
    shutil.rmtree(folder.path / "artifacts")
    statistics = read_statistics(folder)
    assert statistics.answer.best_baseline is not None
    assert sentence_of(statistics).startswith("Use zero_shot: the trials have no usable block statistics. ")
    folder.write_info(replace(folder.info(), state="interrupted"))
    has_not_run = "no trial has been judged yet" in sentence_of(read_statistics(folder))
    assert has_not_run == (splits == ("val",))


def test_a_sweep_that_only_evaluates_recommends_nothing(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER)
    folder.write_info(replace(folder.info(), space={"search": {"evaluate_only": True}}))
    answer = read_statistics(folder).answer
    assert (answer.recommended, answer.champion, dict(answer.differences)) == (None, "", {})


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damaged_block_statistics_are_ignored_and_reported(tmp_path, damage):
    folder = write_sweep_of(tmp_path, BETTER)
    file = folder.artifacts("trial-0003") / "test" / "block_stats.npz"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        file.unlink()
    statistics = read_statistics(folder)
    assert statistics.answer.champion == "trial-0002"
    if damage == "cut":
        (line,) = statistics.notes
        assert line.startswith("trial-0003: block statistics of split test are ignored: ")


def test_an_objective_that_cannot_be_resampled_is_named(tmp_path):
    folder = write_sweep_of(tmp_path, BETTER)
    first, second = folder.info().objectives
    folder.write_info(replace(folder.info(), objectives=(first, replace(second, metric="mce"))))
    answer = read_statistics(folder).answer
    assert (answer.metrics, answer.untested) == (("accuracy",), ("mce",))
    assert "not tested: mce, on 3 seeds" in sentence_of(read_statistics(folder))
    folder.write_info(replace(folder.info(), objectives=(first, replace(second, metric="brier_calibration"))))
    assert read_statistics(folder).answer.untested == ("brier_calibration",)


def test_support_uses_the_final_stage_for_finalists(tmp_path):
    statistics = read_statistics(write_sweep_of(tmp_path, BETTER))
    assert statistics.support["trial-0002"] == "likely"
    assert statistics.support["trial-0003"] == "unlikely"
