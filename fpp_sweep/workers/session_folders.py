"""Temporary folders of drivers, and the end of a Ray session whose driver was killed.

A driver's folder has a file that names its machine and process, so that the next driver can remove what a dead driver
left. Ray notices a dead driver only after up to a minute. Therefore each session has a cleaner: a small process, this
file run as a script, that reads from a pipe of the driver. The pipe ends with the driver. Unless the driver has said
before that it closed the session itself, the cleaner kills the session's processes and removes its folder.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

OWNER_FILE = "owner"  # in a folder: name of the machine and id of the driver's process
SESSION_PREFIX = "ray-"  # prefix of the name of a session's folder
TUNE_PREFIX = "fpp_sweep-"  # prefix of the name of a folder for Tune's own records
PREFIXES = (SESSION_PREFIX, TUNE_PREFIX)
CLOSED = b"closed"  # sent by a driver to the cleaner after it has closed its session
SHORT_FOLDER = Path("/tmp")  # for a session if the requested folder's path is too long
MAX_TEMP_PATH = 24  # characters: the name of a socket below it has at most 107 bytes
RAY_FOLDER = "r"  # in a session's folder: the folder that Ray is given; the names of sockets in it must be short
SERVICE_LOGS = ("raylet.out", "gcs_server.out")  # services whose death ends the start of a session
MAX_REASON = 300  # characters of a log's line in a message
KILL_ROUNDS = 2  # the second one for processes that Ray started during the first one
KILL_SECONDS = 10.0  # for killed processes to disappear


def is_too_long(folder: Path) -> bool:
    """Return True if the sockets of a session below the folder would have names that are too long."""
    return len(str(folder)) >= MAX_TEMP_PATH


class DriverFolder(TemporaryDirectory[str]):
    """A temporary folder of this driver. If something in it cannot be removed, a later driver removes the folder."""

    def cleanup(self) -> None:
        """Remove the folder, the file of its owner last: without that file no later driver would touch the rest."""
        is_left = False
        for path in Path(self.name).glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
                is_left = is_left or path.exists()
        if is_left:
            self._finalizer.detach()  # type: ignore[attr-defined]  # it would remove the file of the owner
        else:
            super().cleanup()


def new_folder(prefix: str, parent: str) -> DriverFolder:
    """Create a temporary folder of this driver."""
    folder = DriverFolder(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    (Path(folder.name) / OWNER_FILE).write_text(_owner(os.getpid()))
    return folder


def remove_abandoned_folders(parent: str) -> None:
    """Remove folders of dead drivers of this machine and user that no process of Ray uses."""
    for folder, processes in folders_of_dead_drivers(parent):
        if not processes:
            shutil.rmtree(folder, ignore_errors=True)


def folders_of_dead_drivers(parent: str) -> Iterator[tuple[Path, list[psutil.Process]]]:
    """Yield folders that dead drivers of this machine and user have left, with the processes that still use them."""
    for prefix in PREFIXES:
        for folder in Path(parent).glob(f"{prefix}*"):
            with suppress(OSError, ValueError, OverflowError):  # not a driver's folder, or that of another user
                if _is_of_dead_driver(folder):
                    yield folder, session_processes(folder)


def _owner(process_id: int) -> str:
    return f"{platform.node()} {process_id}"


def _is_of_dead_driver(folder: Path) -> bool:
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        return False
    owner = (folder / OWNER_FILE).read_text()
    process_id = int(owner.rpartition(" ")[2])
    return owner == _owner(process_id) and not psutil.pid_exists(process_id)


@contextmanager
def cleaner(folder: str) -> Iterator[None]:
    """Run the cleaner of a session in this folder until the session is closed."""
    words = [sys.executable, __file__, folder]
    # another session of processes: Ctrl-C in a terminal, or a kill of the driver's group, must not reach the cleaner
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        with suppress(OSError):  # the cleaner is dead
            process.communicate(CLOSED)


def clean_after_driver(folder: Path) -> None:
    """Wait for the end of the driver; remove its session if it was not closed."""
    if sys.stdin.buffer.read() != CLOSED:
        remove_session(folder)


def remove_session(folder: Path) -> None:
    """Kill the processes of a session, and remove its folder."""
    for _ in range(KILL_ROUNDS):
        processes = session_processes(folder)
        for process in processes:
            with suppress(psutil.Error):  # ended meanwhile
                process.kill()
        psutil.wait_procs(processes, timeout=KILL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def fatal_message(folder: str) -> str:
    """Return the last fatal message in the logs of a session's services; empty if there is none.

    A service writes `[time C process thread] (service) file: message` before it ends itself. The message begins with
    advice to report a bug of Ray, and `Check failed:` is before the cause.
    """
    for name in SERVICE_LOGS:
        log = Path(folder, RAY_FOLDER, "session_latest", "logs", name)
        try:
            text = log.read_text(errors="replace")
        except OSError:  # the service has not begun
            continue
        messages = re.findall(r"^\[[^]]+ C [^]]+\] (.+)", text, re.MULTILINE)
        if messages:
            return f"{name}: {_shortened(messages[-1])}"
    return ""


def _shortened(message: str) -> str:
    cause = message.rpartition("Check failed: ")[2].strip()
    if len(cause) > MAX_REASON:
        return f"{cause[:MAX_REASON]} ..."
    return cause


def session_processes(folder: Path) -> list[psutil.Process]:
    """Return Ray's processes that use the folder, with all of their descendants."""
    processes: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid == os.getpid():  # a driver that gives up its own session
            continue
        with suppress(psutil.Error):  # ended meanwhile, or of another user
            if _is_of_ray(process) and _uses(process, folder):
                for member in (process, *process.children(recursive=True)):
                    processes[member.pid] = member
    return list(processes.values())


def _is_of_ray(process: psutil.Process) -> bool:
    words = process.cmdline()
    return bool(words) and (words[0].startswith("ray::") or any("/ray/" in word for word in words))


def _uses(process: psutil.Process, folder: Path) -> bool:
    """Return True for a process that names the folder, or has a file in it open.

    The command line of a worker is a title that names no folder, but its output goes to a log there.
    """
    if any(f"{folder}/" in word for word in process.cmdline()):
        return True
    return any(Path(file.path).is_relative_to(folder) for file in process.open_files())


if __name__ == "__main__":
    clean_after_driver(Path(sys.argv[1]))
