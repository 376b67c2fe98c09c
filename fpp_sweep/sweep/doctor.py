"""Findings on this machine, or on every node of a Ray cluster, for `doctor`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.checks.cluster_file import ClusterFile, check_cluster_file, read_cluster_file
from fpp_sweep.checks.data import check_all
from fpp_sweep.checks.datasets import (
    DatasetSurvey,
    copies_in_two_splits,
    dataset_table,
    survey_datasets,
    unreadable_images,
)
from fpp_sweep.checks.findings import Finding, compare_machines, finding_table, run_check
from fpp_sweep.checks.machine import check_disk, check_machine
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import escaped, problem_of_system
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.command_line import space_to_tune
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
from fpp_sweep.workers.needs import Resources
from fpp_sweep.workers.session import ray_part, session

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker


@dataclass(frozen=True, slots=True)
class NamedDatasets:
    """Datasets and groups by name, and where their files are."""

    names: Sequence[str]
    data_root: str | None
    dataset_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The sweep that is checked, or the machine alone."""

    worker: WorkerSpec
    options: Options
    space: Space | None = None

    @property
    def datasets(self) -> tuple[str, ...]:
        if self.space is None:
            return ()
        return self.space.work.datasets or ("custom",)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the sweep reads; the first one is searched."""
        if self.space is None:
            return ()
        return tuple(splits_of_space(self.space))

    @property
    def named_datasets(self) -> NamedDatasets | None:
        if self.space is None:
            return None
        work = self.space.work
        return NamedDatasets(work.datasets, work.data_root, work.dataset_file)

    @property
    def tracking_uri(self) -> str | None:
        """The MLflow store of the sweep; for the machine alone, the one that is named, or None."""
        named = self.options.tracking_uri
        if self.space is None:
            return named
        return uri_of_new_sweep(named or self.space.work.tracking_uri)


def target_of(path: Path | None, overrides: Sequence[str], options: Options) -> Target:
    """Return the sweep of a space file; without a file, the machine alone."""
    if path is None:
        return Target(worker=WorkerSpec(model="tiny", folder=os.getcwd()), options=options)
    space = space_to_tune(path, overrides)
    device = "auto" if gpus_of_a_worker(space.work, gpus_of_session=1.0) else "cpu"
    worker = replace(worker_spec(space, gpus=0.0), device=device, plugins=options.plugins)
    return Target(worker=worker, options=options, space=space)


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
    notes = check_plan(space, worker).validation.notes
    if notes:
        return Finding("note", "; ".join(notes))
    n_methods, n_prompts = len(space.methods()), len(sources_of(space))
    return Finding("ok", f"{plural(n_methods, 'method')} and {plural(n_prompts, 'prompt')} can be used")


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
    findings = compare_machines(findings_by_machine(target, cluster_file))
    print(finding_table(findings))
    return all(finding.state != "wrong" for found in findings.values() for finding in found)


def findings_by_machine(target: Target, cluster_file: ClusterFile | None) -> dict[str, list[Finding]]:
    """Return what is found on this machine, or on the driver and every node of a cluster."""
    space, worker = target.space, target.worker
    check_plan = None
    sweep = []
    if space is not None:
        check_plan = partial(check_plan_of, space)
        sweep.append(start_finding(space, target.options))  # before the cluster is joined, as a sweep does
    if not target.options.on_cluster:
        if space is not None:
            sweep.append(room_finding(space, on_cluster=False))
        here = check_all(worker, target.datasets, target.splits, check_plan, False)
        return {"here": [*here, *sweep, *_check_output(target), *_check_cluster_file(cluster_file, None)]}
    with session(target.options.address, cpus=1, verbose=False):
        if space is not None:
            sweep.append(room_finding(space, on_cluster=True))
        arguments = (worker, target.datasets, target.splits, check_plan, True)
        nodes = findings_of_nodes(check_all, *arguments, seconds=NODE_SECONDS)
    driver = [*check_machine(worker, True), *sweep, *_check_output(target)]
    return {"driver": [*driver, *_check_cluster_file(cluster_file, list(nodes))], **nodes}


def _check_cluster_file(cluster_file: ClusterFile | None, nodes: Sequence[str] | None) -> list[Finding]:
    if cluster_file is None:
        return []
    remedy = "put your own values into these lines, and start the missing nodes"
    return [run_check("cluster file", remedy, partial(check_cluster_file, cluster_file, nodes))]


def _check_output(target: Target) -> list[Finding]:
    """Check what the driver writes to: the folder of sweeps, and MLflow's store."""
    findings = []
    if target.space is not None:
        folder = Path(target.options.root).absolute()
        findings.append(run_check("sweeps", "make room, allow writing, or set --out", partial(check_disk, folder)))
    if target.tracking_uri:
        check = partial(check_mlflow, target.tracking_uri)
        findings.append(run_check("MLflow", "name another store with --tracking-uri", check))
    return findings


def check_mlflow(uri: str) -> Finding:
    """Require a store that can be used; no database is made or upgraded."""
    file = sqlite_file(uri)
    if file is None:
        open_store(uri)
    else:
        check_address(uri)
        _require_writable(file)
    return Finding("ok", version("mlflow"))


def _require_writable(file: Path) -> None:
    """Raise OSError if a database's file, or the folder of its journal and lock, cannot be written; no byte changes.

    SQLite itself opens such a file for reading only, and says so when it writes.
    """
    try:
        tempfile.TemporaryFile(dir=file.parent).close()
        if file.exists():
            file.open("r+b").close()
    except OSError as error:
        raise OSError(problem_of_system(OSError(error.errno, error.strerror, str(file)))) from error
