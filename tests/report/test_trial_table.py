"""The tables of the front, of the datasets and of all trials: columns, order, marks and missing values."""

from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import IMPORTED
from fpp_sweep.report.formatting import decimals_of, format_p_value
from fpp_sweep.report.front_table import (
    by_merit,
    dataset_table,
    front_heading,
    front_table,
    remarks,
    setting_cells,
    trial_table,
)
from fpp_sweep.space.objectives import Objective
from tests.kit.names import ZERO_SHOT
from tests.kit.records import all_baselines, baseline, failed, split_result, sweep_info, trial

PAPERS = ("dtd", "pets")  # datasets of which TDA has released settings
TDA_NOTE = "† as released; how they were chosen is not said: tda adapt.cache_alpha, tda adapt.cache_beta"


def statistics_of_records(info, records):
    return statistics_of_samples(info, front_of(info, records), {})


def table_of(records, info=None):
    info = info or sweep_info()
    return trial_table(info, records, statistics_of_records(info, records))


def texts_of(table, *headings):
    """Return the texts of columns, by the text of the first cell."""
    columns = [column.heading for column in table.columns]
    indices = [columns.index(heading) for heading in headings]
    return {row.cells[0].text: tuple(row.cells[index].text for index in indices) for row in table.rows}


# --- all trials ---------------------------------------------------------------------------------------


def test_all_trials_have_their_settings_metrics_and_remarks():
    waiting = trial(3, state="waiting", params={}, started=0.0, finished=None, values=None, results={})
    stopped = failed(4, "lower than trial-0001", state="stopped")
    added = trial(1, 71, 4, params={"fpp.gamma2": 0.12345678, "prompt": "p" * 70}, origin="point", test=True)
    records = [baseline(ZERO_SHOT, 66.0, 9.0), trial(0, 70, 5), added, failed(2, "r" * 300), waiting, stopped]
    table = table_of(records)
    headings = ["trial", "remarks", "accuracy", "ece", "fpp.gamma2", "fpp.class_var", "prompt"]
    assert [column.heading for column in table.columns] == headings
    assert texts_of(table, *headings[1:]) == {
        "trial-0001": ("best accuracy, best ece, knee, point", "71.00", "4.00", "0.1235", "", "p" * 60),
        "trial-0000": ("code", "70.00", "5.00", "0.1", "x0.05", "fpp"),
        ZERO_SHOT: ("", "66.00", "9.00", "", "", "a photo of a"),  # of its config
        "trial-0002": ("failed, " + "r" * 200, "", "", "0.289", "x0.15", "fpp"),
        "trial-0003": ("waiting", "", "", "15", "x1", "fpp"),
        "trial-0004": ("stopped, lower than trial-0001", "", "", "0.8352", "x0.25", "fpp"),
    }
    assert [row.style for row in table.rows] == ["best", "", "baseline", "", "", ""]


def test_released_settings_have_a_mark_in_every_table_and_a_note_below():
    released = trial(0, 70, 5, params={"method": "tda"}, datasets=PAPERS)
    info, records = sweep_info(), [released, trial(1, 69, 6, datasets=PAPERS)]
    front = front_of(info, records)
    for table in (table_of(records), front_table(info, front), dataset_table(front, None, "val")):
        assert table.notes == [TDA_NOTE]
        marks = {row.cells[0].text: row.cells[0].mark for row in table.rows}
        assert marks["trial-0000"] == "†"
        assert set(marks.values()) <= {"†", ""}


def test_trials_stand_in_the_order_of_their_merit():
    records = [
        trial(0, 70, 5), trial(1, 69, 6), trial(2, 68, 7), trial(3, 71, 6), trial(4, 60, 9),
        trial(5, 90, 1, constraints={"ece": 1.0}), baseline(ZERO_SHOT, 66.0, 9.0), failed(6), failed(7),
    ]  # fmt: skip
    front = front_of(sweep_info(), records)
    names = [record.name for record in by_merit(front, records)]
    knee = front.by_trade_off(front.members)[0].name
    assert set(names[:2]) == {"trial-0000", "trial-0003"}  # the front, its knee first
    assert names[0] == knee
    assert names[2:] == [
        "trial-0001", "trial-0002", "trial-0004", "trial-0005", f"baseline-{ZERO_SHOT}", "trial-0006", "trial-0007"
    ]  # fmt: skip


def test_a_dominated_trial_stands_behind_the_front_however_good_its_trade_off_is():
    records = [trial(0, 72, 9), trial(1, 71.9, 4), trial(2, 60, 1), trial(3, 71.8, 4.1)]
    front = front_of(sweep_info(), records)
    assert [record.name for record in front.by_trade_off(records)[:2]] == ["trial-0001", "trial-0003"]
    names = ["trial-0001", "trial-0000", "trial-0002", "trial-0003"]
    assert [record.name for record in by_merit(front, records)] == names


# --- the front ----------------------------------------------------------------------------------------


def test_the_front_has_settings_as_text_or_numbers_which_a_narrow_terminal_leaves_out():
    params = [
        {"n": 1, "method": "tpt", "mixed": "x", "rare": 4},
        {"n": 2.5, "method": "ctpt", "mixed": 3},
        {"n": 3, "flag": True},
    ]
    records = [trial(n, 70 + n, 5 + n, params=settings) for n, settings in enumerate(params)]
    info = sweep_info()
    table = front_table(info, front_of(info, records))
    settings = {column.title: (column.is_text, column.drop_rank) for column in table.columns[4:]}
    assert settings == {"n": (False, 1), "method": (True, 1), "mixed": (True, 1), "flag": (True, 1), "rare": (False, 1)}
    assert [column.drop_rank for column in table.columns[:4]] == [0] * 4
    # a trial that did not search a setting shows that of its config
    assert texts_of(table, "n", "flag")["trial-0000"] == ("1", "")
    assert texts_of(table, "flag")["trial-0002"] == ("true",)


