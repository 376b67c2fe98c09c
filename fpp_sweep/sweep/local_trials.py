"""The listed trials of a sweep in this process, one after the other, and the record of how the sweep ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, TrialRecord, trial_name, waiting_record
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.files import set_aside
from fpp_sweep.spec.messages import note, plural
from fpp_sweep.sweep.api import InterruptedSweep
from fpp_sweep.sweep.recording import SweepRecorder

TrialCallback = Callable[[SweepFolder, TrialRecord], None]
NEED_RAY = ("wall_clock", "gpu_hours", "concurrency", "patience", "race", "notify")  # keys of `search`


def require_listed(space: Space) -> None:
    """Raise InputError if the space asks for a search, or for something that only workers on Ray do."""
    if space.search.sampler != "grid":
        raise InputError(f"sampler {space.search.sampler} needs workers on Ray; give --workers", "search.sampler")
    if space.work.baselines:
        raise InputError("baselines need workers on Ray; give --workers", "work.baselines")
    defaults = Search()
    for key in NEED_RAY:
        if getattr(space.search, key) != getattr(defaults, key):
            raise InputError("needs workers on Ray; give --workers, or leave the key out", f"search.{key}")


@contextmanager
def recording_end(recorder: SweepRecorder) -> Iterator[None]:
    """Record how the sweep ended and how long it took, whatever happens within."""
    try:
        yield
    except BaseException as error:
        recorder.record_interrupted_trials()
        with suppress(OSError):  # as far as the disk allows
            recorder.record_end("interrupted")
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedSweep from None
        if isinstance(error, OSError):
            raise MachineError.of(error) from error
        raise
    states = {record.state for record in recorder.folder.trials()}
    recorder.record_end("finished" if "complete" in states else "failed")


def run_trials(context: TrialContext, space: Space, on_trial: TrialCallback | None) -> None:
    """Run the listed trials of a space that have not ended, up to `search.max_failures` failures in a row."""
    search = space.search
    failures = 0
    for order, name in enumerate(_write_listed_trials(space, context.folder)):
        record = context.folder.trial(name)
        if record.state in ENDED:
            continue
        if search.max_failures is not None and failures >= search.max_failures:
            note(f"{plural(failures, 'trial')} in a row failed; the others are not begun")
            break
        attempt = record.attempt
        if record.started:
            attempt += 1
        started = replace(record, state="running", started=time.time(), attempt=attempt, reason=None, details=None)
        context.folder.write_trial(started)
        run_job(context, name=name, split=search.split, order=order)
        record = context.folder.trial(name)
        failures += 1
        if record.state != "failed":
            failures = 0
        if on_trial is not None:
            on_trial(context.folder, record)


def _write_listed_trials(space: Space, folder: SweepFolder) -> list[str]:
    """Write a record for each point that has none yet, and return the names of all of them in their order."""
    names = []
    for number, (origin, values) in enumerate(space.queue()[: space.search.trials]):
        name = trial_name(number)
        if not _has_record(folder, name):
            config = space.resolve(values)
            folder.write_trial(waiting_record(name, "trial", config, number=number, origin=origin, params=values))
        names.append(name)
    return names


def _has_record(folder: SweepFolder, name: str) -> bool:
    """Return whether a trial has a record; a damaged one is renamed, so that the trial runs again."""
    file = folder.trial_file(name)
    if not file.exists():
        return False
    try:
        folder.trial(name)
    except InputError as error:
        problem = str(error).partition(";")[0]
        note(f"{problem}; kept as {set_aside(file)}, and the trial runs again")
        return False
    return True
