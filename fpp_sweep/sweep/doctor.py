"""Findings on this machine, or on every node of a Ray cluster, for `doctor`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.checks.cluster_file import ClusterFile, check_cluster_file, read_cluster_file
from fpp_sweep.checks.data import check_all
from fpp_sweep.checks.datasets import DatasetSurvey, copies_in_two_splits, dataset_table, unreadable_images
from fpp_sweep.checks.findings import Finding, compare_machines, finding_table, run_check
from fpp_sweep.checks.machine import check_disk, check_machine
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import check_before_ray_start, check_plan, sources_of, splits_of_space
from fpp_sweep.sweep.worker_pool import (
    findings_of_nodes,
    gpus_of_a_worker,
    needs_of_workers,
    require_cores,
    session_cpus,
    worker_spec,
)
from fpp_sweep.tracking.stores import check_address, open_store, sqlite_file, uri_of_new_sweep
from fpp_sweep.workers.session import Resources, ray_part, session

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker


def worker_to_check(space: Space | None, options: Options) -> WorkerSpec:
    """Return what a worker of the sweep opens, or without a space one of the embedded model."""
    if space is None:
        return WorkerSpec(model="tiny", folder=os.getcwd())
    device = "auto" if gpus_of_a_worker(space.work, gpus_of_session=1.0) else "cpu"
    return replace(worker_spec(space, gpus=0.0), device=device, plugins=options.plugins)


def start_finding(space: Space, options: Options) -> Finding:
    """Check what the driver checks before Ray starts."""

    def check_start() -> Finding:
        check_before_ray_start(space, options)
        return Finding("ok", "the settings can be used")

    remedy = "correct the setting or plugin that is named there: `tune` would stop there, too"
    return run_check("start of the sweep", remedy, check_start)


def room_finding(space: Space, *, on_cluster: bool) -> Finding:
    """Check the room for workers in a Ray session on this machine, or on the cluster that this process has joined."""
    remedy = "lower the setting that is named there, or run on a larger machine or cluster"
    return run_check("room for workers", remedy, partial(check_room, space, on_cluster=on_cluster))


def check_room(space: Space, *, on_cluster: bool) -> Finding:
    machines: Sequence[Resources]
    if on_cluster:
        machines = ray_part().machines_of_session()
    else:
        import torch  # as for Ray

        require_cores(space.work.cpus_per_worker)
        machines = [{"CPU": float(session_cpus(space.work)), "GPU": float(torch.cuda.device_count())}]
    needs, note = needs_of_workers(space.work, machines, on_cluster=on_cluster)
    if note:
        return Finding("note", note)
    return Finding("ok", plural(needs.workers or needs.workers_with_room(machines), "worker"))


def check_plan_of(space: Space, worker: Worker) -> Finding:
    """Check what the workers check; the error of the first check that fails ends the others."""
    _, validation = check_plan(space, worker)
    if validation.notes:
        return Finding("note", "; ".join(validation.notes))
    n_methods, n_prompts = len(space.methods()), len(sources_of(space))
    return Finding("ok", f"{plural(n_methods, 'method')} and {plural(n_prompts, 'prompt')} can be used")


NODE_SECONDS = 600.0  # for a node to answer: it loads the model, and classifies some images of every dataset


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


def print_findings(space: Space | None, options: Options, cluster_file: Path | None) -> bool:
    """Print what was found on each machine; return whether nothing is wrong."""
    findings = compare_machines(findings_by_machine(space, options, cluster_file))
    print(finding_table(findings))
    return all(finding.state != "wrong" for found in findings.values() for finding in found)


def findings_by_machine(space: Space | None, options: Options, cluster_file: Path | None) -> dict[str, list[Finding]]:
    """Return what is found on this machine, or on the driver and every node of a cluster.

    Without a space, the machine alone is checked. Raise InputError if the cluster file is not one.
    """
    values = read_cluster_file(cluster_file) if cluster_file else None
    worker = worker_to_check(space, options)
    datasets: Sequence[str] = ()
    splits: Sequence[str] = ()
    check_plan = None
    sweep = []
    if space is not None:
        datasets, splits = space.work.datasets or ("custom",), splits_of_space(space)
        check_plan = partial(check_plan_of, space)
        sweep.append(start_finding(space, options))  # before the cluster is joined, as a sweep does
    if not options.on_cluster:
        if space is not None:
            sweep.append(room_finding(space, on_cluster=False))
        here = check_all(worker, datasets, splits, check_plan, False)
        return {"here": [*here, *sweep, *_check_output(space, options), *_check_cluster_file(values, None)]}
    with session(options.address, cpus=1, verbose=False):
        if space is not None:
            sweep.append(room_finding(space, on_cluster=True))
        nodes = findings_of_nodes(check_all, worker, datasets, splits, check_plan, True, seconds=NODE_SECONDS)
    driver = [*check_machine(worker, True), *sweep, *_check_output(space, options)]
    return {"driver": [*driver, *_check_cluster_file(values, list(nodes))], **nodes}


def _check_cluster_file(cluster_file: ClusterFile | None, nodes: Sequence[str] | None) -> list[Finding]:
    if cluster_file is None:
        return []
    remedy = "put your own values into these lines, and start the missing nodes"
    return [run_check("cluster file", remedy, partial(check_cluster_file, cluster_file, nodes))]


def _check_output(space: Space | None, options: Options) -> list[Finding]:
    """Check what the driver writes to: the folder of sweeps, and MLflow's store, without a space if it is named."""
    findings = []
    uri = options.tracking_uri
    if space is not None:
        uri = uri_of_new_sweep(uri or space.work.tracking_uri)
        folder = Path(options.root).absolute()
        findings.append(run_check("sweeps", "make room, allow writing, or set --out", partial(check_disk, folder)))
    if uri:
        findings.append(run_check("MLflow", "name another store with --tracking-uri", partial(check_mlflow, uri)))
    return findings


def check_mlflow(uri: str) -> Finding:
    """Require a store that can be used; no database is made or upgraded."""
    if sqlite_file(uri) is None:
        open_store(uri)
    else:
        check_address(uri)
    return Finding("ok", version("mlflow"))
