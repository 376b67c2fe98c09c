"""The table of a front in all output formats."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from fpp_sweep.records.answer import statistics_of, statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.report.front_table import dataset_table, front_table, setting_cells, trial_table
from fpp_sweep.report.table import to_text
from tests.kit.measured import World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import all_baselines, baseline, searched_trials, sweep_info, trial


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
    statistics = statistics_of_samples(info, front_of(info, records), {})
    marked = {name for name, marks in statistics.front.marks.items() if marks}
    assert len(marked) < 4
    for table in (front_table(info, statistics.front), trial_table(info, records, statistics)):
        assert {row.trial for row in table.rows if row.style == "best"} == marked


def test_settings_and_title_are_optional():
    front = front_of(sweep_info(), [trial(0)])
    table = front_table(sweep_info(), front, settings=False, title="front")
    assert table.title == "front"
    assert [column.title for column in table.columns] == ["trial", "accuracy", "ece", "remarks"]


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
