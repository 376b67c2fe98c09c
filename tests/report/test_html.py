"""Tables and documents as parts of pages."""

import re

import pytest

from fpp_sweep.report.document import Code, Document, Picture, Section, Text
from fpp_sweep.report.html import blocks_to_html, write_document
from fpp_sweep.report.table import Cell, Column, Row, Table
from tests.kit.records import HOSTILE


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


def test_every_text_of_a_document_is_escaped(tmp_path):
    table = Table.of_strings([HOSTILE], [[HOSTILE]], title=HOSTILE, notes=[HOSTILE])
    blocks = [Text(HOSTILE, "warning"), Code(HOSTILE), table, Picture("<svg></svg>", HOSTILE)]
    inner = Section(HOSTILE, blocks, anchor=HOSTILE)
    document = Document(HOSTILE, [Section("outer", [inner], anchor="outer")], introduction=[Text(HOSTILE)])
    write_document(tmp_path / "page.html", document)
    page = (tmp_path / "page.html").read_text()
    assert page.count("&lt;/script&gt;&lt;script&gt;") == 13
    assert "<img" not in page
    assert '<a href="#outer">outer</a>' in page
    assert "<h3>&lt;/script" in page
    assert "<svg></svg>" in page


def test_half_of_a_character_is_written_as_an_escape(tmp_path):
    write_document(tmp_path / "page.html", Document("page", [Section("a", [Text("folder\udcff")])]))
    assert "folder\\udcff" in (tmp_path / "page.html").read_text()
