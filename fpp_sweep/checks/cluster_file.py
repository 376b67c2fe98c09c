"""Open values of a cluster file, and its nodes that have not joined."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

SHIPPED = (  # values of the shipped cluster files where they say CHANGE
    "max_workers: 4",
    "region: us-west-2",
    "availability_zone: us-west-2a,us-west-2b,us-west-2c",
    "ImageId: &image ami-00000000000000000",
    "Ebs: {VolumeSize: 200, VolumeType: gp3}",
    "InstanceType: g6.2xlarge",
    "head_ip: 192.0.2.10",
    "worker_ips: [192.0.2.11, 192.0.2.12]",
    "ssh_user: ubuntu",
    "ssh_private_key: ~/.ssh/fpp_cluster",
)


def open_values(text: str) -> dict[str, str]:
    """Return the values of a cluster file that are marked CHANGE and still as shipped, by `CHANGE in line N`.

    The mark may stand behind the value, or in a comment above it.
    """
    values = {}
    is_marked = False
    for number, line in enumerate(text.splitlines(), 1):
        is_marked = is_marked or "CHANGE" in line
        if line.strip().startswith("#"):
            continue
        value = line.partition(" #")[0].strip()
        if is_marked and value in SHIPPED:
            values[f"CHANGE in line {number}"] = value
        is_marked = False
    return values or {"CHANGE": ""}


def missing_nodes(cluster: Mapping[str, Any], joined: Sequence[str]) -> list[str]:
    """Return a line for each node that the cluster file starts at once and that has not joined."""
    provider = cluster["provider"]
    if provider["type"] == "local":
        names = [provider["head_ip"], *provider["worker_ips"]]
        return [f"{name} has not joined" for name in names if socket.gethostbyname(name) not in joined]
    expected = 1 + sum(kind.get("min_workers", 0) for kind in cluster["available_node_types"].values())
    if len(joined) < expected:
        return [f"{len(joined)} of {expected} nodes have joined"]
    return []
