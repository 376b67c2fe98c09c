"""Check every node of a Ray cluster before a sweep starts there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any

from fpp_sweep.checks.checks import REQUIRED, findings
from fpp_sweep.checks.probes import Readings, node_readings
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.workers.session import on_every_node

SHARED_ENVIRONMENT = ("OMP_WAIT_POLICY", "FPP_SWEEP_CACHE")  # variables that workers on other machines need, too
NODE_SECONDS = 60.0  # for a node to answer


def shared_environment() -> dict[str, str]:
    """Return the environment variables of this process that workers on other machines need, too."""
    return {name: os.environ[name] for name in SHARED_ENVIRONMENT if name in os.environ}


def readings_of_nodes(probe: Callable[..., Readings], *arguments: Any, seconds: float) -> dict[str, Readings]:
    """Return what a function of `probes` reads on every node of the Ray cluster, by the node's address."""
    return on_every_node(probe, *arguments, env=shared_environment(), seconds=seconds)


def check_nodes(spec: WorkerSpec) -> None:
    """Raise InputError if results of a node would differ or fail; note whatever else `doctor` would report."""
    token_key = secrets.token_hex()
    nodes = readings_of_nodes(node_readings, spec, token_key, seconds=NODE_SECONDS)
    driver = node_readings(spec, token_key) | {"clock": 0.0}
    for finding in findings({"driver": driver, **nodes}):
        line = f"{finding.node}: {finding.subject} {finding.text}; {finding.remedy}"
        if finding.state == "wrong" and finding.subject in REQUIRED:
            raise InputError(line)
        if finding.state != "ok":
            note(line)
