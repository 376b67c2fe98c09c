"""List sweeps, or show a sweep or a trial, from the folders alone.

python -m fpp_sweep.show                       the sweeps in `sweeps`, or in a FOLDER: state, progress, front
python -m fpp_sweep.show SWEEP                 front, baselines, failures, and what to open
python -m fpp_sweep.show SWEEP trial-0007      settings, numbers, log and prompts of a trial, and how to repeat it
python -m fpp_sweep.show SWEEP --page          write the page of a sweep or reproduction again
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli import SWEEPS, add_flags, find_folder, is_reproduction, parser, run
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    plugins.load_plugins(*args.plugin)
    path = SWEEPS
    if args.sweep is not None:
        path = find_folder(args.sweep)
    show(args, path)


def show(args: argparse.Namespace, path: Path) -> None:
    if args.page and is_reproduction(path):
        from fpp_sweep.reproduce.output import write_reproduction  # loads libraries that draw

        print(f"page: {write_reproduction(path).resolve().as_uri()}")
        return
    if args.page:
        from fpp_sweep.report.writing import write_latest_report  # loads numpy, which --help does without

        print(f"page: {write_latest_report(path).resolve().as_uri()}")
        return
    from fpp_sweep.sweep import show as output  # reads records, which --help does without

    if args.trial is not None:
        print(output.trial_text(path, args.trial))
    else:
        print(output.folder_text(path))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.show", __doc__ or "", usage="[SWEEP [TRIAL]] [options]")
    sweep = "name or folder of a sweep or a reproduction, or a folder of sweeps; default: sweeps"
    options.add_argument("sweep", nargs="?", metavar="SWEEP", help=sweep)
    options.add_argument("trial", nargs="?", metavar="TRIAL", help="such as trial-0007 or baseline-tpt")
    options.add_argument("--page", action="store_true", help="write the page with its tables and configs")
    add_flags(options, "--plugin")
    args = options.parse_intermixed_args(argv)  # a trial may stand behind an option
    if args.page and (args.sweep is None or args.trial is not None):
        raise InputError("--page: needs a sweep or a reproduction, without a trial")
    return args


if __name__ == "__main__":
    run(main)
