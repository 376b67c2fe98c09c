"""A SLURM cluster of simulated machines, made with Debian's packages; all its files are in one folder."""

from __future__ import annotations

import secrets
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit import hosts
from tests.kit.hosts import Machine, Site
from tests.kit.processes import ROOT
from tests.kit.waiting import wait_for

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "curl")
SHARED = "/var/tmp"  # all machines can read and write it; their /tmp folders are separate
CONF = """
ClusterName=tests
SlurmctldHost={controller.name}({controller.address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdTimeout=30
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_requirement() -> str:
    """Return the reason why this computer cannot run such a cluster, or an empty text if it can."""
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=hosts.ENVIRONMENT["PATH"])]
    if missing:
        return f"SLURM needs {', '.join(missing)}"
    return hosts.missing_requirement()


@dataclass(frozen=True)
class Slurm:
    """A SLURM cluster: the first machine is the controller, the others are nodes."""

    site: Site
    folder: Path

    @property
    def nodes(self) -> list[Machine]:
        return self.site.machines[1:]

    @property
    def home(self) -> Path:
        """The folder that all machines share; it has a Python environment, and jobs are submitted there."""
        return self.folder / "home"

    def run(self, command: str) -> str:
        """Run a command on the controller and return its output."""
        controller = self.site.machines[0]
        return controller.run(f"export SLURM_CONF={self.folder}/slurm.conf; cd {self.home}; {command}").strip()

    def job(self, number: str) -> dict[str, str]:
        """Return the fields that SLURM shows of a job."""
        fields = {}
        for word in self.run(f"scontrol show job {number}").split():
            name, equals, value = word.partition("=")
            if equals:
                fields[name] = value
        return fields

    def start(self) -> None:
        """Configure and start the controller and the nodes, and wait until all nodes are idle."""
        for name in ("munge", "state", "home"):
            (self.folder / name).mkdir(mode=0o700)
        controller = self.site.machines[0]
        configuration = CONF.format(controller=controller, folder=self.folder)
        for node in self.nodes:
            configuration += f"NodeName={node.name} NodeAddr={node.address} Sockets=1 CoresPerSocket=2 CPUs=2\n"
        (self.folder / "slurm.conf").write_text(configuration)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # unused, but SLURM demands the file
        key = self.folder / "munge/key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = " ".join(f"--{name}-file={self.folder}/munge/{name}" for name in ("key", "pid", "log", "seed"))
        controller.run(f"munged --force --socket={self.folder}/munge/socket {files}")
        controller.run(f"slurmctld -f {self.folder}/slurm.conf")
        for node in self.nodes:
            node.run(f"slurmd -f {self.folder}/slurm.conf")
        wait_for(lambda: self.run("sinfo --noheader --states=idle --Node").count("\n") == len(self.nodes) - 1)


@contextmanager
def slurm(nodes: int) -> Iterator[Slurm]:
    """Start a SLURM cluster with this number of nodes, and stop it at the end of the block, also after a failure."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir=SHARED, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with hosts.hosts(nodes + 1, folder / "machines", shared=[ROOT]) as site:
            cluster = Slurm(site, folder)
            cluster.start()
            make_environment(cluster.home / "env")
            yield cluster


def make_environment(folder: Path) -> None:
    """Make a virtual environment with a `ray` command, whose packages are those of this checkout and of its tests."""
    import venv

    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "here.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    ray = folder / "bin/ray"
    ray.write_text(f"#!{folder}/bin/python\nfrom ray.scripts.scripts import main\nmain()\n")
    ray.chmod(0o755)
