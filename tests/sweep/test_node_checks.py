"""Findings on the nodes of a cluster before a sweep starts."""

import pytest

from fpp_sweep.checks.findings import Finding
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep import worker_pool


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a cluster on whose node 10.0.0.2 is found what it is given."""

    def check_findings(*found):
        monkeypatch.setattr(worker_pool, "on_every_node", lambda *_, **__: {"10.0.0.2": list(found)})
        worker_pool.check_nodes(WorkerSpec(model="tiny"))

    return check_findings


def test_a_finding_that_changes_results_ends_the_sweep(check):
    with pytest.raises(InputError, match=r"10\.0\.0\.2: code abc, but most nodes have .*; bring every node"):
        check(Finding("ok", "abc", must_match="abc", subject="code"))


def test_other_findings_are_noted_and_sound_ones_are_not(check, capsys):
    check(Finding("ok", "4 GB", subject="memory"), Finding("wrong", "0644", "chmod 600", subject="token"))
    lines = [line for line in capsys.readouterr().err.splitlines() if "10.0.0.2" in line]
    assert lines == ["note: 10.0.0.2: token 0644; chmod 600"]


def test_a_node_that_fails_is_wrong_with_its_cause(check, monkeypatch):
    monkeypatch.setattr(worker_pool, "on_every_node", lambda *_, **__: {"10.0.0.2": TimeoutError("no answer")})
    with pytest.raises(InputError, match=r"10\.0\.0\.2: code no answer; see with `ray status`"):
        worker_pool.check_nodes(WorkerSpec(model="tiny"))
