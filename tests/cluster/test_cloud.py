"""Test of cluster.yaml's node types and commands under Ray's real autoscaler.

Ray's fake provider starts a process instead of a cloud machine, and GPUs are only numbers in its configuration.
"""

import json
import sys
import warnings

import pytest
import yaml

from tests.cluster.nodes import live_nodes
from tests.kit.hosts import hosts, missing_requirement
from tests.kit.processes import ROOT, complete_records, only_sweep
from tests.kit.waiting import wait_for

FAKE_HEAD = "f" * 51 + "00000"  # the node ID of the head in Ray's fake provider
INSTANCE = {"CPU": 8, "GPU": 1, "object_store_memory": 200_000_000}  # on a cloud, Ray asks for these of the type
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
IDLE_MINUTES = 0.1
AUTOSCALER = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",  # `ray up` sets it
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def config_on_head(config):
    """Return the configuration that Ray copies to the head, with the fake provider and its types and limits."""
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
    """The head node on a simulated machine; all other nodes are processes there and end with it."""

    def __init__(self, machine):
        self.machine = machine
        self.config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
        folder = machine.home / "fpp_cluster"
        folder.mkdir()
        (folder / "env").symlink_to(sys.prefix)
        (folder / "project").symlink_to(ROOT)
        (machine.home / ".ray").mkdir()
        (machine.home / ".ray/auth_token").write_text("0" * 64)
        (machine.home / "ray_bootstrap_config.yaml").write_text(json.dumps(config_on_head(self.config)))
        (profile,) = [command for command in self.config["setup_commands"] if ".bashrc" in command]
        machine.run(profile)

    def start(self):
        """Run cluster.yaml's command that starts Ray on the head."""
        assignments = " ".join(f"{key}={value}" for key, value in AUTOSCALER.items())
        (command,) = [command for command in self.config["head_start_ray_commands"] if "ray start" in command]
        self.machine.run(f"export {assignments}; {command}")

    def gpu_nodes(self):
        """Return the IDs of the nodes that have a GPU, or None while Ray does not answer."""
        nodes = live_nodes(self.machine)
        assert len(nodes) - 1 <= self.config["max_workers"]
        if not nodes:
            return None
        return {node["NodeID"] for node in nodes if node["Resources"].get("GPU")}

    def has_replaced_one_of(self, nodes_before):
        """Return whether there are two GPU nodes, exactly one of which is new."""
        nodes = self.gpu_nodes() or set()
        return len(nodes) == 2 and len(nodes - nodes_before) == 1

    def kill_node(self, node_id):
        """Kill all processes of a node at once, as when the cloud takes a spot machine back."""
        self.machine.run(f"pkill -KILL --full -- '[-]-node[_-]id={node_id}'")

    def complete_trials(self):
        """Return the number of complete trials."""
        return len(complete_records(self.machine.home))


@pytest.mark.nightly
@pytest.mark.slow  # starts the autoscaler and three nodes
@pytest.mark.skipif(missing_requirement() != "", reason=missing_requirement())
def test_the_autoscaler_adds_nodes_for_a_sweep_replaces_lost_nodes_and_removes_idle_nodes(tmp_path):
    with hosts(1, tmp_path / "m", shared=[ROOT]) as site:
        (machine,) = site.machines
        machine.run("ip route add default via 10.77.1.1")
        head = Head(machine)
        head.start()
        wait_for(lambda: head.gpu_nodes() is not None)
        assert head.gpu_nodes() == set()
        # Workers ask for CPUs alone: with work.gpus_per_worker=1 they would use a GPU, and the nodes have none.
        words = "--workers 2 --set work.cpus_per_worker=8 work.gpus_per_worker=0 work.threads=1 search.concurrency=2"
        sweep = f"python -m fpp_sweep.tune --space ~/fpp_cluster/project/search_spaces/smoke.yaml --trials 1000 {words}"
        driver = machine.start_process(f". ~/.bashrc; exec {sweep} --address auto", tmp_path / "log")
        wait_for(lambda: len(head.gpu_nodes() or ()) == 2 or driver.poll() is not None)
        wait_for(lambda: head.complete_trials() or driver.poll() is not None)
        assert driver.poll() is None, (tmp_path / "log").read_text()[-2000:]
        nodes_before = head.gpu_nodes()
        head.kill_node(sorted(nodes_before)[0])
        wait_for(lambda: head.has_replaced_one_of(nodes_before))
        trials_before = head.complete_trials()
        wait_for(lambda: head.complete_trials() > trials_before + 1)
        machine.run("pkill -TERM --full '[f]pp_sweep.tune'")
        assert driver.wait() == 130
        # It may be more than one: all nodes have the same address here, so a trial's process may be lost, too.
        assert only_sweep(machine.home).info().work.workers_lost >= 1
        wait_for(lambda: head.gpu_nodes() == set())
