"""The section with the answer, on pages and terminals."""

import re
from dataclasses import replace

import pytest

from fpp_sweep.records.answer import sentence_of, statistics_of
from fpp_sweep.report.answer_section import answer_sections, difference_table
from fpp_sweep.report.html import blocks_to_html
from fpp_sweep.report.table import Table
from fpp_sweep.report.writing import write_report
from tests.kit.measured import World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT

SIDES = {ZERO_SHOT: (0.60, 0.15), TPT: (0.68, 0.25), "trial-0002": (0.64, 0.05), "trial-0003": (0.55, 0.01)}


@pytest.fixture(scope="module")
def statistics(tmp_path_factory):
    folder = write_measured_sweep(
        tmp_path_factory.mktemp("sweeps") / "far", World(1000, seed=3), SIDES, ("val", "test")
    )
    return statistics_of(folder, folder.info(), folder.trials())


def test_the_table_has_a_row_for_each_metric_and_a_column_for_each_baseline(statistics):
    table = difference_table(statistics.answer)
    assert [column.title for column in table.columns] == ["finalist", "metric", ZERO_SHOT, "±", TPT]
    names = [(row.cells[0].text, row.cells[1].text) for row in table.rows]
    assert names == [(statistics.answer.champion, "accuracy (max)"), ("", "ece (min)")]


def test_marks_and_colors_are_those_of_the_answer(statistics):
    answer = statistics.answer
    for metric, row in zip(answer.metrics, difference_table(answer).rows, strict=True):
        cells = list(row.cells[2:])
        half_width = cells.pop(1)
        differences = [answer.differences[baseline, metric] for baseline in answer.baselines]
        for cell, difference in zip(cells, differences, strict=True):
            assert cell.text == f"{(difference.low + difference.high) / 2:+.1f}"
            assert bool(cell.mark) == bool(difference.mark)
            assert cell.style == {"+": "good", "-": "bad", "": ""}[difference.mark]
        assert float(half_width.text) == pytest.approx(differences[0].half_width, abs=0.06)
    assert {difference.mark for difference in answer.differences.values()} >= {"+", "-"}


def test_the_note_states_if_any_difference_is_significant(statistics, tmp_path):
    answer = statistics.answer
    first, *others = answer.differences
    differences = {first: answer.differences[first]}
    for key in others:
        differences[key] = replace(answer.differences[key], adjusted_p=1.0)
    one_is_significant = replace(answer, differences=differences)
    for some in (answer, one_is_significant):
        assert difference_table(some).notes[0].startswith("* significant at 5 % after Holm's correction")
    equal = dict.fromkeys(SIDES, (0.6, 0.1))
    folder = write_measured_sweep(tmp_path / "equal", World(400), equal, ("val", "test"))
    answer = statistics_of(folder, folder.info(), folder.trials()).answer
    assert difference_table(answer).notes[0].startswith("no difference is significant at 5 % after Holm's")


@pytest.mark.parametrize(("sides", "has_colours"), [(SIDES, True), (dict.fromkeys(SIDES, (0.6, 0.1)), False)])
def test_the_table_is_folded_on_the_page_and_its_colours_are_explained_if_it_has_any(tmp_path, sides, has_colours):
    folder = write_measured_sweep(tmp_path / "sweep", World(400), sides, ("val", "test"))
    write_report(folder, pages=True)
    page = (folder.report / "sweep.html").read_text()
    answer, folded, _ = re.split(r"<details>|</details>", page[page.index('<section id="answer">') :], maxsplit=2)
    assert 'class="lead"' in answer
    assert "<table" not in answer
    assert "minus baselines, on" in folded
    assert ("Green: " in folded) == has_colours


def test_the_page_has_the_sentence_the_table_and_the_settings(statistics):
    page = blocks_to_html(answer_sections(statistics))
    assert "<h2>Answer</h2>" in page
    assert f'<p class="lead">{sentence_of(statistics)}</p>' in page
    assert re.search(r'<td class="good">\+\d+\.\d\*</td>', page)
    assert "data-fixed-order" in page  # sorting would separate rows without a name from the finalist's first row
    assert "<h3>Settings of these finalists</h3>" in page


def test_without_differences_the_section_is_a_sentence(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(100), {"trial-0002": (0.6, 0.1)})
    statistics = statistics_of(folder, folder.info(), folder.trials())
    (section,) = answer_sections(statistics)
    blocks = section.blocks
    assert blocks[0].text.startswith("Nothing can be recommended: there are no baselines to compare with")
    assert not [block for block in blocks if isinstance(block, Table) and "minus" in block.title]


def test_a_finalist_without_a_test_has_a_dash_and_no_half_width(statistics):
    answer = statistics.answer
    differences = {key: value for key, value in answer.differences.items() if key[1] != "ece"}
    accuracy, ece = difference_table(replace(answer, differences=differences)).rows[:2]
    assert [cell.text for cell in ece.cells[2:]] == ["-", "", "-"]
    assert "-" not in [cell.text for cell in accuracy.cells[2:]]
