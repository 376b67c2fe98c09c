"""The commands of `steer`: they are checked, written into the sweep's folder, and answered by its driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, Command, SweepInfo
from fpp_sweep.search.question import asked_space, with_command
from fpp_sweep.space.reading import space_of
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.resume_command import resume_command


def stop_trial(sweep: Path, name: str) -> str:
    """Ask a sweep to stop a trial, and return what happens next."""
    folder = SweepFolder.open(sweep)
    record = folder.known_trial(name)
    if record.state in ENDED:
        raise InputError(f"{name} is {record.state}; only a trial that has not ended can be stopped")
    return _what_happens_next(folder, folder.info(), folder.send_command("stop", [record.name]))


def change_space(sweep: Path, kind: Literal["add", "set"], words: Sequence[str]) -> str:
    """Ask a sweep to try a point, or another space with some keys changed; return what happens next."""
    folder = SweepFolder.open(sweep)
    info = folder.info()
    if info.evaluate_only:
        problem = "was run by `evaluate`, which takes no further points and no other space"
        raise InputError(f"{info.name}: {problem}; call evaluate --resume with other values")
    asked, _ = asked_space(folder, space_of(info.space, str(folder.info_file)), info.plugins)
    with_command(folder, asked, Command(kind=kind, words=words, written=0.0), info.plugins)  # refuses an impossible one
    return _what_happens_next(folder, info, folder.send_command(kind, words))


def _what_happens_next(folder: SweepFolder, info: SweepInfo, command: Command) -> str:
    """Return the command in words, and when it is applied: soon, or after the sweep is resumed."""
    if info.state == "running":
        return f"{command.text}: the running sweep applies it within seconds; if it was killed, on --resume"
    return f"{command.text}: {folder.path.name} is {info.state}; to have it applied: {resume_command(folder, info)}"
