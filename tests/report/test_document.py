"""Sections of texts and tables, as text, Markdown, LaTeX and HTML."""

import re

import pytest

from fpp_sweep.report.document import Section, Text, blocks_to_latex, blocks_to_markdown, blocks_to_text
from fpp_sweep.report.html import blocks_to_html, write_page
from fpp_sweep.report.table import Cell, Column, Row, Table
from tests.kit.records import HOSTILE

BLOCKS = [
    Section(
        "Costs",
        [
            Text("a sentence of several words"),
            Text(""),
            Section("Inner", [Text("inside")]),
            Table.of_strings(["sweep"], [["a"]], title="Sizes"),
            Table.of_strings(["sweep"], [["b"]]),
        ],
    ),
    Section("", [Text("without a title")]),
]


def test_a_text_has_an_empty_line_above_titles_and_continues_sentences_indented():
    assert blocks_to_text(BLOCKS, 14).splitlines() == [
        "", "Costs", "a sentence of", "  several", "  words", "", "Inner", "inside", "", "Sizes", "sweep", "a", "sweep",
        "b", "without a", "  title",
    ]  # fmt: skip


def test_markdown_has_headings_by_level_and_an_empty_line_between_blocks():
    assert blocks_to_markdown("Comparison <b>", BLOCKS).splitlines() == [
        "# Comparison <b>", "", "## Costs", "", "a sentence of several words", "", "### Inner", "", "inside", "",
        "### Sizes", "", "| sweep |", "|---|", "| a |", "", "| sweep |", "|---|", "| b |", "", "## ", "",
        "without a title", "",
    ][:-1]  # fmt: skip


def test_latex_has_texts_as_comments_and_tables_with_their_own_title_or_that_of_the_section():
    lines = blocks_to_latex(BLOCKS).splitlines()
    assert lines[:2] == [r"% \usepackage{booktabs}", "% Costs"]
    assert [line for line in lines if line.startswith(r"\caption")] == [r"\caption{Sizes.}", r"\caption{Costs.}"]


# --- HTML ---------------------------------------------------------------------------------------------


def test_a_table_has_groups_links_values_to_sort_by_and_lines_below_values():
    columns = [Column("trial", is_text=True), Column("accuracy", group="test"), Column("date", group="test")]
    cells = [
        Cell("a"),
        Cell("71.0", mark="*", interval="[70.1, 71.9]", below={"p": "0.03", "n": "8"}, style="good"),
        Cell("x2", sort_value=1.5),
    ]
    rows = [Row(cells, trial="trial-0001", anchor="section", style="baseline", starts_group=True)]
    table = blocks_to_html([Table(columns=columns, rows=rows, notes=["a note"])])
    assert '<th class="group" colspan="2">test</th>' in table
    assert 'data-trial="trial-0001"><a href="#section">a</a></th>' in table
    assert ">71.0*<small>[70.1, 71.9]</small><small>p 0.03</small><small>n 8</small></td>" in table
    assert 'data-value="1.5">x2</td>' in table
    assert [set(names.split()) for names in re.findall(r'<t[rd] class="([^"]*)"', table)] == [
        {"baseline", "apart"}, {"good", "first"}
    ]  # fmt: skip
    assert table.endswith('<p class="faint">a note</p>')


@pytest.mark.parametrize(
    ("title", "name", "label"),
    [("Sizes", "sizes", "Sizes"), ("", "sizes", "sizes"), ("Sizes", "", "Sizes"), ("", "", "table of a, t: b, c")],
)
def test_a_screen_reader_reads_the_title_the_name_or_the_first_heads_of_a_table(title, name, label):
    columns = [Column("a", is_text=True), Column("b", group="t"), Column("c"), Column("d")]
    rows = [Row([Cell("1"), Cell("2"), Cell("3"), Cell("4")])]
    text = blocks_to_html([Table(title=title, name=name, columns=columns, rows=rows, sortable=not name)])
    assert f'role="region" aria-label="{label}">' in text
    assert ('<input type="search" data-filter="sizes"' in text) == bool(name)
    assert ('<table id="sizes" data-fixed-order>' in text) == bool(name)


def test_every_text_is_escaped():
    table = Table.of_strings([HOSTILE], [[HOSTILE]], title=HOSTILE, notes=[HOSTILE])
    html = blocks_to_html([Section("outer", [Section(HOSTILE, [Text(HOSTILE, "warning"), table])])])
    assert html.count("&lt;/script&gt;&lt;script&gt;") == 7
    assert "<img" not in html


def test_half_of_a_character_is_written_as_an_escape(tmp_path):
    write_page(tmp_path / "page.html", "waiting.html.j2", title="page", text="folder\udcff")
    assert "folder\\udcff" in (tmp_path / "page.html").read_text()
