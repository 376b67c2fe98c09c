"""Parts of a Ray session that need no Ray."""

import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest
import ray
from ray._private import ray_constants
from ray._private.accelerators import NvidiaGPUAcceleratorManager
from ray.exceptions import GetTimeoutError

from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.sweep.child_process import child_environment
from fpp_sweep.workers import actors, ray_session, session


def test_standard_error_is_silent_in_the_block_only(capfd):
    with session._silence_stderr():
        os.write(2, b"of compiled code\n")
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"


def test_a_session_has_its_folder_inside_one_that_only_its_user_can_enter(monkeypatch):
    started = []
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options))
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_session.start("/private", num_cpus=2)
    (options,) = started
    assert options["address"] == "local"
    assert options["_temp_dir"] == "/private/r"
    assert options["num_cpus"] == 2
    assert before == ray_constants.ENABLE_RAY_CLUSTER


def test_a_second_session_of_a_process_is_refused_until_the_first_one_has_ended():
    """Two threads run a sweep each; Ray would fail in both, with pages of its logs."""
    refused = pytest.raises(InputError, match=r"^Ray: another thread of this process runs a sweep; wait for its end")
    with session._only_session(), refused, session.session(None, cpus=1, verbose=False):
        pass
    with session._only_session():
        pass


OWN_SESSION = """
import sys
import ray
from fpp_sweep.spec.errors import InputError
from fpp_sweep.workers.session import session
ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1])
try:
    with session(None, cpus=1, verbose=False):
        pass
except InputError as error:
    print(error, ray.is_initialized())
ray.shutdown()
"""


@pytest.mark.slow  # starts a session of Ray
def test_a_program_that_has_begun_ray_itself_is_refused_and_keeps_its_session():
    with tempfile.TemporaryDirectory() as folder:  # its path is short, as sockets need
        words = [sys.executable, "-c", OWN_SESSION, folder]
        done = subprocess.run(words, env=child_environment(), capture_output=True, text=True)
    assert done.stdout == "Ray: this process has a session already; call ray.shutdown() first True\n", done.stderr


SESSION = """
import sys
import ray
from fpp_sweep.workers import ray_session
ray_session.start(sys.argv[1], num_cpus=1)
search_path = ray.get(ray.remote(lambda: __import__("sys").path).remote())
ray_session.end()
print(search_path)
"""


@pytest.mark.slow  # starts a session of Ray
def test_workers_import_nothing_from_the_current_folder_unless_the_driver_does(tmp_path):
    """A folder from another person may have a numpy.py."""
    with tempfile.TemporaryDirectory() as folder:  # its path is short, as sockets need
        words = [sys.executable, "-P", "-c", SESSION, folder]
        done = subprocess.run(words, cwd=tmp_path, env=child_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout


def test_ray_is_imported_for_the_number_of_gpus_after_its_environment_is_set(monkeypatch):
    for name in session.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)

    def import_ray_session():
        assert session.ENVIRONMENT.items() <= os.environ.items()
        return SimpleNamespace(count_own_gpus=lambda: 2.0)

    monkeypatch.setattr(session, "_import_ray_session", import_ray_session)
    assert session.gpus_of_this_machine() == 2.0


@pytest.mark.parametrize(("gpu_ids", "count"), [("-1", 0.0), ("", 0.0), ("1,3", 2.0), ("1,-1,3", 1.0), (None, 4.0)])
def test_ray_counts_the_gpus_that_cuda_shows(monkeypatch, gpu_ids, count):
    """Ray counts -1 as a GPU, where CUDA shows none. Only the number of this machine's GPUs is made up."""
    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", staticmethod(lambda: 4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpu_ids is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu_ids)
    assert session.gpus_of_this_machine() == count


def test_a_pools_status_fails_at_once_if_rays_session_is_gone(monkeypatch):
    """The scheduler is not asked, whose answer would take a minute."""

    def session_is_gone():
        raise MachineError("Ray's raylet (process 7) died; go on with --resume")

    monkeypatch.setattr(actors, "require_session", session_is_gone)
    pool = SimpleNamespace(scheduler=None, _ask=None)
    with pytest.raises(MachineError, match="raylet"):
        actors.Pool.status(pool)


@pytest.mark.parametrize(
    ("clock", "difference"), [(900.0, -100.0), (1000.0, 0.0), (1005.0, 0.0), (1010.0, 0.0), (1110.0, 100.0)]
)
def test_a_clock_is_ahead_or_behind_only_beyond_the_time_of_the_call(monkeypatch, clock, difference):
    """The call began at 1000 here and has ended by 1010."""
    monkeypatch.setattr(ray, "get", lambda reference, timeout: {"clock": clock, "code": {}})
    monkeypatch.setattr(ray_session.time, "time", lambda: 1010.0)
    assert ray_session._readings_of_node(None, 1000.0) == {"clock": difference, "code": {}}


def test_a_node_that_has_not_answered_in_time_is_not_waited_for(monkeypatch):
    def get(reference, timeout=None):
        assert timeout == 0
        raise GetTimeoutError("not ready")

    monkeypatch.setattr(ray, "get", get)
    assert ray_session._readings_of_node(None, 0.0) == {"answer": {"failed": "not ready"}}


def test_a_session_that_cannot_be_closed_is_removed(monkeypatch, tmp_path):
    removed = []
    monkeypatch.setattr(session, "_own_folders", [SimpleNamespace(name=str(tmp_path))])
    monkeypatch.setattr(session, "remove_session", removed.append)
    session.kill_session()
    assert removed == [tmp_path]


def test_calls_on_every_node_have_the_time_limit_of_the_caller(monkeypatch):
    calls = []
    stand_in = SimpleNamespace(on_every_node=lambda *call, **named: calls.append((call, named)))
    monkeypatch.setattr(session, "_import_ray_session", lambda: stand_in)
    session.on_every_node(len, "text", env={"A": "1"}, seconds=7.0)
    assert calls == [((len, "text"), {"env": {"A": "1"}, "seconds": 7.0})]
