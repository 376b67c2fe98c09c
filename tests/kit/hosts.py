"""Simulated machines: namespaces with a network, a home, a /tmp and an sshd each, which reach nothing outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.waiting import wait_for

HOME = Path("/root")  # sshd takes it from /etc/passwd
TOOLS = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "unshare", "nsenter", "setpriv", "tmux")
NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc")
SIGNALS = (
    "env",
    "--default-signal",
)  # a test run in the background of a shell ignores SIGINT, and so would its children
CLEAN = {"HOME": str(HOME), "USER": "root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
# what a machine does before it is there; what lies below a private folder is put aside while that is laid over it
BOOT = """
set -e
read -r go
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
aside() {{ n=$((n + 1)); mkdir /mnt/$n; mount --bind "$1" /mnt/$n; }}
laid() {{ n=$((n + 1)); mkdir -p "$1"; mount --bind /mnt/$n "$1"; }}
n=0; for each in {folder}/home {folder}/tmp {folder}/ssh {shared}; do aside "$each"; done
n=0; for each in {home} /tmp /mnt/ssh {shared}; do
    laid "$each"
    [ $n -lt 4 ] || mount -o remount,bind,ro "$each"
done
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
hostname {name}
exec {sshd} -D -f /dev/null -h /mnt/ssh/host -o UsePAM=no -o PermitRootLogin=yes -o PidFile=none -E /tmp/sshd.log
"""


def why_not() -> str:
    """Why there can be no such machines here; nothing, if there can."""
    if os.geteuid():
        return "machines of namespaces need root"
    missing = [tool for tool in TOOLS if not _found(tool)]
    if missing:
        return f"machines of namespaces need {', '.join(missing)}"
    tried = subprocess.run(
        [
            "unshare",
            *NAMESPACES,
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            "ip link add name bridge0 type bridge && mount -t tmpfs t /mnt",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"machines of namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def hosts(count: int, folder: Path, *, networks: int = 1, shared: Sequence[str | Path] = ()) -> Iterator[Site]:
    """So many machines that reach each other and nothing else; however the test ends, they do.

    Each sees this machine's programs, and `shared` folders read-only; `python` is shared already.
    """
    with ExitStack() as ends:
        switch = ends.enter_context(_switch(networks))
        site = Site(folder, switch, networks, [*dict.fromkeys([sys.base_prefix, sys.prefix, *map(str, shared)])])
        ends.callback(site.end)
        _make_key(site.key)
        _make_key(folder / "ssh/host")
        for _ in range(count):
            site.add()
        yield site


@dataclass
class Site:
    """Machines on the same networks, 10.77.1.0 and so on, that admit everyone who has the key."""

    folder: Path
    switch: int  # the process whose network all cables lead to
    networks: int
    shared: Sequence[str]
    machines: list[Machine] = field(default_factory=list)

    @property
    def key(self) -> Path:
        return self.folder / "ssh/user"

    def add(self) -> Machine:
        """Start one more machine and return it."""
        number = len(self.machines) + 1
        machine = Machine(
            self, f"m{number}", tuple(f"10.77.{network + 1}.{number + 1}" for network in range(self.networks))
        )
        self.machines.append(machine)
        machine.start()
        return machine

    def end(self) -> None:
        for machine in self.machines:
            if machine.process:
                machine.process.kill()  # all at once: the kernel takes seconds to clear a network away
        for machine in self.machines:
            machine.kill()


@dataclass
class Machine:
    """One that can be used, lose its power or its network, and come back with what is on its disk."""

    site: Site
    name: str
    addresses: tuple[str, ...]  # one in each network
    process: subprocess.Popen[str] | None = None
    pid: int = 0  # of its first process

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def home(self) -> Path:
        """Its home folder, seen from outside."""
        return self.site.folder / self.name / "home"

    def start(self) -> None:
        """Power on, until one can log in."""
        self._prepare_disk()
        # they end with this process, be it killed
        command = [
            *SIGNALS,
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            *NAMESPACES,
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        self.process = subprocess.Popen(
            [*command, "bash", "-c", self._boot()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=CLEAN,
        )
        self.pid = wait_for(self._first_process)
        for network in range(len(self.addresses)):
            self._plug(network)
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.close()
        wait_for(lambda: self.try_("ss -Htln sport = :22").stdout)

    def kill(self) -> None:
        """Power off: every process at once, and the network with them."""
        if self.process is None:
            return
        self.process.kill()  # --kill-child: its first process goes, and with that one all others
        self.process.wait()
        self.process = None
        wait_for(lambda: not Path(f"/proc/{self.pid}").exists())
        for network in range(len(self.addresses)):
            _ip(self.site.switch, "link", "del", self._cable(network), check=False)  # the kernel may have been quicker

    def unplug(self, network: int = 0) -> None:
        _ip(self.site.switch, "link", "set", self._cable(network), "down")

    def plug(self, network: int = 0) -> None:
        _ip(self.site.switch, "link", "set", self._cable(network), "up")

    def try_(self, command: str) -> subprocess.CompletedProcess[str]:
        """A command in a shell on it, well or not."""
        return subprocess.run(self.words(command), capture_output=True, text=True, check=False, env=CLEAN)

    def run(self, command: str) -> str:
        """Run a command on the machine, which must succeed, and return its output."""
        done = self.try_(command)
        assert done.returncode == 0, f"{self.name}: {command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def start_process(self, command: str, output: Path) -> subprocess.Popen[str]:
        """A command that goes on meanwhile; it ends with the machine."""
        with output.open("w") as log:
            return subprocess.Popen(self.words(command), stdout=log, stderr=log, text=True, env=CLEAN)

    def words(self, command: str) -> list[str]:
        inside = [*SIGNALS, "nsenter", "--target", str(self.pid), *NAMESPACES]
        return [*inside, "bash", "-c", f"cd ~; {command}"]

    def processes(self) -> dict[int, str]:
        """Return the command lines of the machine's processes, except sshd and the process that lists them."""
        here = self.run(
            "for each in /proc/[0-9]*; do echo ${each#/proc/} $(tr '\\0' ' ' < $each/cmdline); done 2>/dev/null"
        )
        split = (line.split(" ", 1) for line in here.splitlines() if " " in line)
        found = {int(pid): command for pid, command in split}
        return {
            pid: each for pid, each in found.items() if pid > 1 and "/proc/[0-9]" not in each and "sshd: " not in each
        }

    def _prepare_disk(self) -> None:
        for each in ("home/.ssh", "tmp"):
            (self.home.parent / each).mkdir(parents=True, exist_ok=True)
        (self.home.parent / "tmp").chmod(0o1777)
        (self.home / ".ssh/authorized_keys").write_text(self.site.key.with_suffix(".pub").read_text())
        self.home.chmod(0o700)
        (self.home / ".ssh").chmod(0o700)

    def _boot(self) -> str:
        shared = " ".join(f"'{each}'" for each in self.site.shared)
        ssh = self.home.parent / "ssh"
        if not ssh.exists():
            shutil.copytree(self.site.folder / "ssh", ssh)
        return BOOT.format(folder=self.home.parent, home=HOME, shared=shared, name=self.name, sshd=_found("sshd"))

    def _first_process(self) -> int:
        assert self.process
        assert self.process.poll() is None, "the machine does not start"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _cable(self, network: int) -> str:
        return f"{self.name}-{network}"

    def _plug(self, network: int) -> None:
        """No default route, as in a network of one's own."""
        inside, plug = f"eth{network}", self._cable(network)
        switch = self.site.switch
        _ip(switch, "link", "add", plug, "type", "veth", "peer", "name", inside, "netns", str(self.pid))
        _ip(switch, "link", "set", plug, "master", f"switch{network}", "up")
        _ip(self.pid, "addr", "add", f"{self.addresses[network]}/24", "dev", inside)
        _ip(self.pid, "link", "set", inside, "up")
        _ip(self.pid, "link", "set", "lo", "up")


@contextmanager
def _switch(networks: int) -> Iterator[int]:
    """A process with a bridge for each network, which end with it, and it with this process."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
    with subprocess.Popen(command, env=CLEAN) as holder:
        try:
            here, there = Path("/proc/self/ns/net"), Path(f"/proc/{holder.pid}/ns/net")
            wait_for(lambda: here.readlink() != there.readlink())
            for network in range(networks):
                _ip(holder.pid, "link", "add", f"switch{network}", "type", "bridge")
                _ip(holder.pid, "addr", "add", f"10.77.{network + 1}.1/24", "dev", f"switch{network}")
                _ip(holder.pid, "link", "set", f"switch{network}", "up")
            yield holder.pid
        finally:
            holder.kill()


def _ip(process: int, *words: str, check: bool = True) -> None:
    """A word with the network of a process."""
    command = ["nsenter", "--target", str(process), "--net", "ip", *words]
    subprocess.run(command, check=check, stderr=None if check else subprocess.DEVNULL)


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _found(tool: str) -> str | None:
    return shutil.which(tool, path=CLEAN["PATH"])
