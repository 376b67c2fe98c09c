"""Lines of text within a width: columns, groups of columns, wrapped and shortened words."""

import pytest

from fpp_sweep.report.table import Cell, Column, Row, Table, cells_of, to_text
from fpp_sweep.report.text_layout import (
    TextBlock,
    TextCell,
    TextColumn,
    cut,
    group_spans,
    labelled_lines,
    output_width,
    text_width,
    wrap_words,
)


def column(title, *values, group="", is_text=False):
    return TextColumn(title, group, is_text, [TextCell(value) for value in values])


def lines_of(columns, width=80):
    return list(TextBlock(columns).lines(width))


def test_neighbours_of_one_group_are_one_span():
    groups = ["", "", "a", "a", "b", "a", "", "c", "c"]
    assert list(group_spans(groups)) == [
        ("", 0, 1), ("", 1, 2), ("a", 2, 4), ("b", 4, 5), ("a", 5, 6), ("", 6, 7), ("c", 7, 9)
    ]  # fmt: skip
    assert list(group_spans([])) == []


def test_a_column_is_as_wide_as_its_longest_line_and_a_text_column_as_its_longest_word():
    numbers = TextColumn("ece", "", False, [TextCell("5.00", ["[4.1, 5.9]"]), TextCell("12.00")])
    assert (numbers.natural_width, numbers.minimal_width) == (10, 10)
    text = column("remarks", "best accuracy, knee", "likely", is_text=True)
    assert (text.natural_width, text.minimal_width) == (19, 19)  # a short text is not wrapped
    long = column("remarks", "one of several remarks on a trial of this sweep", is_text=True)
    assert (long.natural_width, long.minimal_width) == (47, 20)
    word = column("remarks", "w" * 30 + " and more remarks on it", is_text=True)
    assert word.minimal_width == 30
    title = column("t" * 25, "one of several remarks on a trial of this sweep", is_text=True)
    assert title.minimal_width == 25
    endless = column("remarks", "w" * 50 + " and more", is_text=True)
    assert endless.minimal_width == 36


def test_the_last_column_of_a_group_grows_to_the_width_of_its_heading():
    columns = [
        column("trial", "a", is_text=True),
        column("x", "1", group="a long heading"),
        column("y", "2", group="a long heading"),
        column("z", "3"),
    ]
    assert TextBlock(columns).minimal_widths == [5, 1, 11, 1]
    assert lines_of(columns) == ["        a long heading", "trial  x            y  z", "a      1            2  3"]
    wide = [columns[0], column("accuracy", "1", group="val"), column("ece", "2", group="val")]
    assert TextBlock(wide).minimal_widths == [5, 8, 3]
    assert lines_of(wide)[0] == "       ---- val ----"


def test_a_block_fits_a_terminal_of_exactly_its_width():
    block = TextBlock([column("a", "12345"), column("b", "123")])
    assert block.fits(10)
    assert not block.fits(9)


def test_text_columns_grow_from_the_left_into_the_room_that_is_left():
    words = "one of several remarks on a trial"
    columns = [column("first", words, is_text=True), column("n", "1"), column("second", words, is_text=True)]
    assert list(map(len, lines_of(columns, 200)[:1])) == [33 + 2 + 1 + 2 + 6]
    assert TextBlock(columns)._widths(45) == [20, 1, 20]
    assert TextBlock(columns)._widths(50) == [25, 1, 20]
    assert TextBlock(columns)._widths(60) == [33, 1, 22]
    assert TextBlock(columns)._widths(200) == [33, 1, 33]
    assert TextBlock(columns)._widths(30) == [20, 1, 20]  # too narrow for the block


