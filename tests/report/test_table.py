"""The table model in its four output formats."""

import re
from dataclasses import replace

import pytest

from fpp_sweep.report.plots import plot_text
from fpp_sweep.report.table import Cell, Column, Row, Table, columns_of, tex, to_html, to_latex, to_markdown, to_text
from fpp_sweep.report.text_layout import text_width

HOSTILE = "<b>|&%\x1b[2J"
NAMES = ("trial-0002", "trial-0010", "zero_shot")


def test_columns_are_not_dropped_unless_they_have_a_rank():
    (column,) = columns_of(["accuracy"])
    assert column == Column("accuracy")


def front_like_table(datasets=("val", "test")):
    """Return a table like a front's: two metrics for each group, remarks, and settings that may be dropped."""
    columns = [Column("trial", is_text=True)]
    for dataset in datasets:
        columns += [Column("accuracy", group=dataset), Column("ece", group=dataset)]
    columns += [Column("remarks", is_text=True), Column("fpp.gamma2", drop_rank=2), Column("minutes", drop_rank=1)]
    rows = []
    for name in NAMES:
        cells = [Cell(name)]
        for _ in datasets:
            cells += [Cell("71.00", interval="[70.1, 71.9]", mark="*", style="good"), Cell("4.20")]
        cells += [Cell("likely, best accuracy, best ece, knee of the front"), Cell("0.15"), Cell("12.5")]
        rows.append(Row(cells, starts_group=name == "zero_shot"))
    return Table(title="front of a sweep", columns=columns, rows=rows, notes=["* p < 0.05"])


def widths(text):
    return [text_width(line) for line in text.splitlines()]


@pytest.mark.parametrize("datasets", [("val", "test"), tuple(f"dataset{number}" for number in range(11))])
@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_text_fits_the_terminal_and_breaks_no_word(datasets, width):
    table = front_like_table(datasets)
    text = to_text(table, width)
    assert max(widths(text)) <= width
    words = set(text.split())
    for row in table.rows:
        for cell in row.cells[:-2]:
            assert set(cell.text.split()) <= words | {word.rstrip("*") for word in words}


def test_intervals_move_below_the_values_and_are_dropped_as_the_width_shrinks():
    table = front_like_table()
    assert "trial-0002  71.00* [70.1, 71.9]  4.20" in to_text(table, 200)
    below = to_text(table, 100).splitlines()
    assert [line.split()[:2] for line in below if line.startswith("  95 %")] == [["95", "%"]] * 3
    assert "[70.1, 71.9]" not in to_text(table, 60)
    assert "not shown: intervals, " in to_text(table, 60)


def test_columns_are_dropped_by_rank_and_named_in_a_note():
    columns = [Column("trial", is_text=True), Column("second", drop_rank=2), Column("first", drop_rank=1)]
    table = Table(columns=columns, rows=[Row([Cell("a"), Cell("1"), Cell("2")])])
    assert to_text(table, 20) == "trial  second  first\na           1      2"
    assert to_text(table, 19) == "trial  first\na          2\nnot shown: second"
    assert to_text(table, 11) == "trial\na\nnot shown:\n  second,\n  first"


def test_a_wide_table_continues_below_with_its_first_column_and_whole_groups():
    text = to_text(front_like_table(("dataset1", "dataset2", "dataset3")), 40)
    heads = [line.split() for line in text.splitlines() if line.startswith("trial ")]
    assert heads == [["trial", "accuracy", "ece"]] * 3 + [["trial", "remarks"]]
    assert text.count("trial-0002") == len(heads)


def test_a_continuation_has_no_row_with_nothing_but_a_name():
    columns = [Column("trial", is_text=True), Column("accuracy"), Column("remarks", is_text=True)]
    rows = [Row([Cell("a"), Cell("1"), Cell("knee")]), Row([Cell("b"), Cell("2"), Cell("")])]
    assert to_text(Table(columns=columns, rows=rows), 16).split("\n\n")[1] == "trial  remarks\na      knee"
    rows = [replace(row, cells=[*row.cells[:2], Cell("")]) for row in rows]
    assert to_text(Table(columns=columns, rows=rows), 16) == "trial  accuracy\na             1\nb             2"


def test_a_group_that_is_too_wide_alone_is_split():
    columns = [Column("trial", is_text=True), *(Column(f"metric{number}", group="test") for number in range(6))]
    table = Table(columns=columns, rows=[Row([Cell("a"), *(Cell("1.00") for _ in range(6))])])
    text = to_text(table, 30)
    assert max(widths(text)) <= 30
    assert text.count("metric") == 6


def test_values_marks_and_intervals_are_aligned_in_their_columns():
    cells = [Cell("+3.4", interval="[2.1, 4.7]", mark="*"), Cell("-12.9", interval="[-20.1, -5.7]"), Cell("-")]
    rows = [Row([Cell(f"trial{number}"), cell]) for number, cell in enumerate(cells)]
    table = Table(columns=[Column("trial", is_text=True), Column("accuracy")], rows=rows)
    assert to_text(table).splitlines() == [
        "trial               accuracy",
        "trial0   +3.4*    [2.1, 4.7]",
        "trial1  -12.9  [-20.1, -5.7]",
        "trial2      -",
    ]


