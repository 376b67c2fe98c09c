"""The needs of a worker: at most all cores of the machine, and a GPU if the machine has one."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fpp_sweep.space.work import Work
from fpp_sweep.sweep import worker_pool
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.worker_pool import gpus_of_a_worker, ray_session, session_cpus
from fpp_sweep.workers import actors
from tests.kit.spaces import small_space


@pytest.mark.parametrize(
    ("work", "cpus"),
    [(Work(), 4), (Work(workers=2), 4), (Work(workers=6), 6), (Work(workers=3, cpus_per_worker=1.5), 5)],
)
def test_a_session_has_the_cores_of_the_machine_or_as_many_as_its_workers_take(monkeypatch, work, cpus):
    monkeypatch.setattr(worker_pool, "cores", lambda: 4)
    assert session_cpus(work) == cpus


@pytest.mark.parametrize(
    ("work", "is_noted"),
    [(Work(), False), (Work(workers=4), False), (Work(workers=5), True), (Work(workers=3, cpus_per_worker=2), True)],
)
def test_more_workers_than_cores_are_noted(monkeypatch, capsys, work, is_noted):
    monkeypatch.setattr(worker_pool, "cores", lambda: 4)
    monkeypatch.setattr(worker_pool, "session", lambda *_, **__: nullcontext())
    with ray_session(replace(small_space(), work=work), Options()):
        expected = f"{work.workers} workers share 4 cores of this machine and wait for each other"
        assert (expected in capsys.readouterr().err) == is_noted


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


@pytest.mark.parametrize(("free_cpus", "is_noted"), [(0.0, True), (0.5, True), (1.0, False)])
def test_a_wait_for_a_busy_cluster_is_noted(monkeypatch, tmp_path, capsys, free_cpus, is_noted):
    """Ray is not started: the cluster has one node of two CPUs, and its pool opens at once."""
    monkeypatch.setattr(worker_pool, "machines_of_session", lambda: [{"CPU": 2.0}])
    monkeypatch.setattr(worker_pool, "free_resources", lambda: {"node": {"CPU": free_cpus}})
    monkeypatch.setattr(worker_pool, "check_nodes", lambda _: None)
    monkeypatch.setattr(actors, "start_pool", lambda *_, **__: SimpleNamespace(open=lambda: "model"))
    worker_pool.start_workers(small_space(), Options(address="127.0.0.1:6379"), tmp_path)
    note = "note: no node of the cluster has room for a worker now; waiting until other work on the cluster ends"
    assert (note in capsys.readouterr().err) == is_noted
