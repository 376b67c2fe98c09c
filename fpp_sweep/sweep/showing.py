"""Output of `show`: a list of sweeps, the state of one sweep, or one trial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fpp_sweep.cli.names import sweeps_below
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.state import time_since_change
from fpp_sweep.report.text import output_width
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import printable
from fpp_sweep.sweep.heading import heading
from fpp_sweep.sweep.resume_command import command_that_continues
from fpp_sweep.sweep.summary import summary_lines
from fpp_sweep.sweep.sweep_list import sweep_table
from fpp_sweep.sweep.trial_view import trial_lines


def folder_text(path: Path) -> str:
    """Return how a sweep stands, or the list of the sweeps below a folder."""
    folder = SweepFolder(path)
    if folder.has_sweep:
        return "\n".join(_sweep_lines(folder))
    folders = sweeps_below(path)
    if not folders:
        raise InputError(f"{path}: has no sweeps; give the folder that --out named, which is `sweeps` by default")
    return sweep_table(folders)


def trial_text(path: Path, name: str, *, every_metric: bool) -> str:
    return "\n".join(trial_lines(SweepFolder.open(path), name, every_metric=every_metric))


def _sweep_lines(folder: SweepFolder) -> Iterator[str]:
    info = folder.info()
    yield from heading(folder, info.space, info.objectives, info.search_split, width=output_width())
    yield f"changed   {time_since_change(folder)}\n"
    yield from summary_lines(folder)
    continuation = command_that_continues(folder, info)
    if continuation:
        yield printable(f"continue    {continuation}")
