"""The process and its machine: cores, memory, threads and signals."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

MAX_READERS = 4  # processes that read images beside one that computes; more do not help it


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
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def readers(share: float = 1.0) -> int:
    """Return how many processes may read images beside one that computes, given its share of the machine's cores."""
    return max(1, min(MAX_READERS, int(cores() * share) - 1))


# ------------------------------------------------------------ memory


class MemoryLimit(NamedTuple):
    """Bytes that one limit leaves to this process."""

    free: int  # that the process may still take
    total: int  # that it may ever have


def memory() -> tuple[int, int]:
    """Return the bytes that this process may still take, and those that it may ever have.

    These are the machine's, unless a limit of the process or of its container is nearer.
    """
    import psutil  # start-up time: most commands do not compute

    machine = psutil.virtual_memory()
    limits = [MemoryLimit(machine.available, machine.total)]
    limits += _process_limits(psutil.Process().memory_info())
    limits += _container_limits()
    free = min(limit.free for limit in limits)
    total = min(limit.total for limit in limits)
    return max(0, free), total


def _process_limits(used: Any) -> Iterator[MemoryLimit]:
    """Yield the limits that `ulimit -v` and `ulimit -d` set, given what psutil says that the process uses."""
    for kind, field in ((resource.RLIMIT_AS, "vms"), (resource.RLIMIT_DATA, "data")):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY and hasattr(used, field):
            yield MemoryLimit(limit - getattr(used, field), limit)


def _container_limits() -> Iterator[MemoryLimit]:
    """Yield the limits of the control groups of a container or a batch job, which psutil does not know."""
    groups = Path("/proc/self/cgroup")  # lines such as `0::/user.slice/job_17`
    if not groups.is_file():
        return
    for line in groups.read_text().splitlines():
        group = line.split(":", 2)[2].strip("/")
        yield from _group_limits(Path("/sys/fs/cgroup"), group, "memory.max", "memory.current")
        yield from _group_limits(Path("/sys/fs/cgroup/memory"), group, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _group_limits(root: Path, group: str, limit_name: str, usage_name: str) -> Iterator[MemoryLimit]:
    """Yield the limits of a control group and of those around it (version 2 and 1 differ in folder and file names)."""
    folder = root / group
    for ancestor in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # no such group, or `max` instead of a number
            total = int((ancestor / limit_name).read_text())
            used = int((ancestor / usage_name).read_text())
            yield MemoryLimit(total - used + _reclaimable(ancestor / "memory.stat"), total)


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
    """Let SIGTERM, which a shutdown or a batch system sends, interrupt the block as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # batch systems send the signal twice
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
