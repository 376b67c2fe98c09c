"""The paper's tables and figures from one command: `python -m fpp_sweep.reproduce --table main`.

Each is a sweep over a grid on the test split; sweeps of one model share their results, and go on where they were ended.
With no flags it runs on the embedded model, which shows the form; the paper's numbers are ViT-B/16's:

    python -m fpp_sweep.reproduce --list
    python -m fpp_sweep.reproduce --table main seeds --model ViT-B-16/openai --data-root DATA --address auto
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from fpp_sweep.cli.command import parser, run
from fpp_sweep.cli.flags import add_run_flags, flags_in_errors, overrides
from fpp_sweep.reproduce.experiments import Experiment, beside, find, in_precisions, shipped
from fpp_sweep.space.space import Space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.messages import command_line, note, runnable
from fpp_sweep.spec.specs import Precision


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.list or not args.table:
        print(listing())
        return
    files = plugins.read(args.plugin)
    plugins.load(files)
    experiments = {one.name: one for one in chosen(args)}
    if precisions := possible(args) if args.precision else printed(args):
        experiments = {name: one if one.theory else in_precisions(one, precisions) for name, one in experiments.items()}
        rows = {row.name for one in experiments.values() for row in one.rows}
        args.methods += [each for name in args.methods for each in beside(name, precisions) if each in rows]
    from fpp_sweep.reproduce.output import as_text
    from fpp_sweep.reproduce.page import write_page
    from fpp_sweep.reproduce.running import Reproduction, deliver, reproduce
    from fpp_sweep.sweep.api import InterruptedSweep, Options

    check_methods(args.methods, experiments.values())
    with flags_in_errors(args):
        spaces = {name: space_of(one, args) for name, one in experiments.items() if not one.theory}
    whole = Reproduction(
        folder=args.out / name_of(args),
        experiments={name: (experiments[name], space) for name, (space, _) in spaces.items()},
        files=checkpoints(args),
        notes={name: notes for name, (_, notes) in spaces.items()},
    )
    if args.dry_run and spaces:
        from fpp_sweep.sweep.estimate import dry_run

        print(dry_run([space for space, _ in spaces.values()]))
    if args.dry_run:
        return
    words = sys.argv[1:] if argv is None else argv
    options = Options(
        address=args.address,
        tracking_uri=args.tracking_uri,
        verbose=args.verbose,
        command=command_line("reproduce", words),
        plugins=files,
    )
    tables = {}
    try:
        for name, table in reproduce(whole, options):
            tables[name] = table
    except InterruptedSweep:
        print(f"interrupted; the same command continues:\n    {runnable(options.command)}", file=sys.stderr)
        sys.exit(130)
    for name in whole.experiments:
        print(as_text(tables[name]))
    for name, experiment in experiments.items():
        if experiment.theory:
            from fpp_sweep.reproduce.analysis import compute

            print(compute(name, space_of(experiment, args)[0], whole.folder / name))
    if tables:
        page = write_page(whole.folder, tables)
        if problem := deliver([whole.sweep(name) for name in tables], [page]):
            print(f"MLflow lacks the tables: {problem}", file=sys.stderr)
        print(f"\npage: {page.resolve().as_uri()}")
    print(f"\nreproduction: {whole.folder}   tables: {whole.folder}/*/report/table.(csv|md|tex)")
    if any(table.failed for table in tables.values()):
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.reproduce", __doc__ or "", usage="--table NAME ... [options]")
    tables = options.add_argument_group("tables")
    table = "tables and figures by name, `all`, or a YAML file of your own"
    tables.add_argument("--table", nargs="+", default=[], metavar="NAME", help=table)
    tables.add_argument("--list", action="store_true", help="list tables and figures, each with its question")
    tables.add_argument("--methods", nargs="+", default=[], metavar="ROW", help="only some rows of the tables, by name")
    tables.add_argument("--coop", metavar="FILE", help="a CoOp checkpoint, for the tables that start from one")
    tables.add_argument("--maple", metavar="FILE", help="a MaPLe checkpoint, likewise")
    precisions = "of every row; default: fp16 as printed and float32 for the paper's model, else that of the table"
    tables.add_argument("--precision", nargs="+", default=[], choices=get_args(Precision), help=precisions)
    missing = "run on the datasets that are there, and say in every table which are missing"
    tables.add_argument("--allow-missing", action="store_true", help=missing)
    shows = "show the configs, what tables share, and an estimate of the cost; run nothing"
    tables.add_argument("--dry-run", action="store_true", help=shows)
    add_run_flags(options)
    options.set_defaults(model="tiny", out=Path("reproductions"))
    return options.parse_args(argv)


def name_of(args: argparse.Namespace) -> str:
    """Of the reproduction's folder."""
    if args.name is None:
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", args.model).strip("-")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", args.name):
        raise InputError(f"--name {args.name!r}: letters, digits, dots, dashes and underscores only; it names a folder")
    return str(args.name)


