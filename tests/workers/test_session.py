"""Access to the Ray session that a driver starts, tested from other processes."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.disks import mounted
from tests.kit.processes import descendants, killed_at_end
from tests.kit.stores import free_port
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
CLIENT_PROGRAM = """
import sys
from fpp_sweep.cli.command import run
from fpp_sweep.workers.session import session
def main():
    with session(sys.argv[1], cpus=1, verbose=False):
        print("in")
run(main)
"""
WRONG_TOKEN = (
    "the token is missing or wrong; copy the cluster's, by default ~/.ray/auth_token of its head, to this path"
)
NO_TOKEN = "the cluster asks for a token; put RAY_AUTH_MODE=token before the command (Ray reads ~/.ray/auth_token)"
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


def join(home, address, **more):
    command = [sys.executable, "-c", CLIENT_PROGRAM, address]
    return subprocess.run(command, env=environment(home) | more, capture_output=True, text=True, timeout=LONG)


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
        subprocess.run(client, env=environment(home) | {"RAY_AUTH_MODE": "token"}, check=True)
        for other_home, auth_mode, problem in (
            (stranger, "token", WRONG_TOKEN),
            (tmp_path, "token", WRONG_TOKEN),
            (home, "disabled", NO_TOKEN),
        ):
            refused = join(other_home, address, RAY_AUTH_MODE=auth_mode)
            assert refused.returncode == 2
            assert refused.stderr == f"error: --address {address}: {problem}\n"
        _, stderr = process.communicate("", timeout=LONG)
    assert (process.returncode, stderr) == (0, "")
    assert not Path(folder).parent.parent.exists()


def test_a_token_that_others_could_read_becomes_private(tmp_path):
    (tmp_path / ".ray").mkdir(mode=0o755)
    token = tmp_path / ".ray/auth_token"
    token.write_text("1" * 64)
    with killed_at_end(open_session(tmp_path)) as process:
        process.stdout.readline()
        process.communicate("", timeout=LONG)
    assert (token.read_text(), mode(token.parent)) == ("1" * 64, 0o700)


def test_an_unreachable_cluster_is_reported_in_one_line(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    done = join(tmp_path, address)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --address {address}: cannot be reached")


@pytest.mark.nightly
@pytest.mark.slow  # Ray waits half a minute for its own services
def test_a_failed_start_of_ray_is_reported_in_one_line(tmp_path):
    with mounted(tmp_path / "small", "size=64k") as small:
        short = Path(f"/tmp/small-{os.getpid()}")  # the names of sockets must be short
        short.symlink_to(small)
        env = os.environ | {"RAY_TMPDIR": str(short), "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", CLIENT_PROGRAM, "local"], env=env, capture_output=True, text=True)
        short.unlink()
    assert done.returncode == 1
    note, line = done.stderr.splitlines()
    assert note.startswith("note: Ray does not start (")
    assert line.startswith("error: Ray does not start (")
    assert line.endswith("); free processors, memory or disk, then go on with --resume")
