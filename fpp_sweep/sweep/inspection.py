"""Readings of this machine, or of every node of a Ray cluster, for `doctor`."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from requests.utils import get_environ_proxies, select_proxy

from fpp_sweep.checks import checks
from fpp_sweep.checks.cluster_file import ClusterFile, missing_nodes, open_values, read_cluster_file
from fpp_sweep.checks.data_probes import all_readings
from fpp_sweep.checks.datasets import (
    DatasetSurvey,
    copies_in_two_splits,
    dataset_table,
    survey_datasets,
    unreadable_images,
)
from fpp_sweep.checks.finding_table import finding_table
from fpp_sweep.checks.probes import Readings, measure_disk, run_probes
from fpp_sweep.spec.errors import InputError, escaped, problem_of_system
from fpp_sweep.sweep.doctor_target import NamedDatasets, Target
from fpp_sweep.sweep.node_checks import readings_of_nodes
from fpp_sweep.sweep.start_checks import plan_reading, room_here, room_on_cluster, start_readings
from fpp_sweep.tracking.stores import check_address, is_server, open_store, server_version, sqlite_file
from fpp_sweep.workers.session import session

STATES = ("ok", "note", "wrong")  # in the order of the table: what needs action stands last
NODE_SECONDS = 600.0  # for a node to answer: it loads the model, and classifies some images of every dataset


def cluster_file_of(path: Path | None) -> ClusterFile | None:
    """Read the cluster file, if one is given; raise InputError if it is not one."""
    if path is None:
        return None
    return read_cluster_file(path)


def survey(named: NamedDatasets) -> list[DatasetSurvey]:
    """Look for datasets and their splits; raise InputError for an unknown name or a dataset file with an error."""
    return survey_datasets(named.names, named.data_root, named.dataset_file)


def print_datasets(surveys: Sequence[DatasetSurvey], data_root: str | None, *, verify: bool) -> bool:
    """Print which datasets there are; return False if a requested one is missing or its splits share images.

    With `verify` open every image as well, and return False if one cannot be read, or if an own dataset has equal files
    in two splits.
    """
    print(dataset_table(surveys, data_root), flush=True)
    are_requested_sound = all(survey.is_sound for survey in surveys if survey.is_requested)
    if not verify:
        return are_requested_sound
    problems, n_images = unreadable_images(surveys)
    for problem in problems:
        print(escaped(problem))
    print(f"{n_images} images opened, {len(problems)} of them cannot be read")
    copies = copies_in_two_splits(surveys)
    for problem in copies:
        print(escaped(problem))
    return are_requested_sound and not problems and not copies


def print_findings(target: Target, cluster_file: ClusterFile | None) -> bool:
    """Print what was found on each machine; return whether nothing is wrong."""
    nodes = readings_by_machine(target, cluster_file)
    findings = checks.findings(nodes)
    print(finding_table(sorted(findings, key=lambda finding: STATES.index(finding.state)), len(nodes)))
    return all(finding.state != "wrong" for finding in findings)


def readings_by_machine(target: Target, cluster_file: ClusterFile | None) -> dict[str, Readings]:
    """Return the readings of this machine, or of the driver and every node of a cluster."""
    if not target.options.on_cluster:
        return {"here": _readings_here(target) | _output_readings(target) | _open_values(cluster_file)}
    token_key = secrets.token_hex()
    start: Readings = {}
    if target.space is not None:
        start = start_readings(target.space, target.options)  # before the cluster is joined, as a sweep does
    nodes, room = _readings_on_cluster(target, token_key)
    driver = all_readings(target.worker, token_key, (), ())
    driver["clock"] = 0.0  # the clock of a node is read as its difference from the driver's
    driver |= start | room | _output_readings(target) | _open_values(cluster_file)
    if cluster_file is not None:
        driver |= run_probes({"joined": lambda: missing_nodes(cluster_file.values, list(nodes))})
    return {"driver": driver, **nodes}


def _readings_here(target: Target) -> Readings:
    """Return the readings of this machine, and of the start of the sweep on it."""
    if target.space is None:
        return all_readings(target.worker, None, (), ())
    room = room_here(target.space)
    check_sweep = partial(plan_reading, target.space)
    readings = all_readings(target.worker, None, target.datasets, target.splits, check_sweep)
    return readings | room | start_readings(target.space, target.options)


def _readings_on_cluster(target: Target, token_key: str) -> tuple[dict[str, Readings], Readings]:
    """Join the cluster; return the readings of its nodes, by address, and the reading of the room for workers."""
    check_sweep = None
    room: Readings = {}
    with session(target.options.address, cpus=1, verbose=False):
        if target.space is not None:
            check_sweep = partial(plan_reading, target.space)
            room = room_on_cluster(target.space)
        arguments = (target.worker, token_key, target.datasets, target.splits, check_sweep)
        nodes = readings_of_nodes(all_readings, *arguments, seconds=NODE_SECONDS)
    return nodes, room


def _open_values(cluster_file: ClusterFile | None) -> Readings:
    if cluster_file is None:
        return {}
    return {"cluster file": open_values(cluster_file.text)}


def _output_readings(target: Target) -> Readings:
    """Return the readings of what the driver writes to: the folder of sweeps, and MLflow's store."""
    probes: dict[str, Callable[[], Any]] = {}
    if target.space is not None:
        probes["sweeps"] = partial(measure_disk, Path(target.options.root).absolute())
    if target.tracking_uri:
        probes["MLflow"] = partial(mlflow_versions, target.tracking_uri)
    return run_probes(probes)


def mlflow_versions(uri: str) -> tuple[str, str]:
    """Return the versions of MLflow on the server and here; a database has no version.

    Raise InputError for a store that cannot be used. A file is not made, and none is upgraded.
    """
    file = sqlite_file(uri)
    if file is None:
        _check_remote_store(uri)
    else:
        check_address(uri)
        _require_writable(file)
    ours = version("mlflow")
    if is_server(uri):
        return server_version(uri), ours
    return ours, ours


def _check_remote_store(uri: str) -> None:
    """Raise InputError for a store that cannot be used; name the proxy through which a server was not reached."""
    try:
        open_store(uri)
    except InputError as error:
        proxy = select_proxy(uri, get_environ_proxies(uri)) if is_server(uri) else None
        if proxy is None:
            raise
        host = urlsplit(uri).hostname
        address = proxy.rpartition("@")[2]  # without a name and password
        raise InputError(f"{uri}: not reached through the proxy {address}; add {host} to no_proxy") from error


def _require_writable(file: Path) -> None:
    """Raise InputError if a database's file, or the folder of its journal and lock, cannot be written; no byte changes.

    SQLite itself opens such a file for reading only, and says so when it writes.
    """
    try:
        tempfile.TemporaryFile(dir=file.parent).close()
        if file.exists():
            file.open("r+b").close()
    except OSError as error:
        raise InputError(problem_of_system(OSError(error.errno, error.strerror, str(file)))) from error