def listing() -> str:
    width = max(map(len, shipped()))
    lines = [f"{name:<{width}}  {find(name).question}" for name in shipped()]
    return "\n".join([*lines, "", f"    {runnable(command_line('reproduce', ['--table', 'main']))}"])


def chosen(args: argparse.Namespace) -> list[Experiment]:
    """The tables asked for, each once; of `all`, those that can be run, and a note of the others."""
    found = [find(name) for name in dict.fromkeys(args.table) if name != "all"]
    if "all" not in args.table:
        return found
    for name in shipped():
        experiment = find(name)
        try:
            space_of(experiment, args)
            found += [experiment] if name not in args.table else []
        except InputError as error:
            note(f"left out: {error}")
    return found


def possible(args: argparse.Namespace) -> list[str]:
    """The precisions that are asked for, without those that this machine cannot compute in; a cluster's may differ."""
    from fpp_sweep.core.compute.precision import require_precision_support
    from fpp_sweep.core.models.clip import choose_device

    able, problems = [], []
    for precision in dict.fromkeys(args.precision):
        try:
            if not args.address:
                require_precision_support(precision, choose_device("auto"))
            able.append(precision)
        except InputError as error:
            problems.append(error)
    if not able:
        raise problems[0]
    for problem in problems:
        note(f"its rows are left out: {problem}")
    return able


def printed(args: argparse.Namespace) -> list[str]:
    """Of the paper's model what its rows were made in, and the exact one beside it; else it is left to the table."""
    from fpp_sweep.reproduce.cells import is_papers_model

    told = any("precision" in each.partition("=")[0] for each in args.set)
    return ["fp16", "float32"] if is_papers_model(args.model) and not told else []


def check_methods(names: Sequence[str], experiments: Iterable[Experiment]) -> None:
    """Each must be a row of some table, and each table must have one of them."""
    rows = {one.name: [row.name for row in one.rows] for one in experiments if not one.theory}
    known = list(dict.fromkeys(row for of_table in rows.values() for row in of_table))
    for name in names:
        if name not in known:
            raise InputError(f"--methods {name}: {unknown('row', name, known)}")
    for table, of_table in rows.items():
        if names and not set(names) & set(of_table):
            raise InputError(f"--methods: table {table} has none of these rows; it has {', '.join(of_table)}")


def checkpoints(args: argparse.Namespace) -> dict[str, str]:
    given = {name: getattr(args, name) for name in ("coop", "maple") if getattr(args, name)}
    for name, path in given.items():
        if not Path(path).is_file():
            raise InputError(f"--{name} {path}: no such file")
    return given


def space_of(experiment: Experiment, args: argparse.Namespace) -> tuple[Space, list[str]]:
    """The experiment's space with what the command line says otherwise, and what its tables must say of that."""
    assignments = overrides(args)
    if args.model == "tiny" and not (args.datasets or args.dataset_file):
        assignments.insert(0, f"work.datasets=[{', '.join(experiment.embedded())}]")
    elif args.dataset_file and not args.datasets:
        assignments.insert(0, "work.datasets=[]")
    asked = {"files": checkpoints(args), "rows": args.methods}
    space = experiment.space(overrides=assignments, **asked)
    notes = []
    if args.allow_missing:
        there, missing = present(space)
        space = experiment.space(overrides=[*assignments, f"work.datasets=[{', '.join(there)}]"], **asked)
        notes += [f"PARTIAL: without {', '.join(missing)}, which are not there"] if missing else []
    left = [row.title for row in experiment.rows if not checkpoints(args).keys() >= set(row.files)]
    notes += [f"PARTIAL: without {', '.join(left)}, whose checkpoints were not given"] if left else []
    return space, notes


def present(space: Space) -> tuple[list[str], list[str]]:
    """The space's datasets that can be opened here, and those that cannot."""
    from fpp_sweep.core.datasets import expand, open_dataset, read_custom

    work = space.work
    custom = read_custom(Path(work.dataset_file)) if work.dataset_file else {}
    root = Path(work.data_root) if work.data_root else None
    found, missing, problem = [], [], None
    for name in expand(list(work.datasets) or list(custom), custom):
        try:
            open_dataset(name, space.search.split, root, custom)
            found.append(name)
        except InputError as error:
            problem = error
            missing.append(name)
            note(f"left out: {error}")
    if not found and problem:
        raise problem
    return found, missing


if __name__ == "__main__":
    run(main)
