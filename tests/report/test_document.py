"""Documents as Markdown."""

from fpp_sweep.report.document import Document, Section, Text, document_to_markdown


def test_a_section_inside_a_section_has_a_heading_one_level_below():
    inner = Section("One dataset", [Text("of two")])
    document = Document("Comparison", [Section("Costs", [inner])])
    headings = [line for line in document_to_markdown(document).splitlines() if line.startswith("#")]
    assert headings == ["# Comparison", "## Costs", "### One dataset"]
