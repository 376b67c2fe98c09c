"""The process and its machine: cores, memory, threads and signals."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def readers(share: float = 1.0) -> int:
    """Processes that read images beside one that computes: as this share of the machine's cores allows, up to four."""
    return max(1, min(4, int(cores() * share) - 1))


def memory() -> tuple[int, int]:
    """Bytes that this process may still take, and may ever have: the machine's, unless a limit is nearer."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    known = [(total, total)]
    if (told := Path("/proc/meminfo")).is_file():
        known += [(1024 * int(line.split()[1]), total) for line in told.read_text().splitlines() if "MemAvail" in line]
        pages = [page * int(count) for count in Path("/proc/self/statm").read_text().split()]
        held = ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5]))
        limits = [(resource.getrlimit(kind)[0], size) for kind, size in held]
        known += [(limit - size, limit) for limit, size in limits if limit != resource.RLIM_INFINITY]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            known += _of_group(line.split(":", 2)[2].strip("/"))
    return max(0, min(free for free, _ in known)), min(whole for _, whole in known)


def _of_group(group: str) -> Iterator[tuple[int, int]]:
    """What a container or a job, and those around it, may still take and may have; files' pages can be had back."""
    for root, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in (Path(root, group), *Path(root, group).parents):
            with suppress(OSError, ValueError):  # no such group, or no limit: `max`
                whole = int((folder / limit).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield whole - int((folder / used).read_text()) + int(stat.get("inactive_file", 0)), whole


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, which a machine that shuts down or a job system sends, interrupts as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a job system says it twice
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