def test_lines_below_a_value_begin_below_the_longest_wrapped_value_that_has_lines_below():
    words = "one of several remarks on a trial of this sweep"
    cells = [TextCell(words, ["  p"]), TextCell("5.0", ["0.03"])]
    columns = [
        TextColumn("pair", "", True, cells[:1]),
        TextColumn("ece", "", False, cells[1:]),
        TextColumn("note", "", True, [TextCell(words)]),
    ]
    assert lines_of(columns, 50) == [
        "pair                     ece  note",
        "one of several remarks   5.0  one of several",
        "on a trial of this            remarks on a trial",
        "sweep                         of this sweep",
        "  p                     0.03",
    ]
    without = [columns[1], columns[2]]
    assert lines_of(without, 26)[1:3] == [" 5.0  one of several", "0.03  remarks on a trial"]


GROUPED = [
    column("trial", "a", "b", is_text=True),
    column("x", "111", "112", group="val"),
    column("y", "121", "122", group="val"),
    column("x", "211", "212", group="test"),
    column("y", "221", "222", group="test"),
    column("n", "3", ""),
]


def blocks_of(columns, width, separated=()):
    return [list(block.lines(width)) for block in TextBlock(columns, frozenset(separated)).split(width)]


def test_groups_stay_together_in_the_blocks_of_a_wide_table():
    assert blocks_of(GROUPED, 80) == [
        [
            "       - val --  - test -",
            "trial    x    y    x    y  n",
            "a      111  121  211  221  3",
            "b      112  122  212  222",
        ]
    ]
    first, second = blocks_of(GROUPED, 20)
    assert first == ["       - val --", "trial    x    y", "a      111  121", "b      112  122"]
    assert second == [
        "       - test -", "trial    x    y  n", "a      211  221  3", "b      212  222"
    ]  # fmt: skip


def test_a_group_that_does_not_fit_beside_the_first_column_is_split():
    heads = [block[1].split() for block in blocks_of(GROUPED[:3], 14)]
    assert heads == [["trial", "x"], ["trial", "y"]]


def test_a_table_that_is_too_wide_even_for_one_column_has_a_block_for_each():
    heads = [block[-3 if number < 4 else 0].split() for number, block in enumerate(blocks_of(GROUPED, 3))]
    assert heads == [["trial", name] for name in ("x", "y", "x", "y", "n")]


def test_a_block_after_the_first_leaves_out_rows_without_values_and_keeps_the_empty_line_between_groups():
    names = column("trial", "a", "b", "c", "d", is_text=True)
    columns = [names, column("accuracy", "1", "2", "3", "4"), column("remarks", "", "x", "", "y")]
    first, second = blocks_of(columns, 17, separated=[3])
    assert first == ["trial  accuracy", "a             1", "b             2", "c             3", "", "d             4"]
    assert second == ["trial  remarks", "b            x", "", "d            y"]
    (only,) = blocks_of([*columns[:2], column("remarks", "", "", "", "")], 17)
    assert len(only) == 5
    below = TextColumn("remarks", "", False, [TextCell("", ["low"]), *(TextCell("") for _ in range(3))])
    _, second = blocks_of([*columns[:2], below], 17)
    assert second == ["trial  remarks", "a", "           low"]


def test_a_row_without_a_name_keeps_the_rows_of_later_blocks_complete():
    names = column("finalist", "a", "", "b", is_text=True)
    columns = [names, column("metric", "x", "y", "x"), column("remarks", "", "1", "")]
    _, second = blocks_of(columns, 18)
    assert second == ["finalist  remarks", "a", "                1", "b"]


# --- sentences and words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "width", "indent", "lines"),
    [
        ("one two", 7, 2, ["one two"]),
        ("one two", 6, 2, ["one", "  two"]),
        ("one two three", 7, 0, ["one two", "three"]),
        ("one two three", 7, 2, ["one two", "  three"]),
        ("one two six", 7, 2, ["one two", "  six"]),
        ("abcdefghij kl", 7, 0, ["abc…hij", "kl"]),
        ("abcdefghij kl", 7, 2, ["abc…hij", "  kl"]),
        ("kl abcdefghij", 7, 2, ["kl", "  a…hij"]),
        ("  indented words", 12, 0, ["indented", "words"]),
        ("", 5, 2, [""]),
        ("        ", 5, 0, [""]),
    ],
)
def test_a_text_is_broken_between_words(text, width, indent, lines):
    assert wrap_words(text, width, indent) == lines


