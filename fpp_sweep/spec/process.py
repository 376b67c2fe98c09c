"""The process and its machine: cores, threads, memory and signals."""

from __future__ import annotations

import math
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/sys/fs/cgroup")  # control groups, by which the system limits a container or a batch job
# names of the files with a control group's limit and use, of version 2 and of version 1
LIMIT_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
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


# ------------------------------------------------------------ memory


class MemoryLimit(NamedTuple):
    """Bytes that a limit, or several of them together, leave to this process."""

    free: int  # bytes that the process may still take
    total: int  # bytes that the process may ever have


def memory() -> MemoryLimit:
    """Return what the limits of the machine, of this process and of its container leave to the process."""
    import psutil  # start-up time: few processes ask for it

    machine = psutil.virtual_memory()
    limits = [MemoryLimit(machine.available, machine.total)]
    limits += _process_limits(psutil.Process().memory_info())
    limits += _container_limits()
    free = min(limit.free for limit in limits)
    total = min(limit.total for limit in limits)
    return MemoryLimit(max(0, free), total)


def _process_limits(used: Any) -> Iterator[MemoryLimit]:
    """Yield the limits that `ulimit -v` and `ulimit -d` set; `used` is the use of memory as psutil reports it."""
    for kind, field in ((resource.RLIMIT_AS, "vms"), (resource.RLIMIT_DATA, "data")):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY and hasattr(used, field):
            yield MemoryLimit(limit - getattr(used, field), limit)


def _container_limits() -> Iterator[MemoryLimit]:
    """Yield the limits of the control groups of a container or a batch job, which psutil does not know."""
    for folder in group_folders("memory"):
        for limit_name, usage_name in LIMIT_FILES:
            with suppress(OSError, ValueError):  # no such group, or `max` instead of a number
                total = int((folder / limit_name).read_text())
                used = int((folder / usage_name).read_text())
                yield MemoryLimit(total - used + _reclaimable(folder / "memory.stat"), total)


def _reclaimable(statistics: Path) -> int:
    """Return the bytes of cached files, which the kernel counts as used and frees when they are needed."""
    for line in statistics.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


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
