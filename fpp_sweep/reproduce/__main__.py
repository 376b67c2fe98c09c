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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fpp_sweep.cli.command import parser, run
from fpp_sweep.cli.flags import add_run_flags, flags_in_errors
from fpp_sweep.reproduce.experiment_files import find, shipped
from fpp_sweep.reproduce.selection import Selection, select
from fpp_sweep.spec import plugins
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.spec.specs import PluginFile, Precision

NAME_WIDTH = 16  # of the longest name in the list

if TYPE_CHECKING:
    from fpp_sweep.reproduce.running import Reproduction
    from fpp_sweep.reproduce.tables import Table
    from fpp_sweep.sweep.api import Options


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.list or not args.table:
        print(listing())
        return
    files = plugins.read(args.plugin)
    plugins.load(files)
    with flags_in_errors(args):
        selection = select(args)
    if args.dry_run:
        print_dry_run(selection)
        return
    words = sys.argv[1:] if argv is None else argv
    options = options_of(args, files, words)
    reproduction = reproduction_of(args, selection)
    tables = run_tables(reproduction, options)
    print_theory(selection, reproduction.folder)
    if tables:
        write_and_deliver(reproduction, tables)
    print(f"\nreproduction: {reproduction.folder}   tables: {reproduction.folder}/*/report/table.(csv|md|tex)")
    if any(table.failed for table in tables.values()):
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.reproduce", __doc__ or "", usage="--table NAME ... [options]")
    tables = options.add_argument_group("tables")
    table = "tables and figures by name, `all`, or a YAML file of your own"
    tables.add_argument("--table", nargs="+", default=[], metavar="NAME", help=table)
    tables.add_argument("--list", action="store_true", help="list tables and figures, each with its question")
    tables.add_argument("--methods", nargs="+", default=[], metavar="ROW", help="run only these rows of the tables")
    tables.add_argument("--coop", metavar="FILE", help="a CoOp checkpoint, for the tables that start from one")
    tables.add_argument("--maple", metavar="FILE", help="a MaPLe checkpoint, likewise")
    precisions = "of every row; default: released and float32 for the paper's model, else that of the table"
    tables.add_argument("--precision", nargs="+", default=[], choices=get_args(Precision), help=precisions)
    missing = "run on the datasets that are there, and say in every table which are missing"
    tables.add_argument("--allow-missing", action="store_true", help=missing)
    shows = "show the configs, what tables share, and an estimate of the cost; run nothing"
    tables.add_argument("--dry-run", action="store_true", help=shows)
    add_run_flags(options)
    options.set_defaults(model="tiny", out=Path("reproductions"))
    return options.parse_args(argv)


def listing() -> str:
    """Return every table and figure with its question."""
    lines = []
    for name in shipped():
        lines.append(f"{name:<{NAME_WIDTH}}  {find(name).question}")
    return "\n".join([*lines, "", f"    {runnable(command_line('reproduce', ['--table', 'main']))}"])


def print_dry_run(selection: Selection) -> None:
    if not selection.sweeps:
        return
    from fpp_sweep.sweep.estimate import dry_run  # start-up time

    print(dry_run([selection.spaces[name] for name in selection.sweeps]))


def options_of(args: argparse.Namespace, files: Sequence[PluginFile], words: Sequence[str]) -> Options:
    from fpp_sweep.sweep.api import Options  # start-up time

    return Options(
        address=args.address,
        tracking_uri=args.tracking_uri,
        verbose=args.verbose,
        command=command_line("reproduce", words),
        plugins=tuple(files),
    )


def reproduction_of(args: argparse.Namespace, selection: Selection) -> Reproduction:
    from fpp_sweep.reproduce.running import Reproduction  # start-up time

    experiments = {name: (selection.experiments[name], selection.spaces[name]) for name in selection.sweeps}
    folder = args.out / selection.folder_name
    return Reproduction(folder=folder, experiments=experiments, files=selection.files, notes=selection.notes)


def run_tables(reproduction: Reproduction, options: Options) -> dict[str, Table]:
    """Run all experiments with rows, then print their tables in the order of the request."""
    from fpp_sweep.reproduce.output import as_text  # start-up time
    from fpp_sweep.reproduce.running import reproduce  # start-up time
    from fpp_sweep.sweep.api import InterruptedSweep  # start-up time

    tables = {}
    try:
        for name, table in reproduce(reproduction, options):
            tables[name] = table
    except InterruptedSweep:
        print(f"interrupted; the same command continues:\n    {runnable(options.command)}", file=sys.stderr)
        sys.exit(130)
    for name in reproduction.experiments:
        print(as_text(tables[name]))
    return tables


def print_theory(selection: Selection, folder: Path) -> None:
    """Compute and print the experiments that need no sweep."""
    if not selection.theories:
        return
    from fpp_sweep.reproduce.analysis import compute  # start-up time

    for name in selection.theories:
        print(compute(name, selection.spaces[name], folder / name))


def write_and_deliver(reproduction: Reproduction, tables: Mapping[str, Table]) -> None:
    """Write the page, and bring MLflow up to date."""
    from fpp_sweep.reproduce.page import write_page  # start-up time
    from fpp_sweep.reproduce.running import deliver  # start-up time

    page = write_page(reproduction.folder, tables)
    problem = deliver([reproduction.sweep(name) for name in tables], [page])
    if problem:
        print(f"MLflow lacks the tables: {problem}", file=sys.stderr)
    print(f"\npage: {page.resolve().as_uri()}")


if __name__ == "__main__":
    run(main)
