"""Runs experiments one after the other on the same workers, with one place for the results that they share."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.cells import Table, remember, table_of
from fpp_sweep.reproduce.experiments import Experiment
from fpp_sweep.reproduce.figures import write_figure
from fpp_sweep.reproduce.output import write_table
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import write_json
from fpp_sweep.spec.messages import note
from fpp_sweep.sweep.api import Options, require_same
from fpp_sweep.sweep.preflight import Workers, mended, open_workers, require_named
from fpp_sweep.sweep.run import run_sweep
from fpp_sweep.tracking import one_line, recorded, ship, ship_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Some experiments on one model, and where their sweeps are."""

    folder: Path
    experiments: Mapping[str, tuple[Experiment, Space]]  # by name, in the order asked for
    files: Mapping[str, str] = field(default_factory=dict)  # the user's checkpoints
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by experiment: what its tables must say

    def sweep(self, name: str) -> SweepFolder:
        return SweepFolder(self.folder / name)

    @property
    def tasks(self) -> Path:
        """Results that the experiments share."""
        return self.folder / "tasks"

    def identity(self) -> str:
        """Its name and when it was made: two of one name, on two machines, differ."""
        file = self.folder / "reproduction.json"
        if not file.is_file():
            write_json(file, {"name": self.folder.name, "created": round(time.time(), 3)})
        try:
            known = json.loads(file.read_text())
            return f"{known['name']}@{known['created']:.3f}"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{file}: not readable ({error}); delete it, and another is made") from error

    def in_order(self) -> list[str]:
        """Those first whose predictions have more columns, as these serve the others, too; those with times last."""
        return sorted(self.experiments, key=lambda name: (self.experiments[name][0].alone, -len(self._columns(name))))

    def _columns(self, name: str) -> tuple[str, ...]:
        return self.experiments[name][1].work.columns


def reproduce(whole: Reproduction, options: Options) -> Iterator[tuple[str, Table]]:
    """Run, or go on with, each experiment; yields its table when it has ended."""
    with ExitStack() as opened:
        shared: Workers | None = None
        for name in whole.in_order():
            experiment, space = whole.experiments[name]
            folder = whole.sweep(name)
            print(f"{name}: {experiment.title}", file=sys.stderr, flush=True)
            make_whole(folder)
            forget_failed(folder)
            resume = folder.info_file.is_file()
            own = replace(options, root=whole.folder, name=name, resume=resume, group=whole.identity())
            if _is_done(folder, space, own):
                pass
            elif experiment.alone:
                opened.close()  # its times must not be disturbed
                run_sweep(space, own)
            else:
                if shared is None:
                    require_named(space, own)
                    shared = opened.enter_context(open_workers(space, own, whole.tasks))
                run_sweep(space, own, shared)
            notes = whole.notes.get(name, ())
            remember(folder, experiment, whole.files, notes)
            table = table_of(experiment, folder, whole.files, notes)
            write_table(folder.report, table)
            write_figure(folder, table)
            yield name, table


def make_whole(folder: SweepFolder) -> None:
    """What was damaged in the folder of a table that was begun; a row without a record is run again."""
    if folder.begun:
        with folder.locked():
            info, problem = folder.restored_info()
            mended(folder, info, space_of(info.space, str(folder.info_file)), problem)


def forget_failed(folder: SweepFolder) -> None:
    """A table whose rows failed begins again; what did not fail is at hand among the results that tables share."""
    if folder.info_file.is_file() and folder.info().state in ("finished", "failed"):
        failed = [record.name for record in folder.trials() if record.state == "failed"]
        if failed:
            note(f"{len(failed)} trials failed last time; they are tried again")
            shutil.rmtree(folder.path)


def _is_done(folder: SweepFolder, space: Space, options: Options) -> bool:
    """Whether there is nothing left to run; InputError if it was begun with other settings."""
    if not folder.info_file.is_file():
        return False
    info = folder.info()
    require_same(info, space, options, folder)
    records = folder.trials()
    there = len(records) >= len(space.queue()[: space.search.trials]) + len(space.baselines())
    return info.state == "finished" and there and all(record.state == "complete" for record in records)


def deliver(folders: Sequence[SweepFolder], files: Sequence[Path]) -> str | None:
    """Bring MLflow up to date with the tables, and with files of the whole; what went wrong."""
    try:
        for folder in folders:
            ship(folder, recorded(folder.info().tracking_uri))
        ship_whole(folders[0], recorded(folders[0].info().tracking_uri), files)
    except Exception as error:  # MLflow is away: the folder has it all
        return one_line(error)
    return None
