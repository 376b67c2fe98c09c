"""Findings as the table that `doctor` prints."""

from __future__ import annotations

from collections.abc import Iterable

from fpp_sweep.checks.findings import Finding
from fpp_sweep.report.tables import aligned


def finding_table(findings: Iterable[Finding], n_nodes: int) -> str:
    """Return a row for each finding that nodes share; a finding that needs action is followed by the remedy."""
    nodes_by_finding: dict[Finding, list[str]] = {}
    for finding in findings:
        nodes_by_finding.setdefault(finding._replace(node=""), []).append(finding.node)
    rows = [["node", "what", "state", "found"]]
    for finding, nodes in nodes_by_finding.items():
        names = ", ".join(nodes)
        if len(nodes) == n_nodes > 1:
            names = "all"
        rows.append([names, finding.what, finding.state, finding.found])
        if finding.state != "ok":
            rows.append(["", "", "", finding.remedy])
    return "\n".join(aligned(rows, words=range(4)))
