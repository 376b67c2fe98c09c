"""cluster-onprem.yaml and the commands of docs/cluster.md, on machines with an sshd each and no way out."""

import re
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from fpp_sweep.space.reading import load_space
from tests.cluster.nodes import alive
from tests.kit.hosts import Machine, hosts, why_not
from tests.kit.processes import ROOT, assert_same_as_in_one_process, only_sweep
from tests.kit.waiting import wait_for

CUT = 90.0  # seconds without a cable: longer than Ray waits for a machine
CHANGED = ("work.limit=24", "base.views.count=16", "search.concurrency=3")


def documented(beginning):
    """The one command of the document that begins so, as it stands there, for the machines that one has."""
    document = (ROOT / "docs/cluster.md").read_text().replace("\\\n", "")
    blocks = re.findall(r"^```bash\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s{2,}#.*", "", line) for block in blocks for line in block.splitlines()]
    (command,) = [line for line in lines if line.startswith(beginning)]
    return re.sub(r"\bcluster\.yaml", "cluster-onprem.yaml", command)


def filled_in(head, workers):
    """The file with the lines marked CHANGE changed, and packages from where these machines find them."""
    text = (ROOT / "cluster-onprem.yaml").read_text()
    own = {"head_ip": head, "worker_ips": f"[{', '.join(workers)}]", "ssh_user": "root"}
    for key, value in own.items():
        text, count = re.subn(rf"^(  {key}: ).*?(  # CHANGE.*)?$", rf"\g<1>{value}\g<2>", text, flags=re.MULTILINE)
        assert count == 1, key
    (line,) = re.findall(r"^```yaml\n(.*fpp_env.*\n)```", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    uv = re.compile(r"(?<=^setup_commands:\n)(?:  - .*\buv\b.*\n|  # .*\n){4}", re.MULTILINE)
    assert len(uv.findall(text)) == 1
    return uv.sub(line.replace("/srv/fpp_env", sys.prefix).replace("\\", r"\\"), text)


@dataclass
class Cluster:
    """The head, the workers, and the desk from which their owner uses them."""

    desk: Machine
    head: Machine
    workers: list[Machine]

    def write_file(self):
        workers = [machine.address for machine in self.workers]
        (self.desk.home / "clone/cluster-onprem.yaml").write_text(filled_in(self.head.address, workers))

    def type(self, command):
        return self.desk.run(f"cd clone; PATH={sys.prefix}/bin:$PATH; {command}")

    def on_head(self, command):
        return self.head.run(f". ~/.bashrc; {command}")

    def nodes(self):
        """Ray's own names of the machines that are in, by address."""
        return {node["NodeManagerAddress"]: node["NodeID"] for node in alive(self.head)}

    def wait_for_all(self, *, but=None):
        """Until all are in, those of `but` as other nodes than they were."""
        everybody = {self.head.address, *(machine.address for machine in self.workers)}
        old = (but or {}).items()
        wait_for(lambda: (nodes := self.nodes()).keys() == everybody and not old & nodes.items())

    def sweep(self):
        """The only one, where it is made, seen from outside."""
        return only_sweep(self.head.home / "fpp_cluster")

    def tune(self, *words):
        """The documented sweep, with more words."""
        command = documented("ray exec --tmux cluster.yaml 'cd ~/fpp_cluster/project && RAY_AUTH_MODE=token python")
        assert command.endswith("'")
        self.type(f"{command[:-1]} {' '.join(words)} 2>&1 | tee -a ~/tune.log'")

    def said(self):
        log = self.head.home / "tune.log"
        return log.read_text() if log.exists() else ""

    def has_finished(self):
        files = list(self.head.home.glob("fpp_cluster/sweeps/*/sweep.json"))
        return bool(files) and self.sweep().info().state == "finished"

    def complete(self):
        files = self.head.home.glob("fpp_cluster/sweeps/*/trials/trial-*.json")
        return [path for path in files if '"complete"' in path.read_text()]


def lay_out(site):
    """A desk with a clone, and the files that the document has one make."""
    desk, head, *workers = site.machines
    key = desk.home / ".ssh/fpp_cluster"
    key.write_text(site.key.read_text())
    key.chmod(0o600)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(desk.home / "clone")], check=True)
    cluster = Cluster(desk, head, workers)
    cluster.write_file()
    for beginning in ("mkdir -p ~/fpp_cluster", "git clone . ", "(umask 077; openssl"):
        cluster.type(documented(beginning))
    cluster.type("mkdir ~/fpp_cluster/data; pip freeze > ~/fpp_cluster/versions.txt")
    return cluster


def mislead(*machines):
    """The way out is through the second network, in which the others are not looked for."""
    for machine in machines:
        machine.run("ip route add default via 10.77.2.1")


