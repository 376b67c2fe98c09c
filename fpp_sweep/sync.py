"""Bring MLflow up to date from a sweep's folder: `python -m fpp_sweep.sync SWEEP`.

For a sweep that ended while MLflow could not be reached, for one that `evaluate` ran, or to copy one to another MLflow.
The command can be repeated: every run, param and metric is written once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fpp_sweep.cli.command import parser, run
from fpp_sweep.cli.flags import add_flags
from fpp_sweep.cli.names import find_sweep


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sweep = find_sweep(args.sweep)
    from fpp_sweep.sweep.delivery import deliver  # loads what --help does without

    for line in deliver(sweep, args.tracking_uri):
        print(line)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.sync", __doc__ or "", usage="SWEEP [options]")
    options.add_argument("sweep", metavar="SWEEP", help="name or folder of a sweep")
    add_flags(options, "--tracking-uri")
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
