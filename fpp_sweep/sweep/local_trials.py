"""The trials of a sweep in this process, one after the other, and the record of how the sweep ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, TrialRecord
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.messages import note, plural
from fpp_sweep.sweep.api import InterruptedSweep
from fpp_sweep.sweep.listed_trials import write_listed_trials

TrialCallback = Callable[[SweepFolder, TrialRecord], None]


@contextmanager
def recording_end(folder: SweepFolder) -> Iterator[None]:
    """Record how the sweep ended and how long it took, whatever happens within."""
    began = time.monotonic()
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # as far as the disk allows
            _write_interruption(folder, began)
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedSweep from None
        if isinstance(error, OSError):
            raise MachineError.of(error) from error
        raise
    states = {record.state for record in folder.trials()}
    if "complete" in states:
        _write_end(folder, "finished", began)
    else:
        _write_end(folder, "failed", began)


def _write_interruption(folder: SweepFolder, began: float) -> None:
    for record in folder.trials():
        if record.state == "running":
            interrupted = replace(record, state="interrupted", reason="the sweep was interrupted", finished=time.time())
            folder.write_trial(interrupted)
    _write_end(folder, "interrupted", began)


def _write_end(folder: SweepFolder, state: Literal["finished", "failed", "interrupted"], began: float) -> None:
    info = folder.info()
    spent = info.spent + time.monotonic() - began
    finished = None
    if state != "interrupted":
        finished = time.time()
    folder.write_info(replace(info, state=state, finished=finished, spent=spent))


def run_trials(context: TrialContext, space: Space, on_trial: TrialCallback | None) -> None:
    """Run the listed trials of a space that have not ended, up to `search.max_failures` failures in a row."""
    search = space.search
    failures = 0
    for order, name in enumerate(write_listed_trials(space, context.folder)):
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