def test_an_exact_fit_is_not_broken():
    assert wrap_words("best accuracy, knee", 14) == ["best accuracy,", "knee"]
    assert wrap_words("ab cd ef", 5) == ["ab cd", "ef"]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("How much noise?", 40, ["question  How much noise?"]),
        ("How much noise?", 18, ["question  How much", "          noise?"]),
        ("", 40, ["question  "]),
        ("overlongwords are-not-broken", 14, ["question  overlongwords", "          are-not-broken"]),
        ("a b", 3, ["question  a", "          b"]),
    ],
)
def test_a_text_stands_beside_its_label(text, width, lines):
    assert labelled_lines("question", text, width, indent=10) == lines


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc…fg"),
        ("abcdefg", 5, "ab…fg"),
        ("abcdefg", 2, "a…"),
        ("abcdefg", 1, "…"),
        ("字字字字", 8, "字字字字"),
        ("字字字字", 7, "…字字字"),
        ("ab字字字字", 6, "a…字字"),
        ("字字字字", 2, "…"),
    ],
)
def test_a_long_name_loses_its_middle(text, width, shown):
    short = cut(text, width)
    assert text_width(short) <= width
    assert short == shown


def test_the_width_of_an_output_is_that_of_the_variable_columns_or_100(monkeypatch):
    monkeypatch.setenv("COLUMNS", "57")
    assert output_width() == 57
    monkeypatch.delenv("COLUMNS")
    assert output_width() == 100  # the output of a test is no terminal


# --- the text of a table ------------------------------------------------------------------------------


def interval_table(**changes):
    columns = [Column("trial", is_text=True), Column("accuracy"), Column("n")]
    rows = [
        Row([Cell("a"), Cell("71.0", interval="[70.1, 71.9]", mark="*"), Cell("3")]),
        Row([Cell("b"), Cell("9.5"), Cell("12")], starts_group=True),
    ]
    return Table(columns=columns, rows=rows, **changes)


def test_only_a_row_with_intervals_has_a_line_for_them():
    text = to_text(interval_table(), 24)
    assert text.splitlines() == [
        "trial       accuracy   n",
        "a              71.0*   3",
        "  95 %  [70.1, 71.9]",
        "",
        "b               9.5   12",
    ]
    assert to_text(interval_table(), 30).splitlines()[1:] == [
        "a      71.0* [70.1, 71.9]   3",
        "",
        "b       9.5                12",
    ]
    assert to_text(interval_table(), 23).splitlines()[-2:] == ["b          9.5   12", "not shown: intervals"]


def test_title_and_notes_are_wrapped_and_a_line_that_continues_is_indented():
    text = to_text(interval_table(title="a title of several words", notes=["* is a note of several words"]), 21)
    lines = text.splitlines()
    assert lines[:2] == ["a title of several", "words"]
    assert lines[-2:] == ["* is a note of", "  several words"]


def test_a_table_names_what_it_leaves_out_once_and_continues_the_note_indented():
    columns = [Column("trial", is_text=True), Column("accuracy"), *(Column(f"s{i}" * 3, drop_rank=1) for i in range(4))]
    rows = [Row([Cell("a"), Cell("71.0", interval="[70.1, 71.9]"), *cells_of("1234")])]
    text = to_text(Table(columns=columns, rows=rows), 17)
    assert text.splitlines() == [
        "trial  accuracy",
        "a          71.0",
        "not shown:",
        "  intervals,",
        "  s0s0s0, s1s1s1,",
        "  s2s2s2, s3s3s3",
    ]
