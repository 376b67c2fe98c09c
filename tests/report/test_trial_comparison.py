"""Comparisons of trials in parts: records, split, families of tests, values and notes."""

from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.measurements import BLOCK_STATS_FILE, block_stats_file, read_block_stats
from fpp_sweep.records.records import FINAL
from fpp_sweep.report.document import document_to_text
from fpp_sweep.report.formatting import counts_text, format_bounds, format_interval, format_p_value
from fpp_sweep.report.trial_comparison import _shared_metrics, compare_trials
from fpp_sweep.report.trial_comparison_view import trial_comparison_document
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import to_bytes
from tests.kit.measured import FAR_APART, World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import ACCURACY, ECE, split_result, sweep_info

NAMES = ["trial-0002", TPT, "trial-0003"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_measured_sweep(tmp_path_factory.mktemp("sweeps") / "far", World(400), FAR_APART, ("val", "test"))


@pytest.fixture(scope="module")
def comparison(folder):
    return compare_trials(folder, NAMES)


@pytest.fixture
def own(tmp_path):
    """Write a sweep that a test may change."""
    return write_measured_sweep(tmp_path / "own", World(200), FAR_APART, ("val", "test"))


def title_of(metric):
    return catalogue.metric(metric).title


def tables_of(document):
    return {section.title: block for section in document.sections for block in section.blocks}


def texts_of(table):
    return [[cell.text for cell in row.cells] for row in table.rows]


def test_trials_come_before_baselines_and_each_once(folder, comparison):
    assert list(comparison.results) == ["trial-0002", "trial-0003", TPT]
    assert [record.name for record in comparison.trials] == ["trial-0002", "trial-0003"]
    twice = compare_trials(folder, [*NAMES, f"baseline-{TPT}", "trial-0002"])
    assert list(twice.results) == list(comparison.results)
    assert {key[:2] for key in comparison.differences} == {
        ("trial-0002", "trial-0003"), ("trial-0002", TPT), ("trial-0003", TPT)
    }  # fmt: skip


def test_the_split_is_test_if_all_were_run_there_or_the_one_that_is_given(folder, own):
    assert compare_trials(folder, NAMES).split == "test"
    assert compare_trials(folder, NAMES, "val").split == "val"
    record = own.trial("trial-0003")
    own.write_trial(replace(record, results={"val": record.results["val"]}))
    assert compare_trials(own, NAMES).split == "val"
    assert compare_trials(own, NAMES[:2]).split == "test"
    with pytest.raises(InputError, match="not all were run on test; all were on val"):
        compare_trials(own, NAMES, "test")


def test_values_may_be_luck_of_the_images_or_of_the_seeds_of_the_search(folder, own):
    assert compare_trials(folder, NAMES, "val").chosen_by == "images"
    # the test split of this sweep has the images of the search under another name
    assert compare_trials(folder, NAMES, "test").chosen_by == "images"
    own.write_info(replace(own.info(), space={"search": {"evaluate_only": True}}))
    assert compare_trials(own, NAMES, "val").chosen_by == ""


def test_seeds_of_the_search_are_luck_if_any_record_has_them(tmp_path):
    folder = write_measured_sweep(tmp_path / "mine", World(200), FAR_APART)
    fresh = write_measured_sweep(tmp_path / "fresh", World(200, seed=1, prefix="fresh"), FAR_APART, (FINAL,))
    for record in fresh.trials():
        searched = folder.trial(record.name)
        folder.write_trial(replace(searched, results={**searched.results, **record.results}))
        (fresh.artifacts(record.name) / FINAL).rename(folder.artifacts(record.name) / FINAL)
    assert compare_trials(folder, NAMES, FINAL).chosen_by == "seeds"
    notes = tables_of(trial_comparison_document("mine", compare_trials(folder, NAMES, FINAL)))
    assert (
        "trials were chosen by these seeds: optimistic" in notes[f"accuracy on {FINAL}: {title_of('accuracy')}"].notes
    )
    for name in ("trial-0002", "trial-0003"):
        record = folder.trial(name)
        folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    # the baseline's prompt is pretrained with seeds, too, but it was not chosen
    one_has_seeds = compare_trials(folder, NAMES, FINAL).chosen_by
    record = folder.trial(f"baseline-{TPT}")
    folder.write_trial(replace(record, config={**record.config, "prompt": "a photo of a"}))
    assert (one_has_seeds, compare_trials(folder, NAMES, FINAL).chosen_by) == ("seeds", "")


def test_a_record_that_lacks_a_seed_of_a_dataset_is_refused_by_its_name(tmp_path):
    folder = write_measured_sweep(tmp_path / "two", World(200), FAR_APART, seeds=(0, 1))
    table = dict(read_block_stats(folder.artifacts("trial-0003"), "val"))
    del table["digits", 1]
    (folder.artifacts("trial-0003") / "val" / BLOCK_STATS_FILE).write_bytes(to_bytes(table))
    line = "^trial-0003: its block statistics of val lack a seed of a dataset; run it again$"
    with pytest.raises(InputError, match=line):
        compare_trials(folder, ["trial-0002", "trial-0003"])


def test_differences_of_averages_and_of_datasets_are_corrected_in_two_families(comparison):
    sizes = {}
    for key, difference in comparison.differences.items():
        if key not in comparison.from_answer:
            sizes.setdefault("/" in key[2], set()).add(difference.family_size)
    assert sizes == {False: {6}, True: {12}}
    assert {key[2] for key in comparison.differences} == {
        f"{metric}{dataset}" for metric in ("accuracy", "ece") for dataset in ("", "/digits", "/scenes")
    }


def test_only_pairs_of_the_answer_on_the_same_images_have_its_verdict(folder, comparison):
    answer = statistics_of(folder, folder.info(), folder.trials()).answer
    assert answer.split == "test"
    assert comparison.from_answer == {("trial-0002", TPT, metric) for metric in ("accuracy", "ece")}
    for metric in ("accuracy", "ece"):
        of_answer = answer.difference("trial-0002", f"baseline-{TPT}", metric)
        assert comparison.differences["trial-0002", TPT, metric].adjusted_p == of_answer.adjusted_p
    assert compare_trials(folder, NAMES, "val").from_answer == frozenset()


def test_the_document_has_settings_values_and_differences_of_each_metric(comparison):
    document = trial_comparison_document("far", comparison)
    assert document.title == "far"
    titles = [section.title for section in document.sections]
    assert titles == [
        "Settings",
        f"accuracy on test: {title_of('accuracy')}", "accuracy on test: differences",
        f"ece on test: {title_of('ece')}", "ece on test: differences",
    ]  # fmt: skip
    settings, values, differences, *_ = tables_of(document).values()
    assert settings.title == ""
    assert [row[0] for row in texts_of(settings)] == ["trial-0002", "trial-0003"]
    assert [column.title for column in values.columns] == ["trial", "digits", "scenes", "average"]
    assert [column.is_text for column in values.columns] == [True, False, False, False]
    result = comparison.results["trial-0002"]
    assert texts_of(values)[0] == [
        "trial-0002",
        f"{result.datasets['digits']['accuracy']:.2f}",
        f"{result.datasets['scenes']['accuracy']:.2f}",
        f"{result.average['accuracy']:.2f}",
    ]
    interval = comparison.statistics.interval("trial-0002", "accuracy/scenes")
    assert values.rows[0].cells[2].interval == format_interval("accuracy", interval)
    counts = counts_text({"digits": 400, "scenes": 400})
    assert values.notes[0] == f"images that all have seen: {counts}"
    assert [column.title for column in differences.columns] == ["pair", "digits", "scenes", "average"]
    assert [row[0] for row in texts_of(differences)] == [
        "trial-0002 minus trial-0003", f"trial-0002 minus {TPT}", f"trial-0003 minus {TPT}"
    ]  # fmt: skip
    difference = comparison.differences["trial-0002", "trial-0003", "accuracy/digits"]
    cell = differences.rows[0].cells[1]
    assert cell.interval == format_bounds("accuracy", difference)
    assert cell.below == {"p": format_p_value(difference.adjusted_p)}
    assert (cell.mark, cell.style) == ("*", "good")


def test_the_notes_name_the_families_and_the_pairs_of_the_answer(comparison):
    tables = tables_of(trial_comparison_document("far", comparison))
    pairing, families, of_answer = tables["accuracy on test: differences"].notes
    assert pairing.endswith("; p two-sided, after Holm's correction; * below 0.05")
    n_of_answer = comparison.differences["trial-0002", TPT, "accuracy"].family_size
    assert sorted(families.removeprefix("families: ").split(", ")) == sorted([
        "the 6 tests of averages in this comparison",
        "the 12 tests of single datasets in this comparison",
        f"the {n_of_answer} tests of the sweep's answer",
    ])  # fmt: skip
    assert of_answer == f"of the sweep's answer: trial-0002 minus {TPT} (average)"
    without = replace(comparison, from_answer=frozenset({("trial-0002", TPT, "ece")}))
    assert len(tables_of(trial_comparison_document("far", without))["accuracy on test: differences"].notes) == 2


def test_a_pair_without_a_test_has_a_dash(comparison):
    lacking = dict(comparison.differences)
    del lacking["trial-0002", TPT, "accuracy/digits"]
    table = tables_of(trial_comparison_document("far", replace(comparison, differences=lacking)))
    cells = table["accuracy on test: differences"].rows[1].cells
    assert cells[1].text == "-"
    assert not cells[1].below
    assert cells[2].text != "-"
    # any test of a metric is enough for its table of differences
    last = {key: value for key, value in comparison.differences.items() if key == ("trial-0003", TPT, "accuracy")}
    titles = tables_of(trial_comparison_document("far", replace(comparison, differences=last)))
    assert "accuracy on test: differences" in titles


def test_baselines_alone_have_no_table_of_settings(folder):
    document = trial_comparison_document("far", compare_trials(folder, [ZERO_SHOT, TPT]))
    assert document.sections[0].title == f"accuracy on test: {title_of('accuracy')}"


def test_a_single_searched_setting_is_shown(own):
    for name in ("trial-0002", "trial-0003"):
        own.write_trial(replace(own.trial(name), params={"fpp.gamma2": 3.0}))
    text = document_to_text(trial_comparison_document("own", compare_trials(own, NAMES)))
    assert "\nSettings\ntrial       fpp.gamma2\ntrial-0002           3\n" in text


def test_a_metric_of_one_dataset_is_compared_once_with_its_average():
    info = sweep_info((Objective(metric="ece/digits"), ECE, ACCURACY), reference=None)
    assert _shared_metrics(info, {"one": split_result(), "two": split_result()}) == ["ece", "accuracy"]


def test_a_metric_after_a_map_has_the_interval_of_the_sweep_and_no_test(own):
    names = ("trial-0002", "trial-0003")
    for name in names:
        record = own.trial(name)
        result = record.results["test"]
        datasets = {}
        for dataset, values in result.datasets.items():
            datasets[dataset] = {**values, "ece@temperature_val": values["ece"]}
        average = {**result.average, "ece@temperature_val": result.average["ece"]}
        result = replace(result, average=average, datasets=datasets)
        own.write_trial(replace(record, results={**record.results, "test": result}))
        stats = own.artifacts(name) / "test"
        (stats / block_stats_file("temperature_val")).write_bytes((stats / BLOCK_STATS_FILE).read_bytes())
    info = own.info()
    own.write_info(replace(info, space={**info.space, "work": {"posthoc": ["temperature_val"]}}))
    comparison = compare_trials(own, names, "test")
    statistics = statistics_of(own, own.info(), own.trials())
    interval = comparison.statistics.interval("trial-0002", "ece@temperature_val")
    assert interval == statistics.interval(own.trial("trial-0002"), "test", "ece@temperature_val")
    assert interval.low < interval.high
    assert (*names, "ece@temperature_val") not in comparison.differences
    for name in names:
        (own.artifacts(name) / "test" / block_stats_file("temperature_val")).write_bytes(b"damaged")
    damaged = compare_trials(own, names, "test")
    assert damaged.statistics.interval("trial-0002", "ece@temperature_val").startswith("no interval")
    assert (*names, "ece") in damaged.differences
