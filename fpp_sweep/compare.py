"""Compare sweeps by their best trials, or trials of a sweep, on the images that they share, from the folders alone.

python -m fpp_sweep.compare SWEEP SWEEP ...                  best trials, paired tests, costs
python -m fpp_sweep.compare SWEEP trial-0003 trial-0007 tpt  trials and baselines, by dataset and on average
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli import add_flags, find_sweep, is_sweep_or_path, parser, require_writable, run
from fpp_sweep.records.records import label_of
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import files_in, user_path


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    plugins.load_plugins(*args.plugin)
    first, *other_names = args.names
    sweep = find_sweep(first)
    if not other_names:
        raise InputError(f"{first} alone: give another sweep, or two or more of its trials and baselines")
    trials = trial_names(sweep)
    are_sweeps = any(is_sweep_or_path(word) for word in other_names if word not in trials)
    sweeps = [sweep]
    if are_sweeps:
        sweeps += [find_sweep(word) for word in other_names]
        other_names = []
    if args.out:
        require_writable(args.out)
    from fpp_sweep.report import comparison_view  # loads numpy, which --help does without

    print(comparison_view.write_comparison(sweeps, other_names, args.split, args.out))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.compare", __doc__ or "", usage="SWEEP [SWEEP ... | TRIAL ...] [options]")
    names = "names or folders of sweeps; or one sweep and names of its trials and baselines"
    options.add_argument("names", nargs="+", metavar="SWEEP", help=names)
    splits = ("train", "val", "test")
    split = "split to compare on; default: test if all of them ran there"
    options.add_argument("--split", choices=splits, help=split)
    options.add_argument(
        "--out", type=user_path, metavar="DIR", help="folder of the comparison; default: comparisons/NAMES"
    )
    add_flags(options, "--plugin")
    return options.parse_args(argv)


def trial_names(sweep: Path) -> set[str]:
    """Return the names of a sweep's trials and baselines, baselines also without their prefix."""
    names = set()
    for file in files_in(sweep / "trials", "[!.]*.json"):
        names |= {file.stem, label_of(file.stem)}
    return names


if __name__ == "__main__":
    run(main)
