"""Faults of a sweep, while it runs or between two of its drivers, with real signals, disks and servers."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fpp_sweep.tracking.sync_state import STATE_FILE
from tests.kit.processes import descendants
from tests.kit.stores import Server

DAY = 24 * 3600
MOVED_CLOCK = "CHAOS_CLOCK"  # see changed_python/sitecustomize.py
DISK_SIZE = "96m"  # size of the disk that holds the sweep


@dataclass(slots=True)
class Victim:
    """A sweep with the processes, servers and files that faults can hit."""

    root: Path
    name: str
    server: Server
    draw: random.Random
    link: Link | None = None  # between driver and server
    environment: dict[str, str] = field(default_factory=dict)  # variables of the next driver
    lost: int = 0  # number of results that faults have destroyed
    driver: subprocess.Popen[str] | None = None
    # the time and the function that ends a fault
    repairs: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / "sweeps" / self.name

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def processes(self, pattern: str) -> list[int]:
        """Return the driver's processes whose command line matches."""
        if not self.running:
            return []
        assert self.driver is not None
        return [pid for pid, line in descendants(self.driver.pid).items() if re.search(pattern, line)]

    def later(self, low: float, high: float, repair: Callable[[], object]) -> None:
        self.repairs.append((time.monotonic() + self.draw.uniform(low, high), repair))

    def repair(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        due = [entry for entry in self.repairs if all_of_them or entry[0] <= now]
        self.repairs = [entry for entry in self.repairs if entry not in due]
        for _, repair in due:
            repair()

    def file(self, pattern: str) -> Path | None:
        """Return a random file that matches, or None."""
        found = sorted(path for path in self.root.glob(pattern) if path.is_file() and not path.name.startswith("."))
        return self.draw.choice(found) if found else None


class Link:
    """A proxy between driver and server that counts requests; while it is cut, no data passes."""

    def __init__(self, port: int) -> None:
        self.requests = 0
        self._target = port
        self._up = threading.Event()
        self._up.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def cut(self) -> None:
        self._up.clear()

    def restore(self) -> None:
        self._up.set()

    def close(self) -> None:
        self.restore()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._up.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # the server is down
            near.close()
            return
        threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
        self._pump(near, far, counts=True)

    def _pump(self, source: socket.socket, target: socket.socket, *, counts: bool = False) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._up.wait()
                if counts and data.startswith((b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ")):
                    self.requests += 1
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


Strike = Callable[[Victim], bool]  # causes a fault; returns False if it finds no target


def kill_process(pattern: str) -> Strike:
    def strike(victim: Victim) -> bool:
        return any(_send_signal(pid, signal.SIGKILL) for pid in _pick_process(victim, pattern))

    return strike


def freeze_process(pattern: str) -> Strike:
    """Return a fault that suspends a process and resumes it some seconds later."""

    def strike(victim: Victim) -> bool:
        for pid in _pick_process(victim, pattern):
            if _send_signal(pid, signal.SIGSTOP):
                victim.later(1, 8, partial(_send_signal, pid, signal.SIGCONT))
                return True
        return False

    return strike


def kill_driver(victim: Victim) -> bool:
    assert victim.driver is not None
    return _send_signal(victim.driver.pid, signal.SIGKILL)


def terminate_driver(victim: Victim) -> bool:
    assert victim.driver is not None
    return _send_signal(victim.driver.pid, signal.SIGTERM)


def stop_store(victim: Victim) -> bool:
    if any(repair == victim.server.start for _, repair in victim.repairs):
        return False
    victim.server.kill()
    victim.later(2, 10, victim.server.start)
    return True


def cut_link(victim: Victim) -> bool:
    """Cut the link to MLflow, and restore it some seconds later."""
    if victim.link is None or not victim.link.is_up:
        return False
    victim.link.cut()
    victim.later(2, 10, victim.link.restore)
    return True


def move_clock(victim: Victim) -> bool:
    """Move the clock of the next driver's Python code back or forward by a day."""
    victim.environment[MOVED_CLOCK] = str(victim.draw.choice((-DAY, DAY)))
    return True


def fill_disk(victim: Victim) -> bool:
    """Fill the disk to the last byte, and free it some seconds later."""
    filler = victim.root / "sweeps/filler"
    if filler.exists() or not (victim.root / "sweeps").is_mount():
        return False
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    victim.later(1, 5, lambda: filler.unlink(missing_ok=True))
    return True


def damage_file(pattern: str) -> Strike:
    """Return a fault that truncates a file or changes some of its bytes."""

    def strike(victim: Victim) -> bool:
        path = victim.file(pattern)
        if path is None:
            return False
        data = bytearray(path.read_bytes())
        if not data:
            return False
        if victim.draw.random() < 0.5:
            del data[victim.draw.randrange(len(data)) :]
        else:
            for _ in range(20):
                data[victim.draw.randrange(len(data))] = victim.draw.randrange(256)
        path.write_bytes(data)
        victim.lost += path.suffix == ".task"
        return True

    return strike


def delete_file(pattern: str) -> Strike:
    def strike(victim: Victim) -> bool:
        path = victim.file(pattern)
        if path is not None:
            path.unlink(missing_ok=True)
            victim.lost += path.suffix == ".task"
        return path is not None

    return strike


def set_future_times(victim: Victim) -> bool:
    """Set the modification times of all files to tomorrow, as if the clock had been set back since."""
    tomorrow = time.time() + DAY
    paths = [path for path in victim.root.rglob("*") if path.is_file() and path.stat().st_uid == os.getuid()]
    for path in paths:
        with suppress(OSError):
            os.utime(path, (tomorrow, tomorrow))
    return bool(paths)


SWEEP = "sweeps/*"
# a trial's process has the first title while it works, and the second otherwise
TRIAL = r"ray::(TrialRunner|ResourceTrainable)"
# faults while the driver runs
RUNNING: dict[str, Strike] = {
    "worker killed": kill_process("ray::WorkerActor"),
    "worker frozen": freeze_process("ray::WorkerActor"),
    "scheduler killed": kill_process("ray::SchedulerActor"),
    "scheduler frozen": freeze_process("ray::SchedulerActor"),
    "trial's process killed": kill_process(TRIAL),
    "raylet killed": kill_process("raylet/raylet"),
    "raylet frozen": freeze_process("raylet/raylet"),
    "Ray's head service killed": kill_process("gcs_server"),
    "driver killed": kill_driver,
    "driver terminated": terminate_driver,
    "MLflow down": stop_store,
    "link to MLflow cut": cut_link,
    "disk full": fill_disk,
    "task damaged": damage_file(f"{SWEEP}/tasks/*/*.task"),
    "task deleted": delete_file(f"{SWEEP}/tasks/*/*.task"),
    "cached features damaged": damage_file("cache/**/*"),
    "files from the future": set_future_times,
}
# faults between two drivers
AT_REST: dict[str, Strike] = {
    "clock moved": move_clock,
    "record deleted": delete_file(f"{SWEEP}/trials/*.json"),
    "study damaged": damage_file(f"{SWEEP}/study.journal"),
    "MLflow's state damaged": damage_file(f"{SWEEP}/{STATE_FILE}"),
}


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk at the folder if that is allowed; yield True if it was mounted."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and not subprocess.run(command, check=False, capture_output=True).returncode
    try:
        yield bool(mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def _pick_process(victim: Victim, pattern: str) -> list[int]:
    found = victim.processes(pattern)
    return [victim.draw.choice(found)] if found else []


def _send_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
