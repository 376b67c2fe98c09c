"""The table model in its four output formats."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fpp_sweep.report.plots import plot_text
from fpp_sweep.report.table import Cell, Column, Row, Table, tex, to_latex, to_markdown, to_text
from fpp_sweep.spec.errors import escaped

HOSTILE = "<b>|&%\x1b[2J"
NAMES = ("trial-0002", "trial-0010", "zero_shot")


def front_like_table(datasets=("val", "test")):
    """Return a table like a front's: two metrics for each group, remarks, and settings that may be dropped."""
    columns = [Column("trial", is_text=True)]
    for dataset in datasets:
        columns += [Column("accuracy", group=dataset), Column("ece", group=dataset)]
    columns += [
        Column("remarks", is_text=True),
        Column("fpp.gamma2", is_optional=True),
        Column("minutes", is_optional=True),
    ]
    rows = []
    for name in NAMES:
        cells = [Cell(name)]
        for _ in datasets:
            cells += [Cell("71.00", interval="[70.1, 71.9]", mark="*", style="good"), Cell("4.20")]
        cells += [Cell("likely, best accuracy, best ece, knee of the front"), Cell("0.15"), Cell("12.5")]
        rows.append(Row(cells, starts_group=name == "zero_shot"))
    return Table(title="front of a sweep", columns=columns, rows=rows, notes=["* p < 0.05"])


# letters, a space, a letter of two columns, characters that terminals and markup read
texts = st.text("ab0. 花\x1b[|%<", max_size=25)
cells = st.builds(
    Cell,
    texts,
    interval=st.sampled_from(["", "[70.1, 71.9]"]),
    mark=st.sampled_from(["", "*"]),
    below=st.dictionaries(st.sampled_from(["p", "n"]), st.just("0.03"), max_size=1),
)
titles = st.text("ab0. \x1b[|%<", max_size=25)  # sentences count a letter of two columns as one
columns = st.builds(
    Column, titles, group=st.sampled_from(["", "val"]), is_text=st.booleans(), is_optional=st.booleans()
)


@st.composite
def tables(draw):
    first = Column(draw(texts), is_text=True)
    others = draw(st.lists(columns, max_size=6))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        values = [draw(cells) for _ in others]
        rows.append(Row([Cell(draw(texts)), *values], starts_group=draw(st.booleans())))
    return Table(title="title", columns=[first, *others], rows=rows, notes=["a note"])


def characters(*texts):
    return Counter("".join("".join(texts).split()))


@given(tables(), st.integers(20, 150))
def test_text_fits_its_width_is_printable_and_loses_nothing(table, width):
    lines = to_text(table, width).splitlines()
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)
    shown = [table.title, *table.notes]
    for index, column in enumerate(table.columns):
        shown.append(escaped(column.title))  # of a column that is left out, the note has the title
        if not column.is_optional:
            for row in table.rows:
                cell = row.cells[index]
                shown += [escaped(cell.text), cell.mark, *cell.below.values()]
    assert characters(*shown) <= characters(*lines)


@given(tables())
def test_a_wide_text_has_every_interval_and_a_line_for_each_row(table):
    lines = to_text(table, 1000).splitlines()
    intervals = sum(bool(cell.interval) for row in table.rows for cell in row.cells)
    assert sum(line.count("[70.1, 71.9]") for line in lines) == intervals
    assert not any(line.startswith("not shown") for line in lines)
    n_lines = sum(1 + row.starts_group + len(row.labels) for row in table.rows)
    assert len(lines) == 3 + any(table.groups) + n_lines  # title, heads, note


def test_intervals_move_below_the_values_and_are_dropped_as_the_width_shrinks():
    table = front_like_table()
    assert "trial-0002  71.00* [70.1, 71.9]  4.20" in to_text(table, 200)
    below = to_text(table, 100).splitlines()
    assert [line.split()[:2] for line in below if line.startswith("  95 %")] == [["95", "%"]] * 3
    assert "[70.1, 71.9]" not in to_text(table, 60)
    assert "not shown: intervals, " in to_text(table, 60)


def test_a_wide_table_continues_below_with_its_first_column():
    text = to_text(front_like_table(("dataset1", "dataset2", "dataset3")), 40)
    heads = [line.split() for line in text.splitlines() if line.startswith("trial ")]
    assert sum(head.count("accuracy") for head in heads) == 3
    assert text.count("trial-0002") == len(heads) > 1


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table(columns=[Column("a"), Column("b")], rows=[Row([Cell("1")])])


