"""What `doctor` looks at: this machine or every node of a Ray cluster, and datasets, as far as a sweep needs them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fpp_sweep.checks.cluster_file import missing_nodes, undecided
from fpp_sweep.checks.datasets import dataset_table, survey_datasets, unreadable_images
from fpp_sweep.checks.finding_table import finding_table
from fpp_sweep.checks.findings import judge
from fpp_sweep.checks.probes import Facts, gathered, look_closely
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.sweep.preflight import environment, worker_spec
from fpp_sweep.tracking import check_store
from fpp_sweep.tracking.uri import is_server, version_at
from fpp_sweep.workers.session import session

SECONDS = 600.0  # for a node to answer: it loads the model and reads some images of every dataset


@dataclass(frozen=True, slots=True)
class NamedDatasets:
    """Datasets and groups by name, and where their files are."""

    names: Sequence[str]
    data_root: str | None
    dataset_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a sweep would use: a worker, datasets of a split, and MLflow."""

    worker: WorkerSpec
    datasets: tuple[str, ...] = ()
    split: str = ""
    named_datasets: NamedDatasets | None = None
    tracking_uri: str | None = None


def target_of(
    path: Path | None, overrides: Sequence[str], files: Sequence[PluginFile], tracking_uri: str | None
) -> Target:
    """Return what a sweep of a space file would use; without a file, the machine alone."""
    if path is None:
        return Target(worker=WorkerSpec(model="tiny", folder=os.getcwd()), tracking_uri=tracking_uri)
    space = load_space(path, overrides, [file.name for file in files])
    work = space.work
    return Target(
        worker=replace(worker_spec(space, gpus=0.0), plugins=tuple(files)),
        datasets=work.datasets or ("custom",),
        split=space.search.split,
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
    facts = look_everywhere(target, address, cluster_file)
    findings = judge(facts)
    print(finding_table(findings, len(facts)))
    return all(finding.state != "wrong" for finding in findings)


def look_everywhere(target: Target, address: str | None, cluster_file: Path | None) -> dict[str, Facts]:
    """Return the facts of this machine, or those of the driver and of every node of a cluster."""
    probes: dict[str, Callable[[], Any]] = {}
    cluster_text = None
    if target.tracking_uri:
        probes["MLflow"] = partial(mlflow_versions, target.tracking_uri)
    if cluster_file is not None:
        cluster_text = cluster_file.read_text()
        probes["CHANGE"] = partial(undecided, cluster_text)
    if address is None:
        return {"here": look_closely(target.worker, None, target.datasets, target.split) | gathered(probes)}
    key = secrets.token_hex()
    nodes = _look_at_nodes(target, address, key)
    if cluster_text is not None:
        probes["joined"] = partial(missing_nodes, cluster_text, list(nodes))
    driver = look_closely(target.worker, key, (), "")
    return {"driver": driver | {"clock": 0.0, **gathered(probes)}, **nodes}


def _look_at_nodes(target: Target, address: str, key: str) -> dict[str, Facts]:
    with session(address, cpus=1, verbose=False):
        from fpp_sweep.workers.nodes import on_every_node  # imports Ray, which `session` must do first

        arguments = (target.worker, key, target.datasets, target.split)
        return on_every_node(look_closely, *arguments, env=environment(), seconds=SECONDS)


def mlflow_versions(uri: str) -> tuple[str, str]:
    """Return MLflow's version on the server and on this machine; both are this machine's if the store is a database."""
    check_store(uri)
    own = version("mlflow")
    if is_server(uri):
        return version_at(uri), own
    return own, own
