"""Simulated machines: Linux namespaces that have their own network, home folder, /tmp and sshd.

The machines reach each other and nothing else.
"""

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

HOME = Path("/root")  # the home folder of root in /etc/passwd, which sshd reads
TOOLS = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "unshare", "nsenter", "setpriv", "tmux")
NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc")
# A shell starts background processes with SIGINT ignored, and child processes inherit that; this resets it.
DEFAULT_SIGNALS = ("env", "--default-signal")
ENVIRONMENT = {
    "HOME": str(HOME),
    "USER": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
# The first process of a machine mounts the machine's private folders and then becomes sshd. A private folder may hide
# the source of another one, so all sources are bound below /mnt first. Folders after the third are mounted read-only.
BOOT_SCRIPT = """
set -e
read -r network_is_ready
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
save_source() {{ n=$((n + 1)); mkdir /mnt/$n; mount --bind "$1" /mnt/$n; }}
mount_saved() {{ n=$((n + 1)); mkdir -p "$1"; mount --bind /mnt/$n "$1"; }}
n=0; for source in {folder}/home {folder}/tmp {folder}/ssh {shared}; do save_source "$source"; done
n=0; for target in {home} /tmp /mnt/ssh {shared}; do
    mount_saved "$target"
    [ $n -lt 4 ] || mount -o remount,bind,ro "$target"
done
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
hostname {name}
exec {sshd} -D -f /dev/null -h /mnt/ssh/host -o UsePAM=no -o PermitRootLogin=yes -o PidFile=none -E /tmp/sshd.log
"""


def missing_requirement() -> str:
    """Return the reason why this computer cannot simulate machines, or an empty text if it can."""
    if os.geteuid():
        return "machines of namespaces need root"
    missing = [tool for tool in TOOLS if not _path_of(tool)]
    if missing:
        return f"machines of namespaces need {', '.join(missing)}"
    script = "ip link add name bridge0 type bridge && mount -t tmpfs t /mnt"
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "sh", "-c", script]
    attempt = subprocess.run(command, capture_output=True, text=True, check=False)
    if attempt.returncode:
        return f"machines of namespaces cannot be made here: {attempt.stderr.strip()}"
    return ""


@contextmanager
def hosts(count: int, folder: Path, *, networks: int = 1, shared: Sequence[str | Path] = ()) -> Iterator[Site]:
    """Start `count` machines that reach only each other, and stop them at the end of the block, also after a failure.

    Every machine sees this computer's programs. It can read the `shared` folders and the folders of this Python.
    """
    read_only = dict.fromkeys([sys.base_prefix, sys.prefix, *map(str, shared)])  # a dict, so that no folder is twice
    with ExitStack() as cleanup:
        switch = cleanup.enter_context(_switch(networks))
        site = Site(folder, switch, networks, list(read_only))
        cleanup.callback(site.stop)
        _make_key(site.key)
        _make_key(folder / "ssh/host")
        for _ in range(count):
            site.add()
        yield site


@dataclass
class Site:
    """Machines on the same networks (10.77.1.0, 10.77.2.0, ...); the owner of `key` can log in to all of them."""

    folder: Path
    switch: int  # ID of the process whose network namespace has the bridges
    networks: int
    shared: Sequence[str]  # folders that all machines can read
    machines: list[Machine] = field(default_factory=list)

    @property
    def key(self) -> Path:
        return self.folder / "ssh/user"

    def add(self) -> Machine:
        """Start one more machine and return it."""
        number = len(self.machines) + 1
        addresses = tuple(f"10.77.{network + 1}.{number + 1}" for network in range(self.networks))
        machine = Machine(self, f"m{number}", addresses)
        self.machines.append(machine)
        machine.start()
        return machine

    def stop(self) -> None:
        for machine in self.machines:
            if machine.process:
                machine.process.kill()  # before the first wait: the kernel takes seconds to remove a network
        for machine in self.machines:
            machine.kill()


