"""A cluster whose machines join and leave: Ray nodes with their own addresses on this machine's loopback."""

import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fpp_sweep.space.reading import load_space
from tests.kit.processes import (
    SMALL_SPACE,
    assert_same_as_in_one_process,
    complete_records,
    descendants,
    kill_tree,
    killed_at_end,
    only_sweep,
    start_tune,
)
from tests.kit.waiting import LONG, wait_for

pytestmark = [
    pytest.mark.slow,  # starts two or three nodes and a driver
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.1 is the only address of the loopback"),
]
SPACE_WITHOUT_WORKER_LIMIT = SMALL_SPACE.replace(", workers: 1", "").replace("concurrency: 1", "concurrency: 2")
HEAD = "--head", "--port=0", "--include-dashboard=false"
RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def scratch(monkeypatch):
    """Yield a folder whose short name leaves room for socket names; set a token that protects the cluster."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="nodes-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def node(folder, ip, *words, room=1, before=(), env=None):
    """Start a node with room for `room` workers; yield its top process and its address.

    `before` is a command that runs the start command; `env` is added to its environment.
    """
    start = [*before, RAY, "start", "--block", f"--node-ip-address={ip}", f"--temp-dir={folder}", *words]
    # Port 0 means any free port: other nodes on this machine already use Ray's fixed ports.
    start += [f"--num-cpus={room}", f"--object-store-memory={10**8}", "--min-worker-port=0", "--max-worker-port=0"]
    with folder.with_suffix(".log").open("w") as log, killed_at_end(_start_process(start, log, env or {})) as top:
        address = folder / "ray_current_cluster"
        wait_for(lambda: address.is_file() and address.read_text())
        yield top.pid, address.read_text().strip()


def _start_process(command, log, env):
    return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | env)


def worker_pids(pid):
    return {child for child, line in descendants(pid).items() if "ray::WorkerActor" in line}


def room(address):
    """Return the CPUs of the cluster as Ray reports them: a lost node counts for some time."""
    status = subprocess.run([RAY, "status", f"--address={address}"], capture_output=True, text=True, check=True).stdout
    return sum(float(line.split()[0].partition("/")[2]) for line in status.splitlines() if line.endswith(" CPU"))


def test_a_machine_that_joins_is_used_and_a_lost_machine_costs_no_result(tmp_path, scratch):
    """The first machine's worker is suspended at first, so that the second machine does the work."""
    with node(scratch / "head", "127.0.0.2", *HEAD) as (head, address):
        words = "--address", address, "--trials", "8"
        with killed_at_end(start_tune(tmp_path, *words, space=SPACE_WITHOUT_WORKER_LIMIT)) as driver:
            wait_for(lambda: complete_records(tmp_path))
            (first,) = worker_pids(head)
            os.kill(first, signal.SIGSTOP)
            with node(scratch / "other", "127.0.0.3", f"--address={address}") as (other, _):
                wait_for(lambda: worker_pids(other))
                before = len(complete_records(tmp_path))
                wait_for(
                    lambda: len(complete_records(tmp_path)) >= before + 2
                )  # one of the two may come from the first machine
                assert driver.poll() is None
                kill_tree(other)
            wait_for(lambda: room(address) == 1)
            assert worker_pids(head) == {first}
            os.kill(first, signal.SIGCONT)
            out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, out + err
    sweep = only_sweep(tmp_path)
    work = sweep.info().work
    assert (work.model_loads, work.workers_lost) == (2, 1)
    assert [record.state for record in sweep.trials()] == ["complete"] * 9
    assert_same_as_in_one_process(sweep, load_space(tmp_path / "small.yaml"), tmp_path / "cache")


def test_a_sweep_that_lost_all_machines_continues_on_the_next_one(tmp_path, scratch):
    """Until Ray notices the loss, it starts replacements on the lost machine; they fail and are started again."""
    with ExitStack() as cluster:
        _, address = cluster.enter_context(node(scratch / "head", "127.0.0.2", *HEAD, room=0))
        join = f"--address={address}"
        other, _ = cluster.enter_context(node(scratch / "other", "127.0.0.3", join, room=3))
        driver = cluster.enter_context(
            killed_at_end(start_tune(tmp_path, "--address", address, space=SPACE_WITHOUT_WORKER_LIMIT))
        )
        wait_for(lambda: complete_records(tmp_path) and len(worker_pids(other)) == 3)
        kill_tree(other)
        wait_for(lambda: room(address) == 0)
        cluster.enter_context(node(scratch / "next", "127.0.0.4", join))
        out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, out + err
    sweep = only_sweep(tmp_path)
    assert [record.state for record in sweep.trials()] == ["complete"] * 5
    work = sweep.info().work
    assert work.model_loads == 4
    assert work.workers_lost >= 3  # replacements that were lost at their start may add to these


def test_a_worker_without_memory_fails_no_trial(tmp_path):
    """The worker stays alive and fails every task that needs new memory, because its shapes differ."""
    space = SMALL_SPACE.replace("workers: 1", "workers: 2").replace("concurrency: 1", "concurrency: 2")
    space = space.replace("views.count: 4, ", "").replace(
        "params:", "params:\n  views.count: [4, 6, 8, 10, 12, 14, 16, 20, 24]"
    )
    with killed_at_end(start_tune(tmp_path, "--trials", "16", space=space)) as driver:
        wait_for(lambda: len(worker_pids(driver.pid)) == 2)
        other, limited = worker_pids(driver.pid)
        os.kill(other, signal.SIGSTOP)
        before = len(complete_records(tmp_path))
        wait_for(
            lambda: len(complete_records(tmp_path)) >= before + 2
        )  # now the other worker has loaded its model and works
        resource.prlimit(limited, resource.RLIMIT_AS, (1, 1))  # the worker keeps its memory and gets no more
        os.kill(other, signal.SIGCONT)
        out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, out + err
    sweep = only_sweep(tmp_path)
    assert [(record.state, record.reason) for record in sweep.trials()] == [("complete", None)] * 17
    work = sweep.info().work
    assert work.model_loads >= 3
    assert work.workers_lost >= 1
    assert_same_as_in_one_process(sweep, load_space(tmp_path / "small.yaml"), tmp_path / "cache")
