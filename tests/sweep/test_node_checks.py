"""Findings on the nodes of a cluster before a sweep starts."""

import pytest

from fpp_sweep.checks.checks import REQUIRED, Finding
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep import node_checks


def finding(subject, state):
    return Finding(node="10.0.0.2", subject=subject, state=state, text=f"is {state}", remedy="repair it")


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks nodes with these findings."""

    def check_findings(*found):
        monkeypatch.setattr(node_checks, "readings_of_nodes", lambda *_, **__: {})
        monkeypatch.setattr(node_checks, "node_readings", lambda *_: {})
        monkeypatch.setattr(node_checks, "findings", lambda readings: found)
        node_checks.check_nodes(WorkerSpec(model="tiny"))

    return check_findings


def test_a_finding_that_changes_results_ends_the_sweep(check):
    with pytest.raises(InputError, match=r"10\.0\.0\.2: .* is wrong; repair it"):
        check(finding(min(REQUIRED), "wrong"))


def test_other_findings_are_noted_and_sound_ones_are_not(check, capsys):
    check(finding("open files", "ok"), finding("clock", "note"), finding("disk", "wrong"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["note: 10.0.0.2: clock is note; repair it", "note: 10.0.0.2: disk is wrong; repair it"]
