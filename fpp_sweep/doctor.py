"""Find what would break a sweep or change its numbers, before it starts: `python -m fpp_sweep.doctor`.

Checks this machine, or with --address every node of a Ray cluster: versions and code, GPUs, memory, disks and Ray's
token. --space adds the checks that `tune` makes before the first trial, with the flags of the
sweep: settings, plugins, model, datasets and room for workers. --cluster-file adds values of the shipped file and nodes
that have not joined. --data-root, --dataset-file, --datasets or --verify list datasets
and their missing files. --device compares what a GPU computes with the CPU.

    python -m fpp_sweep.doctor --space search_spaces/perturb.yaml
    python -m fpp_sweep.doctor --data-root DATA
    python -m fpp_sweep.doctor --device cuda
    python -m fpp_sweep.doctor --address auto --space search_spaces/perturb.yaml --cluster-file cluster.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fpp_sweep.cli import add_flags, flags_in_errors, overrides, parser, run
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path

EXIT_STATUS = """\
exit status: 0 if all is well; 1 if a finding is wrong, a check of a device fails, a requested dataset has no test
split, splits of an own dataset share images, or an image cannot be read; 2 for bad input. Requested are the datasets of
--datasets, --dataset-file and --space."""


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    plugins.load_plugins(*args.plugin)
    if args.device is not None:
        from fpp_sweep.trial.selfcheck import check_device  # loads torch, which all other checks do without

        if not check_device(args.device):
            sys.exit(1)
        return
    from fpp_sweep.checks.datasets import survey_datasets  # loads numpy, which --help does without
    from fpp_sweep.sweep import api, command_line, doctor  # likewise

    options = api.Options(address=args.address, tracking_uri=args.tracking_uri)
    space, named = None, (args.datasets or [], args.data_root, args.dataset_file)
    if args.space is not None:
        with flags_in_errors(args):
            space = command_line.space_to_tune(args.space, overrides(args))
        named = (space.work.datasets, space.work.data_root, space.work.dataset_file)
    surveys = []
    names_data = args.data_root or args.dataset_file or args.datasets or args.verify
    if options.on_cluster and names_data and (args.space is None or args.verify):
        problem = "nodes look for the datasets of a space, and open no image"
        raise InputError(f"--address {args.address}: {problem}; add --space and leave out --verify, or --address")
    if not options.on_cluster and names_data:
        surveys = survey_datasets(*named)  # refuses a wrong name before anything is printed
    is_well = doctor.print_findings(space, options, args.cluster_file)
    if surveys:
        print()
        is_well &= doctor.print_datasets(surveys, named[1], verify=args.verify)
    print("verdict: nothing is wrong" if is_well else "verdict: something is wrong, see above")
    if not is_well:
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.doctor", __doc__ or "", usage="[options]")
    options.epilog = EXIT_STATUS
    space = "check what a sweep of a space would use: a file, or the name of a shipped space"
    options.add_argument("--space", type=user_path, metavar="YAML", help=space)
    add_flags(options, "--model", "--data-root", "--dataset-file", "--datasets", "--limit", "--set", "--plugin")
    options.add_argument(
        "--verify", action="store_true", help="open every image; list damaged ones, and copies in two splits"
    )
    device = "compare what a device computes with the CPU"
    options.add_argument("--device", choices=("cuda", "cpu"), help=device)
    add_flags(options, "--address", "--tracking-uri")
    cluster_file = "cluster file of Ray's launcher: list its undecided values and missing nodes"
    options.add_argument("--cluster-file", type=user_path, metavar="YAML", help=cluster_file)
    args = options.parse_args(argv)
    others = (args.space, args.data_root, args.dataset_file, args.datasets, args.verify, args.address)
    if args.device is not None and any((*others, args.cluster_file, args.tracking_uri)):
        raise InputError("--device: checks the device alone; run doctor again for what else is to be checked")
    if args.space is None and (args.model or args.limit or args.set):
        raise InputError("--model, --limit and --set: need --space, whose keys they change")
    return args


if __name__ == "__main__":
    run(main)