def test_the_front_without_statistics_has_neither_support_nor_intervals():
    info, records = sweep_info(), [trial(0), trial(1)]
    front = front_of(info, records)
    for statistics in (None, statistics_of_records(info, records)):
        table = front_table(info, front, statistics)
        assert "support" not in [column.heading for column in table.columns]
        assert not any(row.has_interval for row in table.rows)


@pytest.mark.parametrize(("has_test_result", "groups"), [(False, {"val"}), (True, {"val", "test"})])
def test_the_front_shows_all_splits_of_its_records(has_test_result, groups):
    info, records = sweep_info(), [trial(0), trial(1, test=has_test_result)]
    table = front_table(info, front_of(info, records))
    assert {column.group for column in table.columns if column.group} == groups


def test_only_the_first_baseline_below_trials_is_separated():
    info = sweep_info()
    with_trials = front_table(info, front_of(info, [*all_baselines(), trial(0, 80, 1)]))
    assert [row.starts_group for row in with_trials.rows] == [False, True, False, False, False, False, False]
    alone = front_table(info, front_of(info, all_baselines()))
    assert not any(row.starts_group for row in alone.rows)
    assert {row.style for row in alone.rows} == {"baseline"}
    assert alone.rows[0].trial == f"baseline-{ZERO_SHOT}"


def test_the_heading_of_the_front_depends_on_the_search():
    info = sweep_info()
    assert front_heading(front_of(info, [])) == "Front"
    evaluated = sweep_info(space={"search": {"evaluate_only": True}})
    assert front_heading(front_of(evaluated, [])) == "Results"


@pytest.mark.parametrize(("origin", "remark"), [("sampled", ""), ("grid", ""), ("code", "code"), ("point", "point")])
def test_the_origin_of_a_requested_trial_is_a_remark(origin, remark):
    record = trial(0, origin=origin)
    assert remarks(front_of(sweep_info(), [record]), record) == remark
    imported = replace(baseline("theirs", 60.0, 5.0), origin=IMPORTED)
    assert remarks(front_of(sweep_info(), [imported]), imported) == IMPORTED


def test_a_setting_is_short_in_a_table():
    record = trial(0, params={"a": 1 / 3, "b": "w" * 80})
    assert [cell.text for cell in setting_cells(record, ["b", "missing", "a"])] == ["w" * 60, "", "0.3333"]


def test_a_setting_that_was_not_searched_comes_from_the_config():
    record = trial(0, params={"fpp.gamma2": 0.5})
    texts = [cell.text for cell in setting_cells(record, ["fpp.gamma2", "method"])]
    assert texts == ["0.5", str(record.config["method"])]


# --- datasets -----------------------------------------------------------------------------------------


def test_the_table_by_dataset_has_a_group_for_each_dataset_that_any_record_has():
    first = trial(0, 70, 5, datasets=("dtd",))
    second = trial(1, 71, 6, results={"val": split_result(71, 6, datasets=("dtd", "pets"))})
    elsewhere = trial(2, 72, 7, results={"test": split_result(72, 7)})
    front = front_of(sweep_info(), [baseline(ZERO_SHOT, 66, 9, datasets=("dtd",)), first, second, elsewhere])
    table = dataset_table(front, None, "val")
    assert table.title == "val split"
    assert [column.heading for column in table.columns] == [
        "trial", "dtd: accuracy", "dtd: ece", "pets: accuracy", "pets: ece"
    ]  # fmt: skip
    assert [column.is_text for column in table.columns] == [True, False, False, False, False]
    assert texts_of(table, "dtd: accuracy", "pets: accuracy", "pets: ece") == {
        "trial-0001": ("70.50", "71.50", "6.10"), "trial-0000": ("70.00", "", ""), ZERO_SHOT: ("66.00", "", "")
    }  # fmt: skip
    assert [row.starts_group for row in table.rows] == [False, False, True]
    assert [row.style for row in table.rows][-1] == "baseline"
    empty = dataset_table(front, None, "final")
    assert (empty.title, len(empty.columns), empty.rows) == ("final split", 1, ())


def test_the_table_by_dataset_has_accuracy_and_the_metrics_of_the_objectives():
    objectives = (Objective(metric="sce", goal="min"), Objective(metric="brier/dtd", goal="min"))
    records = [trial(0, datasets=("dtd",), values=(5.0, 0.4))]
    table = dataset_table(front_of(sweep_info(objectives=objectives), records), None, "val")
    assert [column.heading for column in table.columns] == ["trial", "dtd: accuracy", "dtd: sce", "dtd: brier"]


# --- numbers ------------------------------------------------------------------------------------------


def test_intervals_have_a_decimal_less_than_values_and_one_at_least():
    decimals = {metric: decimals_of(metric) for metric in ("accuracy", "ece/dtd", "ece@temperature", "nll", "mine")}
    assert decimals == {"accuracy": 1, "ece/dtd": 1, "ece@temperature": 1, "nll": 3, "mine": 1}


def test_a_small_p_value_has_a_limit_instead_of_digits():
    assert [format_p_value(p) for p in (1.0, 0.05, 0.0011, 0.001, 0.00099, 0.0)] == [
        "1.000", "0.050", "0.001", "0.001", "<0.001", "<0.001"
    ]  # fmt: skip
