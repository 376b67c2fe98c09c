"""Documents as Markdown and as text."""

from fpp_sweep.report.document import (
    Code,
    Document,
    Section,
    Text,
    document_to_latex,
    document_to_markdown,
    document_to_text,
)
from fpp_sweep.report.table import Cell, Column, Row, Table


def test_a_section_inside_a_section_has_a_heading_one_level_below():
    inner = Section("One dataset", [Text("of two")])
    document = Document("Comparison", [Section("Costs", [inner])])
    headings = [line for line in document_to_markdown(document).splitlines() if line.startswith("#")]
    assert headings == ["# Comparison", "## Costs", "### One dataset"]


def test_what_is_for_pages_only_and_an_empty_text_leave_no_line_in_a_text():
    section = Section("Costs", [Text(""), Code("fpp-sweep show x"), Text("none")])
    assert document_to_text(Document("Comparison", [section])).splitlines() == ["", "Costs", "none"]


def test_a_table_in_latex_has_its_own_title_or_that_of_its_section():
    rows = [Row([Cell("1.0")])]
    tables = [Table(columns=[Column("ece")], rows=rows), Table(columns=[Column("ece")], rows=rows, title="Own")]
    text = document_to_latex(Document("Comparison", [Section("Costs", tables)]))
    first, second = text.split("\\begin{table", 1)[1].split("\\begin{table")
    assert "Costs" in first
    assert "Own" in second
    assert "Costs" not in second


DOCUMENT = Document(
    "Comparison <b>",
    [
        Section(
            "Costs",
            [
                Text("a sentence of several words"),
                Text(""),
                Code("fpp-sweep show x"),
                Section("Inner", [Text("inside")], anchor="inner"),
                Table.of_strings(["sweep"], [["a"]], title="Sizes"),
                Table.of_strings(["sweep"], [["b"]]),
            ],
        ),
        Section("", [Text("without a title")]),
    ],
)


def test_a_text_has_an_empty_line_above_titles_and_continues_sentences_indented():
    assert document_to_text(DOCUMENT, 14).splitlines() == [
        "", "Costs", "a sentence of", "  several", "  words", "", "Inner", "inside", "", "Sizes", "sweep", "a", "sweep",
        "b", "without a", "  title",
    ]  # fmt: skip


def test_markdown_has_headings_by_level_and_an_empty_line_between_blocks():
    assert document_to_markdown(DOCUMENT).splitlines() == [
        "# Comparison <b>", "", "## Costs", "", "a sentence of several words", "", "### Inner", "", "inside", "",
        "### Sizes", "", "| sweep |", "|---|", "| a |", "", "| sweep |", "|---|", "| b |", "", "## ", "",
        "without a title", "",
    ][:-1]  # fmt: skip


def test_latex_has_texts_as_comments():
    lines = document_to_latex(DOCUMENT).splitlines()
    comments = [line for line in lines if line.startswith("%")]
    assert comments == [
        r"% \usepackage{booktabs}", "% Costs", "% a sentence of several words", "% Inner", "% inside", "% ",
        "% without a title",
    ]  # fmt: skip
    assert [line for line in lines if line.startswith(r"\caption")] == [r"\caption{Sizes.}", r"\caption{Costs.}"]