def let_them_fail(cluster, site):
    """One machine loses its power, another its cable, a third is added; at the end all are in."""
    before = cluster.nodes()
    crashed, cut = cluster.workers
    cut.unplug()
    began = time.monotonic()
    crashed.kill()
    crashed.start()
    cluster.workers.append(site.add())
    cluster.write_file()
    cluster.type(f"{documented('ray up --no-restart')} --yes")
    joined = {cluster.head.address, crashed.address, cluster.workers[-1].address}
    wait_for(lambda: (nodes := cluster.nodes()).keys() == joined and nodes[crashed.address] != before[crashed.address])
    time.sleep(max(0.0, CUT - (time.monotonic() - began)))
    cut.plug()
    lost = {machine.address: before[machine.address] for machine in (crashed, cut)}
    cluster.wait_for_all(but=lost)


@pytest.mark.slow  # a cluster of two machines
@pytest.mark.skipif(why_not() != "", reason=why_not())
def test_the_documented_commands_run_a_sweep_on_two_machines_and_leave_nothing(tmp_path):
    with hosts(3, tmp_path / "m") as site:
        cluster = lay_out(site)
        cluster.type(f"{documented('ray up cluster.yaml')} --yes")
        cluster.wait_for_all()
        cluster.tune("--set", *CHANGED, "--workers", "2", "--trials", "2")
        wait_for(lambda: "error: " in cluster.said() or cluster.has_finished())
        assert "error: " not in cluster.said()
        # the driver still writes files of the report; rsync must not stop where one of them vanishes
        (cluster.sweep().path / ".being-written.partial").touch()
        cluster.type(documented("ray rsync-down"))
        cluster.type(documented("ray exec cluster.yaml 'tmux kill-server"))
        cluster.type(f"{documented('ray down')} --yes")
        sweep = only_sweep(cluster.desk.home / "clone")
        assert not list(sweep.path.rglob("*.partial"))
        space = load_space(ROOT / "search_spaces/smoke.yaml", CHANGED)
        trials = [record for record in sweep.trials() if record.kind == "trial"]
        assert len(trials) == 2
        assert_same_as_in_one_process(sweep, space, tmp_path / "cache", trials)
        wait_for(lambda: not any(machine.processes() for machine in (cluster.head, *cluster.workers)))


@pytest.mark.nightly
@pytest.mark.slow  # a cluster of four machines, one of them gone for 90 s
@pytest.mark.skipif(why_not() != "", reason=why_not())
def test_machines_come_go_and_come_back_under_a_sweep_and_nothing_is_left(tmp_path):
    with hosts(4, tmp_path / "m", networks=2) as site:
        cluster = lay_out(site)
        mislead(cluster.head, cluster.workers[1])
        cluster.type(f"{documented('ray up cluster.yaml')} --yes")
        cluster.wait_for_all()
        wait_for(lambda: "3 local.cluster.node" in cluster.on_head(documented("ray status")))
        refuse_strangers(cluster)
        cluster.tune("--set", *CHANGED, "--workers", "3", "--trials", "1000")
        wait_for(lambda: cluster.complete() or "error: " in cluster.said())
        assert "error: " not in cluster.said()
        wall = time.time()
        let_them_fail(cluster, site)
        came_back = len(cluster.complete())
        wait_for(lambda: len(cluster.complete()) > came_back)
        end_and_resume(cluster)
        assert cluster.sweep().info().work.workers_lost >= 1  # or the test proves nothing
        assert all("raylet" in str(machine.processes()) for machine in (cluster.head, *cluster.workers))
        cluster.type(documented("ray rsync-down"))
        cluster.type(documented("ray exec cluster.yaml 'tmux kill-server"))
        cluster.type(f"{documented('ray down')} --yes")
        compare(cluster, wall, tmp_path)
        wait_for(lambda: not any(machine.processes() for machine in (cluster.head, *cluster.workers)))


def refuse_strangers(cluster):
    """Check that Ray refuses clients without the token: on another machine, or in a shell that does not read it."""
    address = f"{cluster.head.address}:6379"
    for machine in (cluster.desk, cluster.head):
        stranger = machine.try_(f"export HOME=/tmp; {sys.prefix}/bin/ray status --address {address}")
        assert stranger.returncode != 0
        assert "local.cluster.node" not in stranger.stdout
        assert "oken" in stranger.stdout + stranger.stderr


def end_and_resume(cluster):
    cluster.type("ray exec cluster-onprem.yaml 'tmux send-keys C-c'")
    wait_for(lambda: cluster.sweep().info().state == "interrupted")
    more = str(len(cluster.complete()) + 1)
    cluster.tune("--set", *CHANGED, "--workers", "3", "--trials", more, "--resume")
    wait_for(lambda: cluster.sweep().info().state == "finished")


def compare(cluster, wall, folder):
    """Check that the synced sweep is complete; a trial that lost machines has the bits of a run in this process."""
    sweep = only_sweep(cluster.desk.home / "clone")
    records = sweep.trials()
    assert {record.state for record in records} == {"complete"}
    trials = [record for record in records if record.kind == "trial"]
    assert [record.number for record in trials] == list(range(len(trials)))
    struck = [record for record in trials if record.finished and record.finished > wall][:3]
    assert struck
    space = load_space(ROOT / "search_spaces/smoke.yaml", CHANGED)
    assert_same_as_in_one_process(sweep, space, folder / "cache", struck)
    assert (sweep.path / "report/sweep.html").is_file()
