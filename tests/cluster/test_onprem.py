"""Test of cluster-onprem.yaml and of the commands in docs/cluster.md, on simulated machines without internet."""

import re
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from fpp_sweep.space.reading import load_space
from tests.cluster.nodes import live_nodes
from tests.kit.hosts import Machine, hosts, missing_requirement
from tests.kit.processes import ROOT, assert_same_as_in_one_process, complete_records, only_sweep
from tests.kit.waiting import wait_for

UNPLUGGED_SECONDS = 90.0  # Ray gives up a machine that does not answer after a shorter time
OVERRIDES = ("work.limit=24", "base.views.count=16", "search.concurrency=3")


def documented(beginning):
    """Return the only command of docs/cluster.md with this beginning; it gets the file for machines on premises."""
    document = (ROOT / "docs/cluster.md").read_text().replace("\\\n", "")
    commands = []
    for block in re.findall(r"^```bash\n(.*?)^```", document, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith(beginning):
                commands.append(re.sub(r"\s{2,}#.*", "", line))
    (command,) = commands
    return re.sub(r"\bcluster\.yaml", "cluster-onprem.yaml", command)


def fill_in_cluster_file(head, workers):
    """Return cluster-onprem.yaml with the addresses of head and workers in the lines marked CHANGE.

    The commands that install packages with uv are replaced by the line of docs/cluster.md for an existing environment.
    """
    text = (ROOT / "cluster-onprem.yaml").read_text()
    values = {"head_ip": head, "worker_ips": f"[{', '.join(workers)}]", "ssh_user": "root"}
    for key, value in values.items():
        text, count = re.subn(rf"^(  {key}: ).*?(  # CHANGE.*)?$", rf"\g<1>{value}\g<2>", text, flags=re.MULTILINE)
        assert count == 1, key
    document = (ROOT / "docs/cluster.md").read_text()
    (use_environment,) = re.findall(r"^```yaml\n(.*fpp_env.*\n)```", document, re.MULTILINE)
    use_environment = use_environment.replace("/srv/fpp_env", sys.prefix)
    uv_commands = re.compile(r"(?<=^setup_commands:\n)(?:  - .*\buv\b.*\n|  # .*\n){4}", re.MULTILINE)
    assert len(uv_commands.findall(text)) == 1
    return uv_commands.sub(use_environment.replace("\\", r"\\"), text)


@dataclass
class Cluster:
    """The head, the workers, and the desk: the user's computer, where the commands of docs/cluster.md are typed."""

    desk: Machine
    head: Machine
    workers: list[Machine]

    @property
    def machines(self):
        """The machines on which Ray runs."""
        return (self.head, *self.workers)

    def write_cluster_file(self):
        """Write cluster-onprem.yaml with the addresses of the current machines into the clone."""
        workers = [machine.address for machine in self.workers]
        (self.desk.home / "clone/cluster-onprem.yaml").write_text(fill_in_cluster_file(self.head.address, workers))

    def type(self, command):
        """Run a command at the desk, in the clone, and return its output."""
        return self.desk.run(f"cd clone; PATH={sys.prefix}/bin:$PATH; {command}")

    def run_on_head(self, command):
        return self.head.run(f". ~/.bashrc; {command}")

    def nodes(self):
        """Return Ray's IDs of the live nodes by the address of their machine."""
        return {node["NodeManagerAddress"]: node["NodeID"] for node in live_nodes(self.head)}

    def has_exactly(self, machines, old_nodes):
        """Return whether the cluster has these machines and no other, and none of the old nodes.

        `old_nodes` has node IDs by address; a machine that joins again gets a new ID.
        """
        nodes = self.nodes()
        has_old_node = any(nodes.get(address) == node_id for address, node_id in old_nodes.items())
        return nodes.keys() == {machine.address for machine in machines} and not has_old_node

    def wait_for_all_nodes(self, *, old_nodes=None):
        """Wait until every machine is in the cluster; machines in `old_nodes` must have joined as new nodes."""
        wait_for(lambda: self.has_exactly(self.machines, old_nodes or {}))

    def wait_for_no_processes(self):
        """Wait until no process of the cluster or of the sweep is left on any machine."""
        wait_for(lambda: not any(machine.processes() for machine in self.machines))

    def sweep(self):
        """Return the only sweep, from the files on the head's disk."""
        return only_sweep(self.head.home / "fpp_cluster")

    def tune(self, *words):
        """Start the documented sweep with additional options; its output is added to a log."""
        command = documented("ray exec --tmux cluster.yaml 'cd ~/fpp_cluster/project && RAY_AUTH_MODE=token python")
        assert command.endswith("'")
        self.type(f"{command[:-1]} {' '.join(words)} 2>&1 | tee -a ~/tune.log'")

    def tune_log(self):
        """Return the output of the sweep's command so far."""
        log = self.head.home / "tune.log"
        return log.read_text() if log.exists() else ""

    def has_finished(self):
        """Return whether the sweep exists and is finished."""
        files = list(self.head.home.glob("fpp_cluster/sweeps/*/sweep.json"))
        return bool(files) and self.sweep().info().state == "finished"

    def complete_trials(self):
        """Return the files of the complete trials."""
        return complete_records(self.head.home / "fpp_cluster")

    def download_and_stop(self):
        """Run the documented commands that download the sweep, stop its session and stop Ray."""
        self.type(documented("ray rsync-down"))
        self.type(documented("ray exec cluster.yaml 'tmux kill-server"))
        self.type(f"{documented('ray down')} --yes")


def make_cluster(site):
    """Return a cluster that is not started; its desk has a clone and the files that docs/cluster.md asks for."""
    desk, head, *workers = site.machines
    key = desk.home / ".ssh/fpp_cluster"
    key.write_text(site.key.read_text())
    key.chmod(0o600)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(desk.home / "clone")], check=True)
    cluster = Cluster(desk, head, workers)
    cluster.write_cluster_file()
    for beginning in ("mkdir -p ~/fpp_cluster", "git clone . ", "(umask 077; openssl"):
        cluster.type(documented(beginning))
    cluster.type("mkdir ~/fpp_cluster/data; pip freeze > ~/fpp_cluster/versions.txt")
    return cluster


