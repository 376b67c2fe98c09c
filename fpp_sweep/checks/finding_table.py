"""Findings as the table that `doctor` prints."""

from __future__ import annotations

from collections.abc import Iterable

from fpp_sweep.checks.checks import Finding
from fpp_sweep.cli.terminal import terminal_width
from fpp_sweep.report.table import Table, to_text

HEADINGS = ("node", "what", "state", "found")


def finding_table(findings: Iterable[Finding], n_nodes: int) -> str:
    """Return a row for each finding that nodes share; a finding that needs action is followed by the remedy."""
    nodes_by_finding: dict[Finding, list[str]] = {}
    for finding in findings:
        nodes_by_finding.setdefault(finding._replace(node=""), []).append(finding.node)
    rows = []
    for finding, nodes in nodes_by_finding.items():
        names = ", ".join(nodes)
        if len(nodes) == n_nodes > 1:
            names = "all"
        rows.append([names, finding.subject, finding.state, finding.text])
        if finding.state != "ok":
            rows.append(["", "", "", finding.remedy])
    return to_text(Table.of_strings(HEADINGS, rows, text_columns=range(len(HEADINGS))), terminal_width())
