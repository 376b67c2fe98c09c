"""All tasks of a worker run in one thread, as torch's CUDA graphs require."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import threading, time
    import ray
    from fpp_sweep.workers.session import session

    with session(None, cpus=1, verbose=False):
        import torch
        from fpp_sweep.core.compute.compiling import Compiler
        from fpp_sweep.workers.actors import CONCURRENCY_GROUPS, WorkerActor

        class Replaying(WorkerActor):
            def __init__(self):
                self._bar = None

            def build(self):
                torch.compile = lambda function, **options: function
                self._compiler = Compiler(torch.device("cpu"), frozen=[], constant_types=(), eager_calls=0)
                self._compiler._thread = threading.get_ident()  # as a compiler with CUDA graphs has

            def replay(self):
                time.sleep(0.01)
                return self._compiler(torch.neg, torch.ones(1)).item()

        actor = ray.remote(num_cpus=1, concurrency_groups=CONCURRENCY_GROUPS, **OPTIONS)(Replaying).remote()
        ray.get(actor.build.remote())
        replays, others = [], []
        for _ in range(20):
            replays.append(actor.replay.remote())
            others.append(actor.doing.options(concurrency_group="progress").remote())
        print("replayed", ray.get(replays).count(-1.0), len(ray.get(others)))
"""


def replay_in_actor(options):
    script = textwrap.dedent(SCRIPT).replace("**OPTIONS", options)
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.nightly
@pytest.mark.slow  # starts two Ray sessions
def test_graphs_are_built_and_replayed_in_one_thread_beside_other_calls():
    done = replay_in_actor("")
    assert "replayed 20 20" in done.stdout, done.stderr
    in_several = replay_in_actor("max_concurrency=4")
    assert "CUDA graphs must be built and replayed in the thread that made their compiler" in in_several.stderr