def route_through_second_network(*machines):
    """Set default routes through the second network, where the cluster's addresses are not.

    A program that takes the address of the default route for the machine's address then announces a wrong one.
    """
    for machine in machines:
        machine.run("ip route add default via 10.77.2.1")


def fail_and_add_machines(cluster, site):
    """Cut the power of one worker, unplug another for 90 s and add a third; wait until all are in the cluster."""
    nodes_before = cluster.nodes()
    crashed, unplugged = cluster.workers
    unplugged.unplug()
    unplugged_at = time.monotonic()
    crashed.kill()
    crashed.start()
    added = site.add()
    cluster.workers.append(added)
    cluster.write_cluster_file()
    cluster.type(f"{documented('ray up --no-restart')} --yes")
    crashed_node = {crashed.address: nodes_before[crashed.address]}
    wait_for(lambda: cluster.has_exactly([cluster.head, crashed, added], crashed_node))
    time.sleep(max(0.0, unplugged_at + UNPLUGGED_SECONDS - time.monotonic()))
    unplugged.plug()
    unplugged_node = {unplugged.address: nodes_before[unplugged.address]}
    cluster.wait_for_all_nodes(old_nodes=crashed_node | unplugged_node)


@pytest.mark.nightly
@pytest.mark.slow  # starts a cluster of two machines
@pytest.mark.skipif(missing_requirement() != "", reason=missing_requirement())
def test_the_documented_commands_run_a_sweep_on_two_machines_and_leave_no_process(tmp_path):
    with hosts(3, tmp_path / "m") as site:
        cluster = make_cluster(site)
        cluster.type(f"{documented('ray up cluster.yaml')} --yes")
        cluster.wait_for_all_nodes()
        cluster.tune("--set", *OVERRIDES, "--workers", "2", "--trials", "2")
        wait_for(lambda: "error: " in cluster.tune_log() or cluster.has_finished())
        assert "error: " not in cluster.tune_log()
        # A running driver renames such unfinished files, and rsync fails if a file vanishes: it must leave them out.
        (cluster.sweep().path / ".being-written.partial").touch()
        cluster.download_and_stop()
        sweep = only_sweep(cluster.desk.home / "clone")
        assert not list(sweep.path.rglob("*.partial"))
        space = load_space(ROOT / "search_spaces/smoke.yaml", OVERRIDES)
        trials = [record for record in sweep.trials() if record.kind == "trial"]
        assert len(trials) == 2
        assert_same_as_in_one_process(sweep, space, tmp_path / "cache", trials)
        cluster.wait_for_no_processes()