@pytest.mark.parametrize("render", [to_text, to_markdown, to_latex])
def test_every_output_escapes_hostile_texts(render):
    cells = [Cell(HOSTILE), Cell(HOSTILE, interval=HOSTILE, mark=HOSTILE, below={HOSTILE: HOSTILE})]
    columns = [Column(HOSTILE, is_text=True), Column(HOSTILE, group=HOSTILE)]
    row = Row(cells, trial=HOSTILE)
    text = render(Table(title=HOSTILE, columns=columns, rows=[row], notes=[HOSTILE], name=HOSTILE))
    assert "\x1b" not in text
    if render is to_markdown:
        assert all(line.count("|") == 3 for line in text.splitlines() if line.startswith("|"))
    if render is to_latex:
        assert r"\textbackslash{}x1b" in text
        assert not re.search(r"(?<!\\)%", text)


def test_a_table_without_rows_has_its_title_and_notes():
    table = Table(title="a_b", notes=["50 %"])
    assert to_text(table) == "a_b\n50 %"
    assert to_markdown(table) == "## a_b\n\n- 50 %"
    assert to_latex(table) == "% A_b. 50 %."


def test_quotes_in_names_are_drawn_as_they_are():
    assert plot_text("it's <b>") == "it's &lt;b&gt;"


def grouped_table():
    columns = [Column("trial", is_text=True), Column("a", group="val"), Column("b", group="val"), Column("n")]
    rows = [
        Row([Cell("x|y"), Cell("1.0", interval="[0, 2]", mark="*"), Cell("2.0"), Cell("3")]),
        Row([Cell("z"), Cell("1.0", below={"p": "0.5"}), Cell("2.0"), Cell("3")], starts_group=True),
    ]
    return Table(title="made of two", columns=columns, rows=rows, notes=["a note", "* below 0.05"])


def test_text_has_groups_above_heads_and_lines_below_values():
    assert to_text(grouped_table()).splitlines() == [
        "made of two",
        "               val  val",
        "trial            a    b  n",
        "x|y    1.0* [0, 2]  2.0  3",
        "",
        "z      1.0          2.0  3",
        "  p            0.5",
        "a note",
        "* below 0.05",
    ]


def test_markdown_has_a_heading_a_line_for_each_row_and_a_list_of_notes():
    assert to_markdown(grouped_table(), 3).splitlines() == [
        "### made of two",
        "",
        "| trial | val: a | val: b | n |",
        "|---|---|---|---|",
        "| x/y | 1.0* [0, 2] | 2.0 | 3 |",
        "| z | 1.0 | 2.0 | 3 |",
        "| p | 0.5 |  |  |",
        "",
        "- a note",
        r"- \* below 0.05",
    ]


def test_latex_has_rules_under_groups_and_between_parts_and_a_caption_of_sentences():
    assert to_latex(grouped_table()).splitlines() == [
        r"\begin{table}",
        r"\caption{Made of two. A note. * below 0.05.}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{val} &  \\",
        r"\cmidrule(lr){2-3}",
        r"trial & a & b & n \\",
        r"\midrule",
        r"x$|$y & 1.0* [0, 2] & 2.0 & 3 \\",
        r"\midrule",
        r"z & 1.0 & 2.0 & 3 \\",
        r"\quad p & 0.5 &  &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    without_groups = to_latex(Table.of_strings(["a"], [["b"]]))
    assert "cmidrule" not in without_groups
    assert "multicolumn" not in without_groups


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("50 % & $x_1$ #{}", r"50 \% \& \$x\_1\$ \#\{\}"),
        ("~ ^", r"\textasciitilde{} \textasciicircum{}"),
        ("mean of <prompt, gradient> |x|", r"mean of $<$prompt, gradient$>$ $|$x$|$"),
        ("± † ‡ §", r"$\pm$ \dag{} \ddag{} \S{}"),
        ("[-1, -0.5] a-1 1-2 --3", "[$-$1, $-$0.5] a-1 1-2 --3"),
    ],
)
def test_latex_escapes_what_it_would_interpret(text, shown):
    assert tex(text) == shown
