"""After killed syncs, killed servers and failed requests, MLflow has everything exactly once."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from fpp_sweep import sync as command
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.tracking import BackgroundSync, check_store, mlflow_links, sync_folder
from fpp_sweep.tracking.folder_sync import SweepRuns
from fpp_sweep.tracking.sync_state import STATE_FILE
from tests.kit.records import build_sweep
from tests.kit.stores import as_sets, contents, faulty_proxy, proxy, server
from tests.kit.waiting import LONG, wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
# This program loads MLflow once. For every step number that it reads, it forks a process that syncs and is killed at
# that step, and prints the status of that process. A step is a commit of the database; each run saves the state.
SYNC_PROGRAM = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.tracking import folder_sync, sync
from fpp_sweep.tracking.uri import load_mlflow
load_mlflow()
folder_sync.SAVE_EVERY = -1.0
steps = 0

def step(_):
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "commit", step)
for line in sys.stdin:
    last = int(line)
    child = os.fork()
    if child == 0:
        sync.sync_folder(SweepFolder(Path(sys.argv[1])), sys.argv[2])
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@contextmanager
def forked_syncs(folder, uri):
    """Run a process whose children sync: write the step that kills a child, then read the child's status."""
    with subprocess.Popen(
        [sys.executable, "-c", SYNC_PROGRAM, str(folder.path), uri],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    ) as process:
        yield process


def sync_without_faults(folder, tmp_path, empty_database, **options):
    """Return the contents of a database after a sync without faults."""
    other = tmp_path / "undisturbed.db"
    other.write_bytes(empty_database.read_bytes())
    copy = build_sweep(tmp_path / "copy" / folder.path.name, **options)
    sync_folder(copy, f"sqlite:///{other}")
    return as_sets(contents(other))


@pytest.mark.nightly
def test_a_sync_killed_at_many_steps_leaves_everything_once(tmp_path, database, uri, empty_database):
    check_store(uri)
    folder = build_sweep(tmp_path / "perturb-1", trials=20)
    with forked_syncs(folder, uri) as process:
        for step in range(1, 21):
            print(step, file=process.stdin, flush=True)
            assert int(process.stdout.readline()) == signal.SIGKILL  # every sync was killed before its end
            if step % 2:
                (folder.path / STATE_FILE).unlink(missing_ok=True)
    assert 0 < len(contents(database)["runs"]) < 24
    sync_folder(folder, uri)
    assert as_sets(contents(database)) == sync_without_faults(folder, tmp_path, empty_database, trials=20)


def test_a_server_down_for_the_whole_sweep_gets_everything_when_it_is_up(tmp_path, empty_database):
    with server(tmp_path, empty_database) as mlflow:
        folder = build_sweep(tmp_path / "perturb-1", trials=2, running_trials=(0, 1), state="running", report=False)
        sync = BackgroundSync(folder, mlflow.uri)
        sync.start()
        wait_for(lambda: sync.status().error)
        folder = build_sweep(tmp_path / "perturb-1")
        sync.nudge()
        assert sync.close(0.0) == 10
        sync.close(LONG)  # waits until its last attempt has ended
        with pytest.raises(MachineError, match="connection refused; 0 runs written, 10 left"):
            sync_folder(folder, mlflow.uri, retry_for=0.0)
        mlflow.start()
        assert sync_folder(folder, mlflow.uri).created == 10
        (link,) = mlflow_links(folder, mlflow.uri)
        assert link.startswith(f"{mlflow.uri}/#/experiments/")
        assert as_sets(contents(mlflow.database)) == sync_without_faults(folder, tmp_path, empty_database)
        assert list((tmp_path / "server_artifacts").rglob("report/sweep.html"))


@pytest.mark.nightly
def test_a_server_killed_during_a_sync_gets_everything_after_its_restart(tmp_path, empty_database, monkeypatch):
    set_status, calls = SweepRuns.set_status, []

    def kill_server_at_the_fourth_call(*arguments):
        if len(calls) == 3:
            mlflow.kill()
        calls.append(1)
        set_status(*arguments)

    monkeypatch.setattr(SweepRuns, "set_status", kill_server_at_the_fourth_call)
    with server(tmp_path, empty_database) as mlflow:
        mlflow.start()
        folder = build_sweep(tmp_path / "perturb-1", running_trials=range(6), state="running", report=False)
        sync = BackgroundSync(folder, mlflow.uri)
        sync.start()
        wait_for(lambda: len(calls) > 3 and sync.status().error)
        assert sync.status().updated >= 3
        build_sweep(tmp_path / "perturb-1")
        sync.nudge()
        mlflow.start()
        assert sync.close(LONG) == 0
        assert sync.status().error is None
        assert as_sets(contents(mlflow.database)) == sync_without_faults(folder, tmp_path, empty_database)


def test_fifteen_runs_arrive_once_although_a_fifth_of_all_requests_fail(
    tmp_path, empty_database, monkeypatch, quick_retries, capsys
):
    monkeypatch.setattr("fpp_sweep.tracking.uri.CHECK_SECONDS", LONG)  # the first requests may fail too
    faults = []
    folder = build_sweep(tmp_path / "perturb-1", trials=11)
    with server(tmp_path, empty_database) as mlflow:
        mlflow.start()
        with faulty_proxy(mlflow.uri, share=0.2, seed=0, faults=faults) as address:
            command.main([str(folder.path), "--into", f"http://{address}"])
        output = capsys.readouterr()
        assert output.out.startswith("perturb-1: 15 runs brought up to date")
        assert "MLflow: trial-0" in output.err
        assert set(faults) == {500, 503, "drop", "lost"}
        assert len(faults) > 20
        everything = sync_without_faults(folder, tmp_path, empty_database, trials=11)
        assert as_sets(contents(mlflow.database)) == everything
        assert len(list((tmp_path / "server_artifacts").rglob("config.yaml"))) == 14


def test_artifacts_that_a_proxy_refuses_as_too_large_keep_nothing_else_from_mlflow(tmp_path, empty_database):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    for name in ("a", "b"):
        (folder.artifacts("trial-0001") / f"{name}.large").write_bytes(bytes(100_000))

    def refuse_large(request):
        return 413 if int(request.headers.get("Content-Length", 0)) >= 100_000 else None

    problem = r"trial-0001: 2 artifacts refused, such as a\.large: HTTP 413 .*; 5 runs written, 1 left"
    with server(tmp_path, empty_database) as mlflow:
        mlflow.start()
        with proxy(mlflow.uri, refuse_large) as address, pytest.raises(InputError, match=problem):
            sync_folder(folder, f"http://{address}")
        arrived = {path.name for path in (tmp_path / "server_artifacts").rglob("*") if path.is_file()}
        undisturbed = sync_without_faults(folder, tmp_path, empty_database, trials=2)
        assert as_sets(contents(mlflow.database)) == undisturbed
    expected = {path.name for path in folder.artifacts("trial-0001").rglob("*") if path.is_file()}
    assert expected - arrived == {"a.large", "b.large"}
