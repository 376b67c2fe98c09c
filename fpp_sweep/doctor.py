"""What would break or spoil a sweep, before it does: `python -m fpp_sweep.doctor`.

Looks at this machine, or with --address at every node of a Ray cluster: versions and code, GPUs, memory and limits,
disks, clocks, open ports and the cluster's token; with --space also at its model and datasets, with --cluster-file at
what is still to be decided there and at nodes that have not joined. Exit status 1 if something is wrong.

    python -m fpp_sweep.doctor --space search_spaces/perturb.yaml
    python -m fpp_sweep.doctor --address auto --space search_spaces/perturb.yaml --cluster-file cluster.yaml
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.space.overrides import add_flags, from_flags
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.process import sleep_when_idle
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.tracking import check_store
from fpp_sweep.tracking.uri import is_server, server_version

if TYPE_CHECKING:
    from fpp_sweep.checks.findings import Finding
    from fpp_sweep.checks.probes import Facts

SECONDS = 600.0  # for a node to answer: it loads the model, and looks at some images of every dataset
SHIPPED = (  # what the cluster files have where they say CHANGE
    *("max_workers: 4", "region: us-west-2", "availability_zone: us-west-2a,us-west-2b,us-west-2c"),
    *("ImageId: &image ami-00000000000000000", "Ebs: {VolumeSize: 200, VolumeType: gp3}", "InstanceType: g6.2xlarge"),
    *("head_ip: 192.0.2.10", "worker_ips: [192.0.2.11, 192.0.2.12]", "ssh_user: ubuntu"),
    "ssh_private_key: ~/.ssh/fpp_cluster",
)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    from fpp_sweep.checks.findings import judge

    seen = look_everywhere(args)
    findings = judge(seen)
    print("\n".join(table(findings, len(seen))))
    if any(finding.state == "wrong" for finding in findings):
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.doctor", __doc__ or "")
    add = options.add_argument
    add("--space", type=Path, metavar="YAML", help="whose model and datasets are looked at, too")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any key of the space file")
    add_flags(options, "model", "data_root", "dataset_file", "datasets", "limit")
    add("--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP)
    add("--address", metavar="ADDRESS", help="of a Ray cluster: auto or HOST:PORT; default: this machine alone")
    add("--cluster-file", type=Path, metavar="YAML", help="such as cluster.yaml: what is open in it, who is missing")
    add("--tracking-uri", metavar="URI", help="of MLflow; default: the space's, if it has one")
    return options.parse_args(argv)


def look_everywhere(args: argparse.Namespace) -> dict[str, Facts]:
    """What is seen here and, on a cluster, on every node."""
    from fpp_sweep.checks.probes import gathered, look_closely
    from fpp_sweep.sweep.preflight import environment, worker_spec
    from fpp_sweep.workers.session import session

    files = plugins.read(args.plugin)
    plugins.load(files)
    spec, datasets, split, uri = WorkerSpec(model="tiny", folder=os.getcwd()), tuple[str, ...](), "", args.tracking_uri
    if args.space:
        space = load_space(args.space, [*from_flags(args), *args.set], [file.name for file in files])
        spec, uri = replace(worker_spec(space, 0.0), plugins=files), uri or space.work.tracking_uri
        datasets, split = space.work.datasets or ("custom",), space.search.split
    looks: dict[str, Callable[[], Any]] = {"MLflow": lambda: mlflow_versions(uri)} if uri else {}
    if args.cluster_file:
        text = args.cluster_file.read_text()
        looks["CHANGE"] = lambda: undecided(text)
    if args.address is None:
        return {"here": look_closely(spec, None, datasets, split) | gathered(looks)}
    key = secrets.token_hex()
    with session(args.address, cpus=1, verbose=False):
        from fpp_sweep.workers.nodes import on_every_node

        nodes = on_every_node(look_closely, spec, key, datasets, split, env=environment(), seconds=SECONDS)
    if args.cluster_file:
        looks["joined"] = lambda: missing(yaml.safe_load(text), list(nodes))
    return {"driver": look_closely(spec, key, (), "") | {"clock": 0.0, **gathered(looks)}, **nodes}


def mlflow_versions(uri: str) -> tuple[str, str]:
    """The server's and ours; of a database, ours twice."""
    check_store(uri)
    return server_version(uri) if is_server(uri) else version("mlflow"), version("mlflow")


def undecided(text: str) -> list[str]:
    """Values of a cluster file that are marked CHANGE and are as shipped; the mark may stand in a comment above."""
    marked, found = False, []
    for line in text.splitlines():
        marked = marked or "CHANGE" in line
        if not line.strip().startswith("#"):
            value = line.partition(" #")[0].strip()
            found += [value] if marked and value in SHIPPED else []
            marked = False
    return found


def missing(cluster: Mapping[str, Any], joined: Sequence[str]) -> list[str]:
    """Nodes that the cluster file starts from the beginning, and that are not there."""
    provider = cluster["provider"]
    if provider["type"] == "local":
        names = [provider["head_ip"], *provider["worker_ips"]]
        return [f"{name} has not joined" for name in names if socket.gethostbyname(name) not in joined]
    wanted = 1 + sum(kind.get("min_workers", 0) for kind in cluster["available_node_types"].values())
    return [f"{len(joined)} of {wanted} nodes are there"] if len(joined) < wanted else []


def table(findings: Iterable[Finding], nodes: int) -> Iterator[str]:
    """A row for what nodes have alike, and below what is not as it should be what would do."""
    rows: dict[Finding, list[str]] = {}
    for finding in findings:
        rows.setdefault(finding._replace(node=""), []).append(finding.node)
    named = ["all" if len(there) == nodes > 1 else ", ".join(there) for there in rows.values()]
    first, second = max(map(len, ["node", *named])), max(len(row.what) for row in rows)
    yield f"{'node':{first}}  {'what':{second}}  state  found"
    for where, row in zip(named, rows, strict=True):
        yield f"{where:{first}}  {row.what:{second}}  {row.state:5}  {row.found}"
        if row.state != "ok":
            yield f"{'':{first + second + 11}}{row.remedy}"


if __name__ == "__main__":
    run(main)