@pytest.mark.nightly
@pytest.mark.slow  # starts a cluster of four machines, one of which is unplugged for 90 s
@pytest.mark.skipif(missing_requirement() != "", reason=missing_requirement())
def test_a_sweep_survives_machines_that_crash_lose_their_network_and_join_and_leaves_no_process(tmp_path):
    with hosts(4, tmp_path / "m", networks=2) as site:
        cluster = make_cluster(site)
        route_through_second_network(cluster.head, cluster.workers[1])
        cluster.type(f"{documented('ray up cluster.yaml')} --yes")
        cluster.wait_for_all_nodes()
        wait_for(lambda: "3 local.cluster.node" in cluster.run_on_head(documented("ray status")))
        assert_clients_need_the_token(cluster)
        cluster.tune("--set", *OVERRIDES, "--workers", "3", "--trials", "1000")
        wait_for(lambda: cluster.complete_trials() or "error: " in cluster.tune_log())
        assert "error: " not in cluster.tune_log()
        failures_began = time.time()
        fail_and_add_machines(cluster, site)
        trials_before = len(cluster.complete_trials())
        wait_for(lambda: len(cluster.complete_trials()) > trials_before)
        interrupt_and_resume(cluster)
        assert cluster.sweep().info().work.workers_lost >= 1  # otherwise no failure reached the sweep
        assert all("raylet" in str(machine.processes()) for machine in cluster.machines)
        cluster.download_and_stop()
        assert_downloaded_sweep_is_correct(cluster, failures_began, tmp_path / "cache")
        cluster.wait_for_no_processes()


def assert_clients_need_the_token(cluster):
    """Check that Ray refuses clients without the token: on another machine, or in a shell that does not read it."""
    address = f"{cluster.head.address}:6379"
    for machine in (cluster.desk, cluster.head):
        answer = machine.run_unchecked(f"export HOME=/tmp; {sys.prefix}/bin/ray status --address {address}")
        assert answer.returncode != 0
        assert "local.cluster.node" not in answer.stdout
        assert "oken" in answer.stdout + answer.stderr  # "token" or "Token"


def interrupt_and_resume(cluster):
    """Interrupt the sweep with Ctrl-C, and resume it until it has one more trial."""
    cluster.type("ray exec cluster-onprem.yaml 'tmux send-keys C-c'")
    wait_for(lambda: cluster.sweep().info().state == "interrupted")
    trials = str(len(cluster.complete_trials()) + 1)
    cluster.tune("--set", *OVERRIDES, "--workers", "3", "--trials", trials, "--resume")
    wait_for(lambda: cluster.sweep().info().state == "finished")


def assert_downloaded_sweep_is_correct(cluster, failures_began, cache):
    """Check that all trials are complete, and that three that ended after the failures have the bits of one process."""
    sweep = only_sweep(cluster.desk.home / "clone")
    records = sweep.trials()
    assert {record.state for record in records} == {"complete"}
    trials = [record for record in records if record.kind == "trial"]
    assert [record.number for record in trials] == list(range(len(trials)))
    ended_later = [record for record in trials if record.finished and record.finished > failures_began]
    assert ended_later
    space = load_space(ROOT / "search_spaces/smoke.yaml", OVERRIDES)
    assert_same_as_in_one_process(sweep, space, cache, ended_later[:3])
    assert (sweep.path / "report/sweep.html").is_file()
