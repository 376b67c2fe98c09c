"""Deliveries that are killed, and servers that are: in the end everything is in MLflow, exactly once."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from fpp_sweep.spec.errors import InputError
from fpp_sweep.tracking import Shipper, check_store, ship, to_look
from fpp_sweep.tracking.store import Store
from tests.sweeps import build_sweep
from tests.tracking.stores import as_sets, contents, server
from tests.waiting import LONG, wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
# loads MLflow once, then for every step that it reads forks a process that delivers and is killed before that step,
# and tells how it ended; a step is what the database keeps of it, and the memory is written after each run
DELIVER = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.tracking import ship, shipper
from fpp_sweep.tracking.uri import load
load()
shipper.SAVE_EVERY = -1.0
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
        ship(SweepFolder(Path(sys.argv[1])), sys.argv[2])
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@contextmanager
def deliveries(folder, uri):
    """A process whose children deliver: write the step at which one is killed, read how it ended."""
    with subprocess.Popen(
        [sys.executable, "-c", DELIVER, str(folder.path), uri],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    ) as process:
        yield process


def expected(folder, tmp_path, empty_database):
    """What an undisturbed delivery leaves."""
    other = tmp_path / "undisturbed.db"
    other.write_bytes(empty_database.read_bytes())
    copy = build_sweep(tmp_path / "copy" / folder.path.name)
    ship(copy, f"sqlite:///{other}")
    return as_sets(contents(other))


def test_a_delivery_killed_at_many_steps_leaves_everything_once(tmp_path, database, uri, empty_database):
    check_store(uri)
    folder = build_sweep(tmp_path / "perturb-1")
    with deliveries(folder, uri) as process:
        for step in range(1, 21):
            print(step, file=process.stdin, flush=True)
            assert int(process.stdout.readline()) == signal.SIGKILL  # or the test proves nothing
            if step % 2:
                (folder.path / "shipped.json").unlink(missing_ok=True)
    assert 0 < len(contents(database)["runs"]) < 10
    ship(folder, uri)
    assert as_sets(contents(database)) == expected(folder, tmp_path, empty_database)


def test_a_server_down_for_the_whole_sweep_gets_everything_when_it_is_up(tmp_path, empty_database):
    with server(tmp_path, empty_database) as mlflow:
        folder = build_sweep(tmp_path / "perturb-1", trials=2, running=(0, 1), state="running", report=False)
        shipper = Shipper(folder, mlflow.uri)
        shipper.start()
        wait_for(lambda: shipper.status().error)
        folder = build_sweep(tmp_path / "perturb-1")
        shipper.nudge()
        assert shipper.close(0.0) == 10
        shipper.close(LONG)  # its last attempt is over
        with pytest.raises(InputError, match="connection refused; 0 records delivered, 10 left"):
            ship(folder, mlflow.uri)
        mlflow.start()
        assert ship(folder, mlflow.uri).created == 10
        (url,) = to_look(folder, mlflow.uri)
        assert url.startswith(f"{mlflow.uri}/#/experiments/")
        assert as_sets(contents(mlflow.database)) == expected(folder, tmp_path, empty_database)
        assert list((tmp_path / "server_artifacts").rglob("report/sweep.html"))


def test_a_server_killed_in_the_middle_is_caught_up_with(tmp_path, empty_database, monkeypatch):
    end, ended = Store.end, []

    def end_of_a_run(store, *arguments):
        if len(ended) == 3:
            mlflow.kill()
        ended.append(1)
        end(store, *arguments)

    monkeypatch.setattr(Store, "end", end_of_a_run)
    with server(tmp_path, empty_database) as mlflow:
        mlflow.start()
        folder = build_sweep(tmp_path / "perturb-1", running=range(6), state="running", report=False)
        shipper = Shipper(folder, mlflow.uri)
        shipper.start()
        wait_for(lambda: shipper.status().error)
        assert shipper.status().delivered == 3
        build_sweep(tmp_path / "perturb-1")
        shipper.nudge()
        mlflow.start()
        assert shipper.close(LONG) == 0
        assert shipper.status().error is None
        assert as_sets(contents(mlflow.database)) == expected(folder, tmp_path, empty_database)
