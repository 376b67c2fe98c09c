"""Readings of this machine, or of every node of a Ray cluster, for `doctor`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.checks import checks
from fpp_sweep.checks.cluster_file import missing_nodes, open_values
from fpp_sweep.checks.data_probes import NO_CHOICES, Choices, all_readings
from fpp_sweep.checks.datasets import dataset_table, survey_datasets, unreadable_images
from fpp_sweep.checks.finding_table import finding_table
from fpp_sweep.checks.probes import Readings, run_probes
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.sweep.node_checks import readings_of_nodes
from fpp_sweep.sweep.plan import methods_of, sources_of, splits_of
from fpp_sweep.sweep.worker_spec import worker_spec
from fpp_sweep.tracking import check_store
from fpp_sweep.tracking.uri import is_server, server_version
from fpp_sweep.workers.session import session

NODE_SECONDS = 600.0  # for a node to answer: it loads the model, and classifies some images of every dataset


@dataclass(frozen=True, slots=True)
class NamedDatasets:
    """Datasets and groups by name, and where their files are."""

    names: Sequence[str]
    data_root: str | None
    dataset_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The worker, the datasets and the MLflow store that a sweep would use."""

    worker: WorkerSpec
    datasets: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()  # splits that the sweep reads; the first one is searched
    choices: Choices = NO_CHOICES
    named_datasets: NamedDatasets | None = None
    tracking_uri: str | None = None


def target_of(
    path: Path | None, overrides: Sequence[str], files: Sequence[PluginFile], tracking_uri: str | None
) -> Target:
    """Return what a sweep of a space file would use; without a file, the machine alone."""
    if path is None:
        return Target(worker=WorkerSpec(model="tiny", folder=os.getcwd()), tracking_uri=tracking_uri)
    space = load_space(path, overrides)
    work = space.work
    return Target(
        worker=replace(worker_spec(space, gpus=0.0), plugins=tuple(files)),
        datasets=work.datasets or ("custom",),
        splits=tuple(splits_of(space)),
        choices=Choices(tuple(methods_of(space)), tuple(sorted(sources_of(space))), work.task_timeout),
        named_datasets=NamedDatasets(work.datasets, work.data_root, work.dataset_file),
        tracking_uri=tracking_uri or work.tracking_uri,
    )


def print_datasets(named: NamedDatasets, *, verify: bool) -> bool:
    """Print which datasets there are; return whether all requested ones are, and with `verify` every image."""
    surveys = survey_datasets(named.names, named.data_root, named.dataset_file)
    print(dataset_table(surveys, named.data_root), flush=True)
    is_well = all(survey.is_found or not survey.is_requested for survey in surveys)
    if not verify:
        return is_well
    problems, n_images = unreadable_images(surveys)
    for problem in problems:
        print(escaped(problem))
    print(f"{n_images} images opened, {len(problems)} of them cannot be read")
    return is_well and not problems


def print_findings(target: Target, address: str | None, cluster_file: Path | None) -> bool:
    """Print what was found on each machine; return whether nothing is wrong."""
    nodes = look_everywhere(target, address, cluster_file)
    findings = checks.findings(nodes)
    print(finding_table(findings, len(nodes)))
    return all(finding.state != "wrong" for finding in findings)


def look_everywhere(target: Target, address: str | None, cluster_file: Path | None) -> dict[str, Readings]:
    """Return the readings of this machine, or of the driver and every node of a cluster."""
    cluster_text = "" if cluster_file is None else cluster_file.read_text()
    if address is None:
        readings = all_readings(target.worker, None, target.datasets, target.splits, target.choices)
        return {"here": readings | _tracking_readings(target) | _open_values(cluster_text)}
    token_key = secrets.token_hex()
    nodes = _readings_of_nodes(target, address, token_key)
    driver = all_readings(target.worker, token_key, (), (), NO_CHOICES) | {"clock": 0.0}
    driver |= _tracking_readings(target) | _open_values(cluster_text)
    if cluster_text:
        cluster = yaml.safe_load(cluster_text)
        driver |= run_probes({"joined": lambda: missing_nodes(cluster, list(nodes))})
    return {"driver": driver, **nodes}


def _readings_of_nodes(target: Target, address: str, token_key: str) -> dict[str, Readings]:
    with session(address, cpus=1, verbose=False):
        arguments = (target.worker, token_key, target.datasets, target.splits, target.choices)
        return readings_of_nodes(all_readings, *arguments, seconds=NODE_SECONDS)


def _open_values(cluster_text: str) -> Readings:
    return dict(open_values(cluster_text)) if cluster_text else {}


def _tracking_readings(target: Target) -> Readings:
    probes: dict[str, Callable[[], Any]] = {}
    if uri := target.tracking_uri:
        probes["MLflow"] = lambda: mlflow_versions(uri)
    return run_probes(probes)


def mlflow_versions(uri: str) -> tuple[str, str]:
    """Return the versions of MLflow on the server and here; a database has no version."""
    check_store(uri)
    ours = version("mlflow")
    if is_server(uri):
        return server_version(uri), ours
    return ours, ours
