"""The control groups of this process, by which the system limits a container or a batch job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")  # lines such as `0::/user.slice/job_17`


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
