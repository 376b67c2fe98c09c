"""Runs experiments one after the other on the same workers, with one place for the results that they share."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.cells import Table, table_of
from fpp_sweep.reproduce.experiments import Experiment
from fpp_sweep.space.space import Space
from fpp_sweep.sweep.handle import Options
from fpp_sweep.sweep.preflight import Workers, open_workers
from fpp_sweep.sweep.run import run_sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Some experiments on one model, and where their sweeps are."""

    folder: Path
    experiments: Mapping[str, tuple[Experiment, Space]]  # by name, in the order asked for
    files: Mapping[str, str] = field(default_factory=dict)  # the user's checkpoints

    def sweep(self, name: str) -> SweepFolder:
        return SweepFolder(self.folder / name)

    @property
    def tasks(self) -> Path:
        """Results that the experiments share."""
        return self.folder / "tasks"

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
            own = replace(options, root=whole.folder, name=name, resume=folder.info_file.is_file())
            if experiment.alone:
                opened.close()  # its times must not be disturbed
                run_sweep(space, own)
            else:
                if shared is None:
                    shared = opened.enter_context(open_workers(space, own, whole.tasks))
                run_sweep(space, own, shared)
            yield name, table_of(experiment, folder, whole.files)
