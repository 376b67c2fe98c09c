"""The paper's tables and figures from one command: `python -m fpp_sweep.reproduce --table main`.

Each table is a sweep over a grid on the test split. Sweeps of one model share their results, and the same command
continues where it was interrupted. Without flags the command uses the embedded model, which shows the form; the paper's
numbers are those of ViT-B/16:

    python -m fpp_sweep.reproduce --list
    python -m fpp_sweep.reproduce --table main seeds --model ViT-B-16/openai --data-root DATA --address auto
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from fpp_sweep.cli import RUN_FLAGS, add_flags, flags_in_errors, parser, require_writable, run, typed_words
from fpp_sweep.reproduce.experiments import find, shipped
from fpp_sweep.reproduce.selection import folder_name_of, select
from fpp_sweep.spec import plugins
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.spec.specs import Precision

NAME_WIDTH = 16  # length of the longest name in the list


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.list or not args.table:
        print(listing())
        return
    plugins.load_plugins(*args.plugin)
    with flags_in_errors(args):
        folder = args.out / folder_name_of(args.name, args.model)
        selection = select(args)
    from fpp_sweep.reproduce.running import run_selection  # start-up time
    from fpp_sweep.sweep import api  # start-up time

    if args.dry_run:
        from fpp_sweep.sweep.estimate import dry_run  # loads torch

        print(dry_run(list(selection.spaces.values())))
        return
    require_writable(folder.parent)
    command = command_line("reproduce", typed_words(argv))
    options = api.Options(address=args.address, tracking_uri=args.tracking_uri, verbose=args.verbose, command=command)
    try:
        succeeded = run_selection(selection, folder, options)
    except api.InterruptedSweep:
        print(f"interrupted; the same command continues:\n    {runnable(command)}", file=sys.stderr)
        raise SystemExit(130) from None
    if not succeeded:
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.reproduce", __doc__ or "", usage="--table NAME ... [options]")
    tables = options.add_argument_group("tables")
    table = "tables and figures by name, `all`, or a YAML file of your own"
    tables.add_argument("--table", nargs="+", action="extend", default=[], metavar="NAME", help=table)
    tables.add_argument("--list", action="store_true", help="list tables and figures, each with its question")
    tables.add_argument(
        "--methods", nargs="+", action="extend", default=[], metavar="ROW", help="run only these rows of the tables"
    )
    tables.add_argument("--coop", metavar="FILE", help="a CoOp checkpoint, for the tables that start from one")
    tables.add_argument("--maple", metavar="FILE", help="a MaPLe checkpoint, likewise")
    precisions = "of every row; default: released and float32 for the paper's model, else that of the table"
    tables.add_argument(
        "--precision", nargs="+", action="extend", default=[], choices=get_args(Precision), help=precisions
    )
    missing = "run on the datasets that are there, and say in every table which are missing"
    tables.add_argument("--allow-missing", action="store_true", help=missing)
    shows = "show the configs, what tables share, and an estimate of the cost; run nothing"
    tables.add_argument("--dry-run", action="store_true", help=shows)
    add_flags(options, *RUN_FLAGS, helps={"--name": "name of that folder; default: the model's name"})
    options.set_defaults(model="tiny", out=Path("reproductions"))
    return options.parse_args(argv)


def listing() -> str:
    """Return every table and figure with its question."""
    lines = []
    for name in shipped():
        lines.append(f"{name:<{NAME_WIDTH}}  {find(name).question}")
    return "\n".join([*lines, "", f"    {runnable(command_line('reproduce', ['--table', 'main']))}"])


if __name__ == "__main__":
    run(main)
