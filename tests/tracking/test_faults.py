"""Deliveries that are killed, and servers that are: in the end everything is in MLflow, exactly once."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fpp_sweep.errors import InputError
from fpp_sweep.tracking import Shipper, check_store, parent_url, ship
from tests.sweeps import build_sweep
from tests.tracking.stores import as_sets, contents, server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
# loads MLflow once, then for every line it reads forks a process that delivers, and tells its number
DELIVER = """
import os, sys
from pathlib import Path
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.tracking import ship
from fpp_sweep.tracking.address import load
_load()
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        ship(SweepFolder(Path(sys.argv[1])), sys.argv[2])
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@contextmanager
def deliveries(folder, uri):
    """A process whose children deliver: write a line to start one, read its number, then how it ended."""
    with subprocess.Popen(
        [sys.executable, "-c", DELIVER, str(folder.path), uri],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process


def wait_until(holds, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def expected(folder, tmp_path, empty_database):
    """What an undisturbed delivery leaves."""
    other = tmp_path / "undisturbed.db"
    other.write_bytes(empty_database.read_bytes())
    copy = build_sweep(tmp_path / "copy" / folder.path.name)
    ship(copy, f"sqlite:///{other}")
    return as_sets(contents(other))


def test_a_delivery_killed_at_many_moments_leaves_everything_once(tmp_path, database, uri, empty_database):
    check_store(uri)
    folder = build_sweep(tmp_path / "perturb-1")
    moments = random.Random(0)
    killed = 0
    with deliveries(folder, uri) as process:
        for number in range(12):
            print(file=process.stdin, flush=True)
            child = int(process.stdout.readline())
            time.sleep(moments.uniform(0.0, 0.9))
            with suppress(ProcessLookupError):  # it may have ended before
                os.kill(child, signal.SIGKILL)
            killed += int(process.stdout.readline()) == signal.SIGKILL
            if number % 2:
                (folder.path / "shipped.json").unlink(missing_ok=True)
    assert killed >= 3  # or the test proves nothing
    ship(folder, uri)
    assert as_sets(contents(database)) == expected(folder, tmp_path, empty_database)


def test_a_server_down_for_the_whole_sweep_gets_everything_when_it_is_up(tmp_path, empty_database):
    with server(tmp_path, empty_database) as mlflow:
        folder = build_sweep(tmp_path / "perturb-1", trials=2, running=(0, 1), state="running", report=False)
        shipper = Shipper(folder, mlflow.uri)
        shipper.start()
        wait_until(lambda: shipper.status().error)
        folder = build_sweep(tmp_path / "perturb-1")
        shipper.nudge()
        assert shipper.close(0.2) == 10
        with pytest.raises(InputError, match="connection refused; 0 records delivered, 10 left"):
            ship(folder, mlflow.uri)
        mlflow.start()
        wait_until(lambda: not _is_locked(folder))
        assert ship(folder, mlflow.uri).created == 10
        url = parent_url(folder, mlflow.uri)
        assert url is not None
        assert url.startswith(f"{mlflow.uri}/#/experiments/")
        assert as_sets(contents(mlflow.database)) == expected(folder, tmp_path, empty_database)
        assert list((tmp_path / "server_artifacts").rglob("report/sweep.html"))


def _is_locked(folder):
    import fcntl

    with (folder.path / "shipping.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_server_killed_in_the_middle_is_caught_up_with(tmp_path, empty_database):
    with server(tmp_path, empty_database) as mlflow:
        mlflow.start()
        folder = build_sweep(tmp_path / "perturb-1", running=range(6), state="running", report=False)
        shipper = Shipper(folder, mlflow.uri)
        shipper.start()
        wait_until(lambda: shipper.status().delivered >= 3)
        mlflow.kill()
        wait_until(lambda: shipper.status().error)
        build_sweep(tmp_path / "perturb-1")
        shipper.nudge()
        mlflow.start()
        assert shipper.close(90) == 0
        assert shipper.status().error is None
        assert as_sets(contents(mlflow.database)) == expected(folder, tmp_path, empty_database)