def test_lines_below_a_value_have_their_label_in_the_first_column():
    cells = [Cell("a less b"), Cell("+3.4", interval="[2.1, 4.7]", below={"p": "0.03"}), Cell("1.0", below={"q": "x"})]
    table = Table(columns=[Column("", is_text=True), Column("accuracy"), Column("ece")], rows=[Row(cells)])
    assert to_text(table, 26).splitlines()[1:] == [
        "a less b        +3.4  1.0",
        "  95 %    [2.1, 4.7]",
        "  p             0.03",
        "  q                     x",
    ]
    assert "| p | 0.03 |  |" in to_markdown(table)
    assert r"\quad p & 0.03 &  \\" in to_latex(table)
    assert "<td>+3.4<small>[2.1, 4.7]</small><small>p 0.03</small></td>" in to_html(table)


@pytest.mark.parametrize(("width", "word", "shown"), [(47, "w" * 35, "w" * 35), (80, "x" * 30 + "y" * 30, "x…y")])
def test_only_a_very_long_word_loses_its_middle(width, word, shown):
    rows = [["trial-0001", f"better in {word} than the rest", "1.0"]]
    text = to_text(Table.of_strings(["trial", "remarks", "accuracy"], rows, text_columns=(0, 1)), width)
    assert max(widths(text)) <= width
    assert shown in text


def test_wide_letters_take_two_columns():
    table = Table.of_strings(["dataset", "images"], [["花", "8"], ["dtd", "16"]])
    assert len(set(widths(to_text(table)))) == 1


def test_color_adds_escape_sequences_only():
    table = front_like_table()
    colored = to_text(table, 120, color=True)
    assert "\x1b[32m" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == to_text(table, 120)


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table(columns=[Column("a"), Column("b")], rows=[Row([Cell("1")])])


@pytest.mark.parametrize("render", [to_text, to_html, to_markdown, to_latex])
def test_every_output_escapes_hostile_texts(render):
    cells = [Cell(HOSTILE), Cell(HOSTILE, interval=HOSTILE, mark=HOSTILE, below={HOSTILE: HOSTILE})]
    columns = [Column(HOSTILE, is_text=True), Column(HOSTILE, group=HOSTILE)]
    row = Row(cells, trial=HOSTILE)
    text = render(Table(title=HOSTILE, columns=columns, rows=[row], notes=[HOSTILE], name=HOSTILE))
    if render is to_html:
        assert "<b>" not in text
        return
    assert "\x1b" not in text
    if render is to_markdown:
        assert all(line.count("|") == 3 for line in text.splitlines() if line.startswith("|"))
    if render is to_latex:
        assert r"\textbackslash{}x1b" in text
        assert not re.search(r"(?<!\\)%", text)


def test_the_heading_of_a_group_stands_above_its_columns_only():
    columns = [Column("trial", is_text=True), Column("ece", group="test"), Column("nll", group="test")]
    table = Table(columns=columns, rows=[Row([Cell("trial-0001"), Cell("5.00"), Cell("1.20")])])
    groups, heads, _ = to_text(table, 60).splitlines()
    assert groups.index("-") == heads.index("ece") - 1  # the column is as wide as `5.00`
    assert len(groups) == len(heads)


def test_groups_are_headings_above_their_columns():
    table = front_like_table()
    _, groups, heads, *_ = to_text(table, 200).splitlines()
    assert groups.index("- val -") < heads.index("ece") < groups.index("- test -") < heads.rindex("ece")
    assert '<th class="group" colspan="2">test</th>' in to_html(table)
    assert r"\multicolumn{2}{c}{test}" in to_latex(table)
    assert "| trial | val: accuracy | val: ece | test: accuracy |" in to_markdown(table)


def test_a_table_without_rows_has_its_title_and_notes():
    table = Table(title="a_b", notes=["50 %"])
    assert to_text(table) == "a_b\n50 %"
    assert to_markdown(table) == "## a_b\n\n- 50 %"
    assert to_latex(table) == "% A_b. 50 %."


def test_latex_has_minus_signs_instead_of_hyphens():
    assert tex("-1.5 a-b") == "$-$1.5 a-b"


def test_a_note_that_begins_with_a_star_is_no_nested_list_in_markdown():
    table = Table.of_strings(["dataset"], [["dtd"]], notes=["* p < 0.05"])
    assert to_markdown(table).rstrip().endswith("\n- \\* p < 0.05")


def test_a_row_of_a_trial_keeps_the_classes_of_its_first_cell():
    table = Table(columns=[Column("trial", is_text=True)], rows=[Row([Cell("t", style="good")], trial="t")])
    assert '<th class="text short good" data-trial="t" scope="row">' in to_html(table)


def test_an_interval_of_a_column_of_text_stands_beside_it_in_wide_tables_only():
    rows = [Row([Cell("better", interval="[1, 2]", mark="*")])]
    table = Table(columns=[Column("verdict", is_text=True)], rows=rows)
    assert "better* [1, 2]" in to_text(table, 80)
    assert "better* [1, 2]" not in to_text(table, 10)


def test_quotes_in_names_are_drawn_as_they_are():
    assert plot_text("it's <b>") == "it's &lt;b&gt;"
