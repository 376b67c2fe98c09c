"""Find what would break a sweep, or change its results, before it starts: `python -m fpp_sweep.doctor`.

Checks this machine, or with --address every node of a Ray cluster: versions and code, GPUs, memory and limits, disks,
clocks and the cluster's token. With --space it also checks the model and the datasets. With --cluster-file it lists
what is left to decide in that file, and nodes that have not joined. The exit status is 1 if something is wrong.

    python -m fpp_sweep.doctor --space search_spaces/perturb.yaml
    python -m fpp_sweep.doctor --address auto --space search_spaces/perturb.yaml --cluster-file cluster.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.space.overrides import add_flags, from_flags
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.process import sleep_when_idle


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    from fpp_sweep.checks import checks, finding_table  # load numpy, which --help does without
    from fpp_sweep.sweep import inspection  # likewise

    files = plugins.read(args.plugin)
    plugins.load(files)
    space = None
    if args.space:
        space = load_space(args.space, [*from_flags(args), *args.set])
    target = inspection.target_of(space, files, args.tracking_uri)
    facts = inspection.look_everywhere(target, args.address, args.cluster_file)
    findings = checks.findings(facts)
    print(finding_table.finding_table(findings, len(facts)))
    if any(finding.state == "wrong" for finding in findings):
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.doctor", __doc__ or "")
    add = options.add_argument
    add("--space", type=Path, metavar="YAML", help="also check the model and the datasets of this space")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any key of the space file")
    add_flags(options, "model", "data_root", "dataset_file", "datasets", "limit")
    add("--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP)
    add("--address", metavar="ADDRESS", help="of a Ray cluster: auto or HOST:PORT; default: this machine alone")
    add("--cluster-file", type=Path, metavar="YAML", help="such as cluster.yaml: list open values and missing nodes")
    add("--tracking-uri", metavar="URI", help="of MLflow; default: the space's, if it has one")
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
