"""The tables of the front, of the datasets and of all trials: columns, order, marks and missing values."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import IMPORTED
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.report.front_table import by_merit, dataset_table, front_table, remarks, setting_cells, trial_table
from fpp_sweep.report.table import to_text
from fpp_sweep.space.objectives import Objective
from tests.kit.measured import World, statistics_without_files, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import all_baselines, baseline, failed, searched_trials, split_result, sweep_info, trial

PAPERS = ("dtd", "pets")  # datasets of which TDA has released settings
TDA_NOTE = "† as released; how they were chosen is not said: tda adapt.cache_alpha, tda adapt.cache_beta"


def table_of(records):
    return trial_table(sweep_info(), records, statistics_without_files(sweep_info(), records))


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


def test_members_come_first_then_baselines_with_intervals_support_and_remarks(far):
    information, statistics = far
    table = front_table(information, statistics.front, statistics)
    assert [column.heading for column in table.columns] == [
        "trial", "val: accuracy", "val: ece", "test: accuracy", "test: ece", "support", "remarks", "fpp.gamma2",
        "fpp.class_var",
    ]  # fmt: skip
    assert [column.heading for column in table.columns if column.is_text] == ["trial", "support", "remarks"]
    member, first, second = table.rows
    interval = statistics.interval(statistics.front.members[0], "test", "ece")
    assert member.cells[0].text == member.trial == "trial-0002"
    assert member.cells[4].interval == format_interval("ece", interval)
    assert [cell.text for cell in member.cells[5:]] == ["likely", "best accuracy, best ece, knee", "0.289", "x0.15"]
    assert [first.cells[0].text, second.cells[0].text] == [ZERO_SHOT, TPT]
    assert (first.starts_group, second.starts_group) == (True, False)


def test_a_single_trial_has_neither_marks_nor_support(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(100), {"trial-0002": (0.7, 0.1)})
    statistics = statistics_of(folder, folder.info(), folder.trials())
    table = front_table(folder.info(), statistics.front, statistics)
    (row,) = table.rows
    headings = [column.heading for column in table.columns]
    assert "support" not in headings
    assert row.cells[headings.index("remarks")].text == "code"  # its origin


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_front_with_many_settings_fits_the_terminal(width):
    front = front_of(sweep_info(), [*all_baselines(), *searched_trials()])
    text = to_text(front_table(sweep_info(), front), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert all(member.name in text for member in front.members)
    assert ("fpp.draws" in text.splitlines()[1]) == (width > 80)
    assert ("not shown: " in text) == (width < 200)


def test_only_members_with_marks_stand_out_in_both_tables():
    info, records = sweep_info(), [trial(0, 72, 5), trial(1, 71, 4.9), trial(2, 70.5, 4.8), trial(3, 65, 3)]
    statistics = statistics_without_files(info, records)
    marked = {name for name, marks in statistics.front.marks.items() if marks}
    assert len(marked) < 4
    for table in (front_table(info, statistics.front), trial_table(info, records, statistics)):
        assert {row.trial for row in table.rows if row.style == "best"} == marked


def test_a_baseline_shows_the_settings_that_it_reads():
    learned = baseline("fpp_code", 70.0, 5.0)
    words_baseline = replace(learned, config={**learned.config, "prompt": "a photo of a"})
    gamma = learned.config["fpp.gamma2"]
    keys = ["fpp.gamma2", "method"]
    assert [cell.text for cell in setting_cells(learned, keys)] == [f"{gamma:g}", TPT]
    assert [cell.text for cell in setting_cells(words_baseline, keys)] == ["", TPT]


def test_the_table_by_dataset_has_the_intervals_of_single_datasets(far):
    _, statistics = far
    table = dataset_table(statistics.front, statistics, "test")
    assert [column.group for column in table.columns[1:]] == ["digits", "digits", "scenes", "scenes"]
    interval = statistics.interval(statistics.front.members[0], "test", "accuracy/digits")
    assert table.rows[0].cells[1].interval == format_interval("accuracy", interval)


@pytest.mark.parametrize(("origin", "remark"), [("sampled", ""), ("grid", ""), ("code", "code"), ("point", "point")])
def test_the_origin_of_a_requested_trial_is_a_remark(origin, remark):
    record = trial(0, origin=origin)
    assert remarks(front_of(sweep_info(), [record]), record) == remark
    imported = replace(baseline("theirs", 60.0, 5.0), origin=IMPORTED)
    assert remarks(front_of(sweep_info(), [imported]), imported) == IMPORTED


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
    assert texts_of(table, "dtd: accuracy", "pets: accuracy", "pets: ece") == {
        "trial-0001": ("70.50", "71.50", "6.10"), "trial-0000": ("70.00", "", ""), ZERO_SHOT: ("66.00", "", "")
    }  # fmt: skip
    empty = dataset_table(front, None, "final")
    assert (empty.title, len(empty.columns), empty.rows) == ("final split", 1, [])


def test_the_table_by_dataset_has_accuracy_and_the_metrics_of_the_objectives():
    objectives = (Objective(metric="sce", goal="min"), Objective(metric="brier/dtd", goal="min"))
    records = [trial(0, datasets=("dtd",), values=(5.0, 0.4))]
    table = dataset_table(front_of(sweep_info(objectives=objectives), records), None, "val")
    assert [column.heading for column in table.columns] == ["trial", "dtd: accuracy", "dtd: sce", "dtd: brier"]


# --- numbers ------------------------------------------------------------------------------------------
