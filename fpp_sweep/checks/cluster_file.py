"""Check of a cluster file: values of the shipped file, and nodes that have not joined."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.checks.findings import Finding
from fpp_sweep.core.datasets.dataset import read_text
from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.files import MAX_HANDWRITTEN_BYTES

PLACEHOLDERS = ("192.0.2.", "ami-00000000000000000")  # addresses and an image of the shipped files


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A file of Ray's launcher: its text, and the values in it."""

    text: str
    values: Mapping[str, Any]


def read_cluster_file(path: Path) -> ClusterFile:
    """Return the content of a cluster file; raise InputError if it is not one."""
    text = read_text(path, "cluster file", MAX_HANDWRITTEN_BYTES)
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"cluster file {path} is not valid YAML: {message_in_one_line(error)}") from error
    if not isinstance(values, dict) or "provider" not in values:
        raise InputError(f"cluster file {path} has no `provider`; name a file of Ray's launcher")
    return ClusterFile(text, values)


def open_values(text: str) -> list[str]:
    """Return the lines of a cluster file that have a value of the shipped file which exists nowhere.

    >>> open_values("provider:\\n  head_ip: 192.0.2.10  # CHANGE\\n  ssh_user: me")
    ['line 2: head_ip: 192.0.2.10']
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        value = line.partition("#")[0].strip()
        if any(placeholder in value for placeholder in PLACEHOLDERS):
            lines.append(f"line {number}: {value}")
    return lines


def check_cluster_file(cluster_file: ClusterFile, joined: Sequence[str] | None) -> Finding:
    """Require own values in a cluster file, and all of its nodes among those that have joined, if they are known."""
    problems = open_values(cluster_file.text)
    if joined is not None:
        problems += missing_nodes(cluster_file.values, joined)
    if problems:
        return Finding("wrong", "; ".join(problems))
    return Finding("ok", "has own values")


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
