"""Bring MLflow up to date from a sweep's folder: `python -m fpp_sweep.sync SWEEP`.

Use it for a sweep that ended while MLflow could not be reached, for one that `evaluate` ran, or with --into to copy a
sweep to another MLflow, for example a sweep that you received. Every run, param and metric is written once, however
often you call it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from fpp_sweep.cli.command import parser, run
from fpp_sweep.cli.names import find_sweep
from fpp_sweep.spec.messages import printable

RETRY_SECONDS = 120.0  # without progress


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sweep = find_sweep(args.sweep)
    from fpp_sweep.sweep.delivery import deliver  # loads what --help does without

    for line in deliver(sweep, args.into, verify=args.verify, retry_for=args.retry_for):
        print(printable(line))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.sync", __doc__ or "", usage="SWEEP [options]")
    add = options.add_argument
    add("sweep", metavar="SWEEP", help="name or folder of a sweep")
    add(
        "--into",
        metavar="URI",
        help="MLflow store to write to; default: the sweep's own, or the one of the last --into",
    )
    add("--verify", action="store_true", help="compare everything with MLflow again, such as after a restored backup")
    add(
        "--retry-for",
        type=_seconds,
        default=RETRY_SECONDS,
        metavar="SECONDS",
        help="repeat failed requests until there was no progress for this time (default: %(default)g)",
    )
    return options.parse_args(argv)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more ({text})")
    return seconds


if __name__ == "__main__":
    run(main)
