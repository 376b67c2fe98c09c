"""Resources of Ray's machines: how much a worker needs, which machines have room, and which are about to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from fpp_sweep.spec.errors import InputError, MachineError

ROUNDING = 1e-6  # tolerance in CPUs or GPUs: Ray's resources are sums of floats
RELEASE_TIMEOUT = 15.0  # seconds; a killed worker that still holds its resources then is not waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNeeds:
    """Number of workers and the resources of each."""

    workers: int | None  # None: as many as the machines have room for
    cpus: float
    gpus: float
    env: dict[str, str]

    @property
    def scarce(self) -> tuple[str, float]:
        """The resource that limits the number of workers, and how much of it a worker takes."""
        if self.gpus:
            return "GPU", self.gpus
        return "CPU", self.cpus

    def wanted_workers(self) -> int:
        """Return how many workers there should be on the machines that are up now; at least one."""
        if self.workers is not None:
            return self.workers
        kind, amount = self.scarce
        return max(1, int(ray.cluster_resources().get(kind, 0) / amount + ROUNDING))


def require_room(needs: WorkerNeeds, *, may_grow: bool) -> str | None:
    """Raise InputError if no machine has room for a worker; return a note instead if the cluster may grow."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for kind, amount, key in (("GPU", needs.gpus, "gpus_per_worker"), ("CPU", needs.cpus, "cpus_per_worker")):
        most = max((machine.get(kind, 0.0) for machine in machines), default=0.0)
        if amount <= most:
            continue
        owner = "this machine has"
        if len(machines) > 1:
            owner = f"the {len(machines)} nodes of this cluster have at most"
        problem = f"work.{key}={amount:g}: {owner} {most:g} {kind}s"
        if may_grow:
            return f"{problem}; waiting for machines that have more"
        raise InputError(f"{problem}; lower work.{key}")
    return None


def draining_nodes() -> Collection[str]:
    """Return the nodes that are about to leave, by spot reclaim or `ray drain-node`; Ray has no public call for it."""
    with suppress(Exception):  # the head may be unreachable for a while
        return list(ray._private.state.state.get_draining_nodes())
    return ()


async def wait_released(node: str, needs: WorkerNeeds) -> None:
    """Return when a node has room for a worker again.

    Ray takes 5 s to end a process that does not react. If a worker starts before that, Ray asks for one more machine.
    """
    kind, amount = needs.scarce
    with suppress(Exception):  # the machine may be lost without notice
        async with asyncio.timeout(RELEASE_TIMEOUT):
            while True:
                available = await asyncio.to_thread(_available_resources)
                if node not in available or available[node].get(kind, 0.0) >= amount - ROUNDING:
                    return
                await asyncio.sleep(0.1)


def _available_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node."""
    return dict(ray._private.state.state.available_resources_per_node())


def require_session() -> None:
    """Raise MachineError if a process of Ray's own session died; a cluster is not watched."""
    node: Any = ray._private.worker._global_node
    if node is None:
        return
    for kind, process in node.dead_processes():
        if kind in ("raylet", "gcs_server"):
            raise MachineError(f"Ray's {kind} (process {process.pid}) died; go on with --resume")
