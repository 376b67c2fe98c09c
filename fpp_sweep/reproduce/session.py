"""Runs the experiments of a selection, prints their tables, and writes the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from fpp_sweep.reproduce.output import as_text
from fpp_sweep.reproduce.page import write_page
from fpp_sweep.reproduce.running import Reproduction, deliver_all, reproduce
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.reproduce.tables import ResultTable
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep import launch
from fpp_sweep.sweep.api import InterruptedSweep, Options
from fpp_sweep.sweep.folders import require_writable


def options_of(args: argparse.Namespace, *, command: str) -> Options:
    """Return the options of all sweeps of a command line."""
    return Options(address=args.address, tracking_uri=args.tracking_uri, verbose=args.verbose, command=command)


def print_dry_run(selection: Selection) -> None:
    launch.print_dry_run(list(selection.spaces.values()))


def run_selection(selection: Selection, folder: Path, options: Options) -> bool:
    """Run all experiments of a selection in a folder; return False if a row of a table failed."""
    require_writable(folder.parent)
    reproduction = Reproduction(folder, selection)
    tables = run_tables(reproduction, options)
    if tables:
        write_and_deliver(reproduction, tables, options.tracking_uri)
    print(f"\nreproduction: {folder}   tables: {folder}/*/report/table.(csv|md|tex)")
    return not any(table.failed for table in tables.values())


def run_tables(reproduction: Reproduction, options: Options) -> dict[str, ResultTable]:
    """Run all experiments, then print their tables in the order of the request."""
    tables = {}
    try:
        for name, table in reproduce(reproduction, options):
            tables[name] = table
    except InterruptedSweep:
        print(f"interrupted; the same command continues:\n    {runnable(options.command)}", file=sys.stderr)
        sys.exit(130)
    for name in reproduction.selection.experiments:
        print(as_text(tables[name]))
    return tables


def write_and_deliver(reproduction: Reproduction, tables: Mapping[str, ResultTable], tracking_uri: str | None) -> None:
    """Write the page, and bring MLflow up to date."""
    page = write_page(reproduction.folder, tables)
    problem = deliver_all([reproduction.sweep(name) for name in tables], [page], tracking_uri)
    if problem:
        print(f"MLflow lacks the tables: {problem}", file=sys.stderr)
    print(f"\npage: {page.resolve().as_uri()}")
