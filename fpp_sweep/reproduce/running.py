"""Runs the experiments of a selection on the same workers with one cache, prints their tables, and writes the page."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.output import as_text, write_reproduction, write_results
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.reproduce.tables import ResultTable
from fpp_sweep.search.question import require_askable
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import MAX_HANDWRITTEN_BYTES, read_own, write_json
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import check_before_ray_start
from fpp_sweep.sweep.start import run_sweep
from fpp_sweep.sweep.worker_pool import Workers, open_workers
from fpp_sweep.tracking.delivery import deliver
from fpp_sweep.tracking.stores import one_line, uri_of_folder


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Some experiments on one model, and the folder of their sweeps."""

    folder: Path
    selection: Selection

    def sweep(self, name: str) -> SweepFolder:
        """Return the folder of an experiment's sweep."""
        return SweepFolder(self.folder / name)

    @property
    def tasks(self) -> Path:
        """The folder of the task results that experiments share."""
        return self.folder / "tasks"

    def identity(self) -> str:
        """Return name and time of creation, which the first call writes to reproduction.json.

        The time tells two reproductions of one name on two machines apart.
        """
        file = self.folder / "reproduction.json"
        if not file.exists():
            write_json(file, {"name": self.folder.name, "created": round(time.time(), 3)})
        try:
            content = json.loads(read_own(file, MAX_HANDWRITTEN_BYTES))
            return f"{content['name']}@{content['created']:.3f}"
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"{file}: not readable ({error}); delete the file, and a new one is written") from error

    def running_order(self) -> list[str]:
        """Return the names of the sweeps in the order in which they run; experiments that compare times come last."""
        return sorted(self.selection.experiments, key=lambda name: self.selection.experiments[name].alone)


def reproduce(reproduction: Reproduction, options: Options) -> Iterator[tuple[str, ResultTable]]:
    """Run or resume each experiment; yield its table when it has ended."""
    with ExitStack() as worker_stack:
        shared_workers: Workers | None = None  # started for the first experiment that needs them
        for name in reproduction.running_order():
            experiment, space = reproduction.selection.experiments[name], reproduction.selection.spaces[name]
            folder = reproduction.sweep(name)
            print(f"{name}: {experiment.title}", file=sys.stderr, flush=True)
            own_options = replace(
                options,
                root=reproduction.folder,
                name=name,
                resume=folder.info_file.is_file(),
                group=reproduction.identity(),
            )
            if not _is_done(folder, space, own_options):
                if experiment.alone:  # `run_sweep` starts its worker; workers of other sweeps would disturb its times
                    worker_stack.close()
                    shared_workers = None
                elif shared_workers is None:
                    check_before_ray_start(space, own_options)
                    workers = open_workers(space, own_options, reproduction.tasks)
                    shared_workers = worker_stack.enter_context(workers)
                run_sweep(space, own_options, shared_workers)
            selection = reproduction.selection
            yield name, write_results(folder, experiment, selection.checkpoints, selection.notes[name])


def _is_done(folder: SweepFolder, space: Space, options: Options) -> bool:
    """Return True if all of a sweep is complete; raise InputError if the folder belongs to other settings."""
    if not folder.info_file.is_file():
        return False
    info = folder.info()
    require_askable(folder, space, options.plugin_digests())
    records = folder.trials()
    rows = space.queue()[: space.search.trials]
    if info.state != "finished" or info.space != space.plain() or len(records) < len(rows) + len(space.baselines()):
        return False
    return all(record.state == "complete" for record in records)


def run_selection(selection: Selection, folder: Path, options: Options) -> bool:
    """Run all experiments of a selection in a folder; return False if a row of a table failed."""
    reproduction = Reproduction(folder, selection)
    tables = dict(reproduce(reproduction, options))
    for name in selection.experiments:
        print(as_text(tables[name]))
    if tables:
        write_and_deliver(reproduction, tables, options.tracking_uri)
    print(f"\nreproduction: {folder}   tables: {folder}/*/report/table.(csv|md|tex)")
    return not any(table.failed for table in tables.values())


def write_and_deliver(reproduction: Reproduction, tables: Mapping[str, ResultTable], tracking_uri: str | None) -> None:
    """Write the page, and bring MLflow up to date."""
    page = write_reproduction(reproduction.folder, tables)
    problem = deliver_all([reproduction.sweep(name) for name in tables], tracking_uri)
    if problem:
        print(f"MLflow lacks the tables: {problem}", file=sys.stderr)
    print(f"\npage: {page.resolve().as_uri()}")


def deliver_all(folders: Sequence[SweepFolder], tracking_uri: str | None) -> str | None:
    """Bring MLflow up to date with the tables; return what went wrong."""
    try:
        for folder in folders:
            uri = uri_of_folder(folder, tracking_uri, flag="--tracking-uri")
            deliver(folder, uri)
    except Exception as error:  # MLflow is not reachable; the folder has everything
        return one_line(error)
    return None
