"""Add predictions of another program to a sweep, as a baseline: `python -m fpp_sweep.import`.

FILE is npz or parquet, with names of samples and their logits or probabilities. The baseline joins tables, tests,
intervals, the front and post-hoc maps. Samples and classes must be those of the sweep.

    python -m fpp_sweep.import mta.npz --as mta_theirs --into SWEEP
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fpp_sweep.cli import add_flags, find_sweep, parser, run
from fpp_sweep.spec import plugins
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.messages import printable


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    plugins.load_plugins(*args.plugin)
    sweep = find_sweep(args.into)
    from fpp_sweep.sweep.importing import import_predictions  # loads numpy, which --help does without

    for line in import_predictions(sweep, args.file, args.name):
        print(printable(line))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.import", __doc__ or "", usage="FILE --as NAME --into SWEEP [options]")
    file = "predictions as .npz or .parquet; docs/import.md has the columns"
    options.add_argument("file", type=user_path, metavar="FILE", help=file)
    options.add_argument("--as", dest="name", required=True, metavar="NAME", help="name of the baseline in tables")
    options.add_argument("--into", required=True, metavar="SWEEP", help="name or folder of a sweep")
    add_flags(options, "--plugin")
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
