"""Resources of Ray's machines: how many workers they hold, which are free, and which machines are about to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import ray

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.workers.needs import ROUNDING, WorkerNeeds
from fpp_sweep.workers.ray_session import free_resources, machines_of_session

RELEASE_INTERVAL = 0.1  # seconds between two checks whether a node has room
RELEASE_TIMEOUT = 15.0  # seconds; a killed worker that still holds its resources then is not waited for


def wanted_workers(needs: WorkerNeeds) -> int:
    """Return how many workers there should be on the machines that are up now; at least one."""
    if needs.workers is not None:
        return needs.workers
    return needs.workers_with_room(machines_of_session())


def share_of_machine() -> float:
    """Return the share of its machine's GPUs that Ray has assigned to this process."""
    context = ray.get_runtime_context()
    assigned = context.get_assigned_resources()["GPU"]
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            return float(assigned / node["Resources"]["GPU"])
    return 1.0


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
                available = await asyncio.to_thread(free_resources)
                if node not in available:  # the machine is gone
                    return
                if available[node].get(kind, 0.0) >= amount - ROUNDING:
                    return
                await asyncio.sleep(RELEASE_INTERVAL)


def require_session() -> None:
    """Raise MachineError if a process of Ray's own session died; a cluster is not watched."""
    node: Any = ray._private.worker._global_node
    if node is None:
        return
    for kind, process in node.dead_processes():
        if kind in ("raylet", "gcs_server"):
            raise MachineError(f"Ray's {kind} (process {process.pid}) died; go on with --resume")
