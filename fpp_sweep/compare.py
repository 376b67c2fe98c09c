"""Sweeps against each other, or trials of one sweep, on the images that they share: from their folders alone.

python -m fpp_sweep.compare sweeps/A sweeps/B ...                  one front of all, paired tests, what each cost
python -m fpp_sweep.compare sweeps/A trial-0003 trial-0007 tpt     these against each other, by dataset and on average
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.process import sleep_when_idle


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    plugins.load(plugins.read(args.plugin))
    first, *others = (_sweep(word, args.sweeps) for word in args.names)
    folder = first or SweepFolder.open(Path(args.names[0]))
    rest = args.names[1:]
    if not rest:
        raise InputError(f"{folder.path.name} alone: give another sweep, or two or more of its trials and baselines")
    known = {name for file in folder.trial_files() for name in (file.stem, file.stem.removeprefix("baseline-"))}
    for word, other in zip(rest, others, strict=True):
        if other is None and (any(others) or (word not in known and ("/" in word or Path(word).is_dir()))):
            SweepFolder.open(Path(word))  # which tells that it is none
    from fpp_sweep.report import comparison_files  # start-up time: loads numpy

    if not any(others):
        print(comparison_files.write_trial_comparison(folder, rest, args.split, args.out))
    else:
        sweeps = [folder, *(other for other in others if other is not None)]
        print(comparison_files.write_sweep_comparison(sweeps, args.reach, args.out))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.compare", __doc__ or "")
    options.add_argument(
        "names", nargs="+", metavar="SWEEP",
        help="folders of sweeps, or their names; or one of them, and names of its trials and baselines",
    )  # fmt: skip
    options.add_argument(
        "--sweeps", type=Path, default=Path("sweeps"), metavar="FOLDER", help="where names are looked for"
    )
    options.add_argument("--out", type=Path, metavar="FOLDER", help="default: comparisons/NAMES")
    options.add_argument("--split", choices=("val", "test"), help="of trials; default: test where all were run there")
    options.add_argument(
        "--reach", nargs="+", type=float, default=[], metavar="VALUE",
        help="of sweeps: a value of each objective, in their order; what it costs to get there is told",
    )  # fmt: skip
    options.add_argument(
        "--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP
    )
    return options.parse_args(argv)


def _sweep(word: str, root: Path) -> SweepFolder | None:
    """A sweep by its folder or by its name."""
    return next((folder for folder in map(SweepFolder, (Path(word), root / word)) if folder.begun), None)


if __name__ == "__main__":
    run(main)
