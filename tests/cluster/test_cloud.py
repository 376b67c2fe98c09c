"""cluster.yaml's node types and commands under Ray's real autoscaler; machines are processes, GPUs are numbers."""

import json
import sys
import warnings

import pytest
import yaml

from fpp_sweep.records.folder import SweepFolder
from tests.cluster.nodes import alive
from tests.kit.hosts import hosts, why_not
from tests.kit.processes import ROOT
from tests.kit.waiting import wait_for

FAKE_HEAD = "f" * 51 + "00000"  # what Ray's fake provider calls the head
INSTANCE = {"CPU": 8, "GPU": 1, "object_store_memory": 200_000_000}  # what Ray would look up for the instance type
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
IDLE_MINUTES = 0.1
AUTOSCALER = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",  # as `ray up` has it
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def launched(config):
    """The file as it would be on the head, with the fake provider, and its own types and limits."""
    head, worker = config["available_node_types"]["head"], config["available_node_types"]["gpu_worker"]
    assert head["resources"] == {"CPU": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.autoscaler._private.util import prepare_config
    return prepare_config(config) | {
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": {"type": "external", "module": PROVIDER, "launch_multiple": True, "head_node_id": FAKE_HEAD},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "gpu_worker": worker | {"resources": INSTANCE, "node_config": {}},
        },
        "file_mounts": {},
    }


class Head:
    """The head node on a separate machine; all other nodes end with it."""

    def __init__(self, machine):
        self.machine = machine
        self.config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
        mounted = machine.home / "fpp_cluster"
        mounted.mkdir()
        (mounted / "env").symlink_to(sys.prefix)
        (mounted / "project").symlink_to(ROOT)
        (machine.home / ".ray").mkdir()
        (machine.home / ".ray/auth_token").write_text("0" * 64)
        (machine.home / "ray_bootstrap_config.yaml").write_text(json.dumps(launched(self.config)))
        (profile,) = [command for command in self.config["setup_commands"] if ".bashrc" in command]
        machine.run(profile)

    def start(self):
        assignments = " ".join(f"{key}={value}" for key, value in AUTOSCALER.items())
        (command,) = [each for each in self.config["head_start_ray_commands"] if "ray start" in each]
        self.machine.run(f"export {assignments}; {command}")

    def workers(self):
        """Return the IDs of the nodes that have a GPU, or None while no node answers."""
        nodes = alive(self.machine)
        assert len(nodes) - 1 <= self.config["max_workers"]
        return {node["NodeID"] for node in nodes if node["Resources"].get("GPU")} if nodes else None

    def lose(self, node):
        """A spot machine is taken away: every process of it, at once."""
        self.machine.run(f"pkill -KILL --full -- '[-]-node[_-]id={node}'")

    def complete(self):
        return len(
            [
                path
                for path in self.machine.home.glob("sweeps/*/trials/trial-*.json")
                if '"complete"' in path.read_text()
            ]
        )


@pytest.mark.nightly
@pytest.mark.slow  # the autoscaler, three nodes
@pytest.mark.skipif(why_not() != "", reason=why_not())
def test_machines_come_when_a_sweep_asks_are_replaced_when_lost_and_go_when_idle(tmp_path):
    with hosts(1, tmp_path / "m", shared=[ROOT]) as site:
        (machine,) = site.machines
        machine.run("ip route add default via 10.77.1.1")
        head = Head(machine)
        head.start()
        assert wait_for(lambda: head.workers() is not None)
        assert head.workers() == set()
        # a worker for each CPU share: there is no GPU for the device that work.gpus_per_worker=1 would ask for
        words = "--workers 2 --set work.cpus_per_worker=8 work.gpus_per_worker=0 work.threads=1 search.concurrency=2"
        sweep = f"python -m fpp_sweep.tune --space ~/fpp_cluster/project/search_spaces/smoke.yaml --trials 1000 {words}"
        driver = machine.start_process(f". ~/.bashrc; exec {sweep} --address auto", tmp_path / "log")
        wait_for(lambda: len(head.workers() or ()) == 2 or driver.poll() is not None)
        wait_for(lambda: head.complete() or driver.poll() is not None)
        assert driver.poll() is None, (tmp_path / "log").read_text()[-2000:]
        before = head.workers()
        head.lose(sorted(before)[0])
        wait_for(lambda: len((now := head.workers() or set()) - before) == 1 and len(now) == 2)
        done = head.complete()
        wait_for(lambda: head.complete() > done + 1)
        machine.run("pkill -TERM --full '[f]pp_sweep.tune'")
        assert driver.wait() == 130
        # all nodes have one address here, so that a trial's own process may be lost, too
        (folder,) = (machine.home / "sweeps").iterdir()
        assert SweepFolder.open(folder).info().work.workers_lost >= 1
        wait_for(lambda: head.workers() == set())
