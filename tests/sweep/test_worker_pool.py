"""Workers: at most all cores of a machine, a GPU if there is one, and nodes that fit the driver."""

import pytest

from fpp_sweep.checks.findings import Finding
from fpp_sweep.space.work import Work
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep import worker_pool
from fpp_sweep.sweep.worker_pool import gpus_of_a_worker
from fpp_sweep.workers import ray_session


@pytest.mark.parametrize(
    ("work", "gpus_of_session", "gpus"),
    [
        (Work(), 0.0, 0.0),
        (Work(), 2.0, 1.0),
        (Work(device="cuda"), 0.0, 1.0),  # the machines of a cluster may have GPUs
        (Work(device="cpu"), 2.0, 0.0),
        (Work(gpus_per_worker=0.5), 2.0, 0.5),
    ],
)
def test_a_worker_gets_a_gpu_if_there_is_one_and_the_space_allows_it(work, gpus_of_session, gpus):
    assert gpus_of_a_worker(work, gpus_of_session) == gpus


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a cluster on whose node 10.0.0.2 is found what it is given."""

    def check_findings(*found):
        monkeypatch.setattr(ray_session, "on_every_node", lambda *_, **__: {"10.0.0.2": list(found)})
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
    monkeypatch.setattr(ray_session, "on_every_node", lambda *_, **__: {"10.0.0.2": TimeoutError("no answer")})
    with pytest.raises(InputError, match=r"10\.0\.0\.2: code no answer; see with `ray status`"):
        worker_pool.check_nodes(WorkerSpec(model="tiny"))
