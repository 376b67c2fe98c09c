"""A cluster file of Ray's launcher: values that are still as shipped, and nodes that have not joined."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import yaml

MARK = "CHANGE"  # in a comment beside or above a value that its user must decide on
SHIPPED = (  # the marked values of cluster.yaml and cluster-onprem.yaml
    *("max_workers: 4", "region: us-west-2", "availability_zone: us-west-2a,us-west-2b,us-west-2c"),
    *("ImageId: &image ami-00000000000000000", "Ebs: {VolumeSize: 200, VolumeType: gp3}", "InstanceType: g6.2xlarge"),
    *("head_ip: 192.0.2.10", "worker_ips: [192.0.2.11, 192.0.2.12]", "ssh_user: ubuntu"),
    "ssh_private_key: ~/.ssh/fpp_cluster",
)


def undecided(text: str) -> list[str]:
    """Return the marked values of a cluster file that are as shipped."""
    values = []
    is_marked = False
    for line in text.splitlines():
        is_marked = is_marked or MARK in line
        if line.strip().startswith("#"):
            continue
        value = line.partition(" #")[0].strip()
        if is_marked and value in SHIPPED:
            values.append(value)
        is_marked = False
    return values


def missing_nodes(text: str, joined: Sequence[str]) -> list[str]:
    """Return a line for the nodes that the cluster file starts at the beginning and that have not joined."""
    cluster = yaml.safe_load(text)
    provider = cluster["provider"]
    if provider["type"] == "local":
        names = [provider["head_ip"], *provider["worker_ips"]]
        return [f"{name} has not joined" for name in names if socket.gethostbyname(name) not in joined]
    n_wanted = 1  # the head
    for node_type in cluster["available_node_types"].values():
        n_wanted += node_type.get("min_workers", 0)
    if len(joined) < n_wanted:
        return [f"{len(joined)} of {n_wanted} nodes have joined"]
    return []
