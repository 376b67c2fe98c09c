"""Access to the Ray session that a driver starts, tested from other processes."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray

from fpp_sweep.spec.errors import InputError
from fpp_sweep.workers import session
from tests.kit.processes import descendants, killed_at_end
from tests.kit.waiting import LONG

ROOT = Path(__file__).parent.parent.parent
SESSION_PROGRAM = """
import sys
from fpp_sweep.workers.session import session
with session(None, cpus=1, verbose=False):
    import ray

    class Worker:
        def ready(self):
            return True

    worker = ray.remote(Worker).remote()
    ray.get(worker.ready.remote())
    node = ray._private.worker._global_node
    print(ray.get_runtime_context().gcs_address, node.get_session_dir_path(), flush=True)
    sys.stdin.read()
"""
pytestmark = [
    pytest.mark.slow,  # starts Ray
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/net"),
]


def environment(home):
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return others | {"HOME": str(home), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


def open_session(home):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", SESSION_PROGRAM], env=environment(home), text=True, **pipes)


def listening_addresses(pids):
    """Return the addresses on which processes listen, in hexadecimal as /proc/net writes them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                sockets[f"socket:[{words[9]}]"] = words[1].partition(":")[0]
    addresses = []
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if link.is_symlink() and (target := os.readlink(link)) in sockets:
                addresses.append(sockets[target])
    return addresses


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_only_its_user_can_reach_a_session(tmp_path):
    home, stranger = tmp_path / "home", tmp_path / "stranger"
    home.mkdir()
    (stranger / ".ray").mkdir(parents=True)
    (stranger / ".ray/auth_token").write_text("0" * 64)
    with killed_at_end(open_session(home)) as process:
        address, folder = process.stdout.readline().split()
        addresses = listening_addresses([process.pid, *descendants(process.pid)])
        assert len(addresses) >= 5  # of the driver, Ray's services and a worker
        assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
        assert mode(home / ".ray") == 0o700
        assert (home / ".ray/auth_token").is_file()
        assert (
            mode(Path(folder).parent.parent) == 0o700
        )  # no other user can reach the sockets and logs below this folder
        client = [
            sys.executable,
            "-c",
            "import sys; from ray._raylet import GcsClient; GcsClient(sys.argv[1])",
            address,
        ]
        for user, is_refused in ((home, False), (stranger, True)):
            tried = subprocess.run(client, env=environment(user) | {"RAY_AUTH_MODE": "token"}, capture_output=True)
            assert (tried.returncode != 0) == is_refused
        _, stderr = process.communicate("", timeout=LONG)
    assert (process.returncode, stderr) == (0, "")
    assert not Path(folder).parent.parent.exists()


@pytest.mark.nightly
def test_a_token_that_others_could_read_becomes_private(tmp_path):
    (tmp_path / ".ray").mkdir(mode=0o755)
    token = tmp_path / ".ray/auth_token"
    token.write_text("1" * 64)
    with killed_at_end(open_session(tmp_path)) as process:
        process.stdout.readline()
        process.communicate("", timeout=LONG)
    assert (token.read_text(), mode(token.parent)) == ("1" * 64, 0o700)


@pytest.mark.nightly
def test_a_second_session_of_a_process_is_refused_until_the_first_one_has_ended():
    """Two threads run a sweep each; Ray would fail in both, with pages of its logs."""
    with session.session(None, cpus=1, verbose=False):
        refused = pytest.raises(InputError, match=r"^Ray: this process has a session already")
        with refused, session.session(None, cpus=1, verbose=False):
            pass
    assert not ray.is_initialized()


PATH_PROGRAM = """
import ray
from fpp_sweep.workers.session import session
with session(None, cpus=1, verbose=False):
    print(ray.get(ray.remote(lambda: __import__("sys").path).remote()))
"""


@pytest.mark.nightly
def test_workers_import_nothing_from_the_current_folder_unless_the_driver_does(tmp_path):
    """A folder from another person may have a numpy.py."""
    words = [sys.executable, "-P", "-c", PATH_PROGRAM]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout


@pytest.mark.nightly
def test_a_second_attempt_to_start_ray_is_announced_and_leaves_nothing_of_the_first_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(dir="/tmp"))
    init = ray.init
    attempts = []

    def init_that_fails_once(**options):
        init(**options)
        attempts.append(options["_temp_dir"])
        if len(attempts) == 1:
            raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", init_that_fails_once)
    with session.session(None, cpus=1, verbose=False):
        assert [os.path.exists(folder) for folder in attempts] == [False, True]
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "Ray does not start" in line]
    assert note.startswith("note: Ray does not start (The current node timed out during startup); free processors")
    assert note.endswith("; trying once more")
    assert os.listdir(os.environ["RAY_TMPDIR"]) == []
    os.rmdir(os.environ["RAY_TMPDIR"])
