"""The process and its machine: cores, threads and signals."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")  # control groups, by which the system limits a container or a batch job
OWN_GROUPS = Path("/proc/self/cgroup")  # lines such as `0::/user.slice/job_17`


def set_thread_defaults() -> None:
    """Set how OpenMP and OpenBLAS threads wait and how many there are; call this before torch and numpy are imported.

    OpenMP threads that spin while they wait compete with other processes: a pretraining of the embedded model, on two
    shared cores, took 71 s of wall time and 23 CPU-seconds with spinning threads, and 17 s and 3.5 without. NumPy's own
    threads do not pay off either: the page of 1,000 trials took 19 CPU-seconds with two of them and 8 with one.
    Variables that the user has set stay as they are.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def cores() -> int:
    """Return the number of cores that this process may use: by its affinity, and by the quota of its container.

    A part of a core counts as a core: with a quota of 1.5 cores, two threads do more than one.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    for quota in cpu_quotas():
        count = min(count, math.ceil(quota))
    return max(1, count)


def group_folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups and of the groups around them.

    Version 2 has all files of a group in one folder, version 1 has a folder for each controller, such as `memory`.
    """
    if not OWN_GROUPS.is_file():
        return
    for line in OWN_GROUPS.read_text().splitlines():
        group = line.split(":", 2)[2].strip("/")
        for root in (ROOT, ROOT / controller):
            folder = root / group
            yield folder
            yield from folder.parents


def cpu_quotas() -> Iterator[float]:
    """Yield the numbers of cores that the groups may keep busy."""
    for folder in group_folders("cpu"):
        with suppress(OSError, ValueError):  # no such group, or `max` instead of a number
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError):
            quota_of_version_1 = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_of_version_1 > 0:  # -1: no quota
                yield quota_of_version_1 / int((folder / "cpu.cfs_period_us").read_text())


def readers(share: float = 1.0) -> int:
    """Return how many processes may read images beside one that computes, given its share of the machine's cores."""
    return max(1, int(cores() * share) - 1)


# ------------------------------------------------------------ signals


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM, which a shutdown or a batch system sends, interrupt the block as Ctrl-C does.

    The block may be inside another one, and SIGTERM stays ignored where it is ignored already.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGTERM) in (_interrupt, signal.SIG_IGN):
        yield
        return
    handler_before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler_before)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # batch systems send the signal twice
    raise KeyboardInterrupt


def let_sigterm_interrupt() -> None:
    """Let SIGTERM interrupt the main thread once more, in the block of `terminable`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def interrupts_wait(message: str) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, and print the message; a second Ctrl-C does not wait.

    An exception in the midst of an import may leave a lock held, and other threads then wait for it for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, _: object) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not received:
            os.write(2, f"{message}\n".encode())  # `print` may not be called while it runs
        received.append(number)

    handlers_before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell lets jobs in the background ignore Ctrl-C
            handlers_before[number] = signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
