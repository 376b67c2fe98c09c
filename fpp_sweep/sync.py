"""Bring MLflow up to date from a sweep's folder: `python -m fpp_sweep.sync SWEEP`.

For a sweep that ended while MLflow could not be reached, for one that `evaluate` ran, or to copy one to another MLflow.
The command can be repeated: every run, param and metric is written once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fpp_sweep.cli.command import parser, run
from fpp_sweep.cli.flags import add_flags
from fpp_sweep.spec.messages import note, printable


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    from fpp_sweep import tracking  # loads what --help does without
    from fpp_sweep.cli.names import find_sweep  # likewise

    folder = find_sweep(args.sweep)
    uri = args.tracking_uri or tracking.recorded(folder.info().tracking_uri)
    tracking.check_store(uri)
    delivered = tracking.ship(folder, uri)
    name = printable(folder.path.name)
    print(f"{name}: {delivered.records} records brought up to date, {delivered.created} of them new")
    if delivered.restored:
        print(f"restored from MLflow's deleted runs: {printable(', '.join(delivered.restored))}")
    if delivered.left_out:
        note(f"{len(delivered.left_out)} links lead out of the folder and are left out: {delivered.left_out[0]}")
    print("see them:", "\n          ".join(tracking.to_look(folder, uri)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.sync", __doc__ or "", usage="SWEEP [options]")
    options.add_argument("sweep", metavar="SWEEP", help="name or folder of a sweep")
    add_flags(options, "--tracking-uri")
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
