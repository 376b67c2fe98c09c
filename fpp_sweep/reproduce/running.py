"""Runs the experiments of a selection on the same workers with one cache, prints their tables, and writes the page."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.output import as_text, write_reproduction, write_results
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.reproduce.tables import ResultTable, save_experiment
from fpp_sweep.search.question import FIXED, require_askable
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.files import MAX_HANDWRITTEN_BYTES, read_own, write_json
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import check_before_ray_start
from fpp_sweep.sweep.start import run_sweep
from fpp_sweep.sweep.worker_pool import Workers, open_workers
from fpp_sweep.tracking.delivery import deliver
from fpp_sweep.tracking.stores import one_line, uri_of_folder


def run_selection(selection: Selection, folder: Path, options: Options) -> bool:
    """Run all experiments of a selection in a folder; return False if a row of a table failed."""
    tables = dict(_tables_of(selection, folder, replace(options, root=folder, group=_identity(folder))))
    for name in selection.experiments:
        print(as_text(tables[name]))
    if tables:
        page = write_reproduction(folder, tables)
        problem = deliver_all([table.sweep for table in tables.values()], options.tracking_uri)
        if problem:
            print(f"MLflow lacks the tables: {problem}", file=sys.stderr)
        print(f"\npage: {page.resolve().as_uri()}")
    print(f"\nreproduction: {folder}   tables: {folder}/*/report/table.(csv|md|tex)")
    return not any(table.failed for table in tables.values())


def _identity(folder: Path) -> str:
    """Return a reproduction's name and time of creation, which the first call writes to reproduction.json.

    The time tells two reproductions of one name on two machines apart.
    """
    file = folder / "reproduction.json"
    if not file.exists():
        write_json(file, {"name": folder.name, "created": round(time.time(), 3)})
    try:
        content = json.loads(read_own(file, MAX_HANDWRITTEN_BYTES))
        return f"{content['name']}@{content['created']:.3f}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{file}: not readable ({error}); delete the file, and a new one is written") from error


def _tables_of(selection: Selection, folder: Path, options: Options) -> Iterator[tuple[str, ResultTable]]:
    """Run or resume each experiment; yield its table when it has ended. Those that compare times come last."""
    with ExitStack() as worker_stack:
        shared_workers: Workers | None = None  # started for the first experiment that needs them
        for name in sorted(selection.experiments, key=lambda name: selection.experiments[name].alone):
            experiment, space = selection.experiments[name], selection.spaces[name]
            sweep = SweepFolder(folder / name)
            print(f"{name}: {experiment.title}", file=sys.stderr, flush=True)
            own_options = replace(options, name=name, resume=sweep.info_file.is_file())
            if not _is_done(sweep, space, own_options):
                if experiment.alone:  # `run_sweep` starts its worker; workers of other sweeps would disturb its times
                    worker_stack.close()
                    shared_workers = None
                elif shared_workers is None:
                    check_before_ray_start(space, own_options)
                    workers = open_workers(space, own_options, folder / "tasks")  # results that experiments share
                    shared_workers = worker_stack.enter_context(workers)
                try:
                    run_sweep(space, own_options, shared_workers)
                except (KeyboardInterrupt, MachineError):
                    if sweep.has_sweep:  # the page of an interrupted table is made from it
                        save_experiment(sweep.path, experiment, selection.checkpoints, selection.notes[name])
                    raise
            yield name, write_results(sweep, experiment, selection.checkpoints, selection.notes[name])


FIXED_IN_A_TABLE = (*FIXED, "preset", "base.")  # all rows of a table have these settings


def _is_done(folder: SweepFolder, space: Space, options: Options) -> bool:
    """Return True if all of a sweep is complete; raise InputError if the folder belongs to other settings."""
    if not folder.info_file.is_file():
        return False
    info = folder.info()
    require_askable(folder, space, options.plugin_digests(), FIXED_IN_A_TABLE)
    records = folder.trials()
    rows = space.queue()[: space.search.trials]
    if info.state != "finished" or info.space != space.plain() or len(records) < len(rows) + len(space.baselines()):
        return False
    return all(record.state == "complete" for record in records)


def deliver_all(folders: Sequence[SweepFolder], tracking_uri: str | None) -> str | None:
    """Bring MLflow up to date with the tables; return what went wrong."""
    try:
        for folder in folders:
            uri = uri_of_folder(folder, tracking_uri, flag="--tracking-uri")
            deliver(folder, uri)
    except Exception as error:  # MLflow is not reachable; the folder has everything
        return one_line(error)
    return None
