"""Findings as the table that `doctor` prints."""

from __future__ import annotations

from collections.abc import Iterable

from fpp_sweep.checks.checks import Finding


def finding_table(findings: Iterable[Finding], n_nodes: int) -> str:
    """Return a row for each finding, with the nodes that share it; a finding that is not ok has its remedy below."""
    nodes_by_finding: dict[Finding, list[str]] = {}
    for finding in findings:
        nodes_by_finding.setdefault(finding._replace(node=""), []).append(finding.node)
    names = {}
    for finding, nodes in nodes_by_finding.items():
        is_everywhere = len(nodes) == n_nodes > 1
        names[finding] = "all" if is_everywhere else ", ".join(nodes)
    node_width = max(len(name) for name in ["node", *names.values()])
    subject_width = max(len(finding.subject) for finding in names)
    lines = [f"{'node':{node_width}}  {'what':{subject_width}}  state  found"]
    for finding, name in names.items():
        lines.append(f"{name:{node_width}}  {finding.subject:{subject_width}}  {finding.state:5}  {finding.text}")
        if finding.state != "ok":
            lines.append(" " * (node_width + subject_width + 11) + finding.remedy)
    return "\n".join(lines)
