"""Facts about this machine, or about every node of a Ray cluster, as far as a sweep depends on them."""

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
from fpp_sweep.checks.probes import Facts, gathered, look_closely
from fpp_sweep.space.space import Space
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.sweep.preflight import environment, worker_spec
from fpp_sweep.tracking import check_store
from fpp_sweep.tracking.uri import is_server, version_at
from fpp_sweep.workers.session import session

SECONDS = 600.0  # for a node to answer: it loads the model and reads some images of every dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a sweep would use: a worker, datasets of a split, and MLflow."""

    worker: WorkerSpec
    datasets: tuple[str, ...] = ()
    split: str = ""
    tracking_uri: str | None = None


def target_of(space: Space | None, files: Sequence[PluginFile], tracking_uri: str | None) -> Target:
    """Return what a sweep of a space would use; without a space, the machine alone."""
    if space is None:
        return Target(worker=WorkerSpec(model="tiny", folder=os.getcwd()), tracking_uri=tracking_uri)
    return Target(
        worker=replace(worker_spec(space, gpus=0.0), plugins=tuple(files)),
        datasets=space.work.datasets or ("custom",),
        split=space.search.split,
        tracking_uri=tracking_uri or space.work.tracking_uri,
    )


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
