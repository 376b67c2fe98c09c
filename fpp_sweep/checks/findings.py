"""Findings: the results of checks on one machine, their comparison between machines, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from fpp_sweep.cli import terminal_width
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.spec.errors import message_in_one_line

State = Literal["ok", "note", "wrong"]
STATES = ("ok", "note", "wrong")  # in the order of the table: findings that need action stand last
HEADINGS = ("node", "what", "state", "found")
SAME_EVERYWHERE = "bring every node to the same state, and start Ray there again"


class Finding(NamedTuple):
    """The result of a check."""

    state: State
    text: str
    remedy: str = ""
    must_match: str = ""  # machines must have equal values; empty: not compared
    subject: str = ""


def run_check(subject: str, remedy: str, check: Callable[[], Finding]) -> Finding:
    """Return what a check found; an error that the check raises is a finding, too.

    >>> def check_sum():
    ...     raise ValueError("2 + 2 = 5")
    >>> run_check("sum", "buy a calculator", check_sum)[:3]
    ('wrong', '2 + 2 = 5', 'buy a calculator')
    """
    try:
        found = check()
    except Exception as error:
        found = Finding("wrong", message_in_one_line(error))
    return found._replace(subject=subject, remedy=found.remedy or remedy)


def compare_machines(findings: Mapping[str, Sequence[Finding]]) -> dict[str, list[Finding]]:
    """Return the findings by machine; a value that differs from that of most machines is wrong."""
    values: dict[str, Counter[str]] = {}
    for found in findings.values():
        for finding in found:
            if finding.must_match:
                values.setdefault(finding.subject, Counter())[finding.must_match] += 1
    compared: dict[str, list[Finding]] = {}
    for machine, found in findings.items():
        compared[machine] = []
        for finding in found:
            if finding.must_match and finding.state != "wrong":
                ((usual, _),) = values[finding.subject].most_common(1)
                if finding.must_match != usual:
                    text = f"{finding.text}, but most nodes have {usual}"
                    finding = finding._replace(state="wrong", text=text, remedy=SAME_EVERYWHERE)
            compared[machine].append(finding)
    return compared


def finding_table(findings: Mapping[str, Sequence[Finding]]) -> str:
    """Return a row for each finding that machines share; a finding that needs action is followed by the remedy."""
    machines_by_finding: dict[Finding, list[str]] = {}
    for machine, found in findings.items():
        for finding in found:
            machines_by_finding.setdefault(finding, []).append(machine)
    rows = []
    for finding in sorted(machines_by_finding, key=lambda finding: STATES.index(finding.state)):
        machines = machines_by_finding[finding]
        names = ", ".join(machines)
        if len(machines) == len(findings) > 1:
            names = "all"
        rows.append([names, finding.subject, finding.state, finding.text])
        if finding.state != "ok":
            rows.append(["", "", "", finding.remedy])
    return to_text(Table.of_strings(HEADINGS, rows, text_columns=range(len(HEADINGS))), terminal_width())
