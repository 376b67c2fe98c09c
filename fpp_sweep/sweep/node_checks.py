"""Check every node of a Ray cluster before a sweep starts there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fpp_sweep.checks.findings import Finding, compare_machines
from fpp_sweep.checks.machine import check_machine
from fpp_sweep.checks.versions import LIBRARIES
from fpp_sweep.spec.errors import InputError, first_line
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.workers.session import on_every_node

SHARED_ENVIRONMENT = ("OMP_WAIT_POLICY", "FPP_SWEEP_CACHE")  # variables that workers on other machines need, too
REQUIRED = ("fpp_sweep", "code", "python", *LIBRARIES, "cache")  # a sweep does not begin if one of these is wrong
NODE_SECONDS = 60.0  # for a node to answer
NO_ANSWER = "see with `ray status` whether the node is up, and update its code"


def shared_environment() -> dict[str, str]:
    """Return the environment variables of this process that workers on other machines need, too."""
    return {name: os.environ[name] for name in SHARED_ENVIRONMENT if name in os.environ}


def findings_of_nodes(check: Callable[..., list[Finding]], *arguments: Any, seconds: float) -> dict[str, list[Finding]]:
    """Return what is found on every node of the Ray cluster, by the node's address."""
    findings = {}
    for node, found in on_every_node(check, *arguments, env=shared_environment(), seconds=seconds).items():
        if isinstance(found, BaseException):
            found = [Finding("wrong", first_line(found), NO_ANSWER, subject="code")]
        findings[node] = found
    return findings


def check_nodes(spec: WorkerSpec) -> None:
    """Raise InputError if results of a node would differ or fail; note whatever else `doctor` would report."""
    nodes = findings_of_nodes(check_machine, spec, True, seconds=NODE_SECONDS)
    for node, found in compare_machines({"driver": check_machine(spec, True), **nodes}).items():
        for finding in found:
            line = f"{node}: {finding.subject} {finding.text}; {finding.remedy}"
            if finding.state == "wrong" and finding.subject in REQUIRED:
                raise InputError(line)
            if finding.state != "ok":
                note(line)
