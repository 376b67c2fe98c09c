"""Parts of a Ray session that need no Ray."""

import os
import subprocess
import sys
import tempfile

import pytest
import ray
from ray._private.accelerators import NvidiaGPUAcceleratorManager

from fpp_sweep.spec.errors import InputError
from fpp_sweep.workers import session
from tests.kit.processes import ROOT


def test_a_second_session_of_a_process_is_refused_until_the_first_one_has_ended():
    """Two threads run a sweep each; Ray would fail in both, with pages of its logs."""
    refused = pytest.raises(InputError, match=r"^Ray: another thread of this process runs a sweep; wait for its end")
    with session._only_session(), refused, session.session(None, cpus=1, verbose=False):
        pass
    with session._only_session():
        pass


SESSION = """
import ray
from fpp_sweep.workers.session import session
with session(None, cpus=1, verbose=False):
    print(ray.get(ray.remote(lambda: __import__("sys").path).remote()))
"""


@pytest.mark.slow  # starts a session of Ray
def test_workers_import_nothing_from_the_current_folder_unless_the_driver_does(tmp_path):
    """A folder from another person may have a numpy.py."""
    words = [sys.executable, "-P", "-c", SESSION]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout


@pytest.mark.parametrize(("gpu_ids", "count"), [("-1", 0.0), ("", 0.0), ("1,3", 2.0), ("1,-1,3", 1.0), (None, 4.0)])
def test_ray_counts_the_gpus_that_cuda_shows(monkeypatch, gpu_ids, count):
    """Ray counts -1 as a GPU, where CUDA shows none. Only the number of this machine's GPUs is made up."""
    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", staticmethod(lambda: 4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpu_ids is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu_ids)
    assert session.gpus_of_this_machine() == count


@pytest.mark.slow  # starts a session of Ray
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
