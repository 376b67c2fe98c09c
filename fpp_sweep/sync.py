"""Bring MLflow up to date from a sweep's folder: `python -m fpp_sweep.sync sweeps/NAME`.

For a sweep that ended while MLflow could not be reached, or to copy one to another MLflow. It may be called as often as
you like: every run, param and metric arrives once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import note, printable
from fpp_sweep.tracking import check_store, recorded, ship, to_look


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    folder = SweepFolder.open(args.folder)
    uri = args.tracking_uri or recorded(folder.info().tracking_uri)
    check_store(uri)
    delivered = ship(folder, uri)
    done = f"{delivered.records} records brought up to date, {delivered.created} of them new"
    print(f"{printable(folder.path.name)}: {done}")
    if delivered.restored:
        print(f"back from MLflow's bin: {printable(', '.join(delivered.restored))}")
    if out := delivered.left_out:
        note(f"{len(out)} links lead out of the folder and are left out: {out[0]}")
    print("see them:", "\n          ".join(to_look(folder, uri)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.sync", __doc__ or "")
    add = options.add_argument
    add("folder", type=Path, metavar="SWEEP_FOLDER", help="such as sweeps/perturb-20261120-185232")
    add("--tracking-uri", metavar="URI", help="default: the sweep's own, if you have used it before")
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