@dataclass
class Machine:
    """A machine that can lose its power or its network and start again with the files on its disk."""

    site: Site
    name: str
    addresses: tuple[str, ...]  # by network
    process: subprocess.Popen[str] | None = None  # `unshare`, the parent of the machine's first process
    pid: int = 0  # the ID of the machine's first process on this computer

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def home(self) -> Path:
        """The path of the machine's home folder on this computer."""
        return self.site.folder / self.name / "home"

    def start(self) -> None:
        """Power the machine on and wait until its sshd accepts connections."""
        self._prepare_disk()
        dies_with_this_process = ["setpriv", "--pdeathsig", "KILL"]  # also when this process is killed
        in_namespaces = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*DEFAULT_SIGNALS, *dies_with_this_process, *in_namespaces, "bash", "-c", self._boot_script()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
        )
        self.pid = wait_for(self._first_process)
        for network in range(len(self.addresses)):
            self._add_cable(network)
        assert self.process.stdin
        self.process.stdin.write("network is ready\n")
        self.process.stdin.close()
        wait_for(lambda: self.run_unchecked("ss -Htln sport = :22").stdout)

    def kill(self) -> None:
        """Power the machine off: kill all its processes and remove its network."""
        if self.process is None:
            return
        self.process.kill()  # `unshare --kill-child` then kills the first process, and the kernel all the others
        self.process.wait()
        self.process = None
        wait_for(lambda: not Path(f"/proc/{self.pid}").exists())
        for network in range(len(self.addresses)):
            # not checked: the kernel may have removed the link already
            _ip(self.site.switch, "link", "del", self._cable(network), check=False)

    def unplug(self, network: int = 0) -> None:
        _ip(self.site.switch, "link", "set", self._cable(network), "down")

    def plug(self, network: int = 0) -> None:
        _ip(self.site.switch, "link", "set", self._cable(network), "up")

    def run_unchecked(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, which may fail, and return the completed process."""
        words = self._words_on_machine(command)
        return subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)

    def run(self, command: str) -> str:
        """Run a command on the machine, which must succeed, and return its output."""
        completed = self.run_unchecked(command)
        output = f"{completed.stdout[-4000:]}\n{completed.stderr[-4000:]}"
        assert completed.returncode == 0, f"{self.name}: {command}\n{output}"
        return completed.stdout

    def start_process(self, command: str, output: Path) -> subprocess.Popen[str]:
        """Start a command on the machine and return its process; the process dies when the machine is powered off."""
        with output.open("w") as log:
            words = self._words_on_machine(command)
            return subprocess.Popen(words, stdout=log, stderr=log, text=True, env=ENVIRONMENT)

    def _words_on_machine(self, command: str) -> list[str]:
        """Return the command line that runs a shell command in the machine's namespaces."""
        enter = [*DEFAULT_SIGNALS, "nsenter", "--target", str(self.pid), *NAMESPACES]
        return [*enter, "bash", "-c", f"cd ~; {command}"]

    def processes(self) -> dict[int, str]:
        """Return command lines by process ID, without sshd and without the shell that lists the processes."""
        listing = self.run(
            "for path in /proc/[0-9]*; do echo ${path#/proc/} $(tr '\\0' ' ' < $path/cmdline); done 2>/dev/null"
        )
        command_lines = {}
        for line in listing.splitlines():
            pid, _, command = line.partition(" ")
            is_listing = "/proc/[0-9]" in command
            is_sshd = pid == "1" or "sshd: " in command
            if command and not is_listing and not is_sshd:
                command_lines[int(pid)] = command
        return command_lines

    def _prepare_disk(self) -> None:
        for folder in ("home/.ssh", "tmp"):
            (self.home.parent / folder).mkdir(parents=True, exist_ok=True)
        (self.home.parent / "tmp").chmod(0o1777)
        (self.home / ".ssh/authorized_keys").write_text(self.site.key.with_suffix(".pub").read_text())
        self.home.chmod(0o700)
        (self.home / ".ssh").chmod(0o700)

    def _boot_script(self) -> str:
        shared = " ".join(f"'{folder}'" for folder in self.site.shared)
        ssh = self.home.parent / "ssh"
        if not ssh.exists():
            shutil.copytree(self.site.folder / "ssh", ssh)
        return BOOT_SCRIPT.format(
            folder=self.home.parent, home=HOME, shared=shared, name=self.name, sshd=_path_of("sshd")
        )

    def _first_process(self) -> int:
        assert self.process
        assert self.process.poll() is None, "the machine does not start"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _cable(self, network: int) -> str:
        """Return the name of the machine's link at the bridge of a network."""
        return f"{self.name}-{network}"

    def _add_cable(self, network: int) -> None:
        """Connect the machine to the bridge of a network; the machine gets no default route."""
        interface, cable = f"eth{network}", self._cable(network)
        switch = self.site.switch
        _ip(switch, "link", "add", cable, "type", "veth", "peer", "name", interface, "netns", str(self.pid))
        _ip(switch, "link", "set", cable, "master", f"switch{network}", "up")
        _ip(self.pid, "addr", "add", f"{self.addresses[network]}/24", "dev", interface)
        _ip(self.pid, "link", "set", interface, "up")
        _ip(self.pid, "link", "set", "lo", "up")


@contextmanager
def _switch(networks: int) -> Iterator[int]:
    """Yield the ID of a process whose network namespace has a bridge for each network.

    The bridges disappear with that process, and that process dies with this one.
    """
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
    with subprocess.Popen(command, env=ENVIRONMENT) as holder:
        try:
            our_namespace, its_namespace = Path("/proc/self/ns/net"), Path(f"/proc/{holder.pid}/ns/net")
            wait_for(lambda: our_namespace.readlink() != its_namespace.readlink())
            for network in range(networks):
                _ip(holder.pid, "link", "add", f"switch{network}", "type", "bridge")
                _ip(holder.pid, "addr", "add", f"10.77.{network + 1}.1/24", "dev", f"switch{network}")
                _ip(holder.pid, "link", "set", f"switch{network}", "up")
            yield holder.pid
        finally:
            holder.kill()


def _ip(process: int, *words: str, check: bool = True) -> None:
    """Run the `ip` command in the network namespace of a process."""
    command = ["nsenter", "--target", str(process), "--net", "ip", *words]
    subprocess.run(command, check=check, stderr=None if check else subprocess.DEVNULL)


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _path_of(tool: str) -> str | None:
    return shutil.which(tool, path=ENVIRONMENT["PATH"])
