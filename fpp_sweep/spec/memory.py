"""The memory that the process may use, under the limits of the machine, of the process and of its container."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from fpp_sweep.spec.process import group_folders

# names of the files with a control group's limit and use, of version 2 and of version 1
LIMIT_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


class MemoryLimit(NamedTuple):
    """Bytes that a limit, or several of them together, leave to this process."""

    free: int  # bytes that the process may still take
    total: int  # bytes that the process may ever have


def memory() -> MemoryLimit:
    """Return what the limits of the machine, of this process and of its container leave to the process."""
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
