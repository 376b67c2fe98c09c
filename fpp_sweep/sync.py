"""Bring MLflow up to date from a sweep's folder: `python -m fpp_sweep.sync SWEEP`.

Use it for a sweep that ended while MLflow could not be reached, for one that `evaluate` ran, or with --into to copy a
sweep to another MLflow, for example a sweep that you received. Every run, param and metric is written once, however
often you call it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fpp_sweep.cli import find_sweep, parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import plural, printable


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    folder = SweepFolder(find_sweep(args.sweep))
    from fpp_sweep.tracking.delivery import deliver  # loads what --help does without
    from fpp_sweep.tracking.stores import uri_of_folder  # imports the library of the line above

    delivered = deliver(folder, uri_of_folder(folder, args.into, flag="--into"))
    outcome = "up to date, MLflow lacked nothing"
    if delivered.updated:
        outcome = f"{plural(delivered.updated, 'run')} brought up to date, {delivered.created} of them new"
    print(printable(f"{folder.path.name}: {outcome}"))
    label = "see them:"
    for line in delivered.links:
        print(printable(f"{label:10}{line}"))
        label = ""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.sync", __doc__ or "", usage="SWEEP [options]")
    options.add_argument("sweep", metavar="SWEEP", help="name or folder of a sweep")
    into_help = "MLflow store to write to; default: MLFLOW_TRACKING_URI, or else sqlite:///mlflow.db"
    options.add_argument("--into", metavar="URI", help=into_help)
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
