"""Find what would break a sweep or change its numbers, before it starts: `python -m fpp_sweep.doctor`.

Looks at this machine, or with --address at every node of a Ray cluster: versions and code, GPUs, memory and limits,
disks, clocks, and the cluster's token. With --space also at the model and the datasets; with --cluster-file at values
that are still to be decided there and at nodes that have not joined. With --data-root, --dataset-file, --datasets or
--verify also at datasets: which are there, and what is missing.

    python -m fpp_sweep.doctor --space search_spaces/perturb.yaml
    python -m fpp_sweep.doctor --data-root DATA
    python -m fpp_sweep.doctor --address auto --space search_spaces/perturb.yaml --cluster-file cluster.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.cli.command import parser, run
from fpp_sweep.cli.flags import add_flags, flags_in_errors, overrides
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError, escaped

if TYPE_CHECKING:
    from fpp_sweep.space.space import Space

EXIT_STATUS = """\
exit status: 0 if all is well; 1 if a finding is wrong, a requested dataset has no test split, or an image cannot be
read; 2 for bad input. Requested are the datasets of --datasets, --dataset-file and --space."""


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    files = plugins.read(args.plugin)
    plugins.load(files)
    space = read_space(args)
    is_well = True
    if args.address is None and (args.data_root or args.dataset_file or args.datasets or args.verify):
        is_well = print_datasets(args, space)
    from fpp_sweep.checks import finding_table, findings  # load numpy, which --help does without
    from fpp_sweep.sweep import inspection  # likewise

    target = inspection.target_of(space, files, args.tracking_uri)
    facts = inspection.look_everywhere(target, args.address, args.cluster_file)
    judged = findings.judge(facts)
    print(finding_table.finding_table(judged, len(facts)))
    if not is_well or any(finding.state == "wrong" for finding in judged):
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.doctor", __doc__ or "", usage="[options]")
    options.epilog = EXIT_STATUS
    options.add_argument("--space", type=Path, metavar="YAML", help="look at the model and the datasets of a space")
    add_flags(options, "--model", "--data-root", "--dataset-file", "--datasets", "--limit", "--set", "--plugin")
    options.add_argument("--verify", action="store_true", help="open every image, and name those that are damaged")
    add_flags(options, "--address", "--tracking-uri")
    cluster_file = "cluster file of Ray's launcher: what is undecided in it, and which nodes are missing"
    options.add_argument("--cluster-file", type=Path, metavar="YAML", help=cluster_file)
    args = options.parse_args(argv)
    if args.space is None and (args.model or args.limit or args.set):
        raise InputError("--model, --limit and --set: need --space, whose keys they change")
    return args


def read_space(args: argparse.Namespace) -> Space | None:
    if args.space is None:
        return None
    from fpp_sweep.space.reading import load_space  # --help does without it

    with flags_in_errors(args):
        return load_space(args.space, overrides(args), [file.stem for file in args.plugin])


def print_datasets(args: argparse.Namespace, space: Space | None) -> bool:
    """Print which datasets there are; return whether all requested ones are, and with --verify every image."""
    from fpp_sweep.checks import datasets  # loads numpy, which --help does without

    names, root, file = args.datasets or [], args.data_root, args.dataset_file
    if space is not None:
        names, root, file = space.work.datasets, space.work.data_root, space.work.dataset_file
    surveys = datasets.survey_datasets(names, root, file)
    print(datasets.dataset_table(surveys, root), flush=True)
    is_well = all(survey.is_found or not survey.is_requested for survey in surveys)
    if args.verify:
        problems, n_images = datasets.unreadable_images(surveys)
        for problem in problems:
            print(escaped(problem))
        print(f"{n_images} images opened, {len(problems)} of them cannot be read")
        is_well = is_well and not problems
    return is_well


if __name__ == "__main__":
    run(main)
