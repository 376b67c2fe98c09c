"""Write a sweep's own record while it runs: its end, and the corner of its hypervolume."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import TrialRecord, WorkTotals
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.sweep.api import InterruptedSweep

if TYPE_CHECKING:  # imports Ray, which a sweep in one process does without
    from fpp_sweep.search.searcher import TrialChange
    from fpp_sweep.workers.status import SchedulerStatus

EndState = Literal["finished", "failed", "interrupted"]


class SweepRecorder:
    """Records the end of a sweep and its corner; time and work of earlier drivers are added."""

    def __init__(self, record: SweepRecord) -> None:
        """Take the record as it is before this driver has worked."""
        self.record = record
        self.spent_before = record.info.spent  # seconds that earlier drivers have worked
        self._work_before = record.info.work
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Return how long this driver has worked."""
        return time.monotonic() - self._began

    def record_end(self, state: EndState, scheduler: SchedulerStatus | None = None) -> None:
        """Record the state in which this driver leaves the sweep, with its time and the work of its workers."""
        if state == "interrupted":
            self._record_interrupted_trials()
        work = self._work_before
        if scheduler is not None:
            counts = scheduler.counts
            work += WorkTotals(
                tasks=counts.done, cached=counts.cached, model_loads=counts.loads, workers_lost=counts.lost
            )
        finished = None if state == "interrupted" else time.time()
        self.record.update(state=state, finished=finished, spent=self.spent_before + self.seconds(), work=work)

    def _record_interrupted_trials(self) -> None:
        """Mark trials that were running, as far as the disk allows; a resumed sweep starts them again."""
        folder = self.record.folder
        for file in folder.trial_files():
            with suppress(OSError, InputError):  # the resume names a damaged record
                record = folder.trial(file.stem)
                if record.state == "running":
                    reason = "the sweep was interrupted"
                    folder.write_trial(replace(record, state="interrupted", reason=reason, finished=time.time()))

    def on_change(self, change: TrialChange) -> None:
        if change.on_search_split and change.has_ended:
            self.record_reference(change.records)

    def record_reference(self, records: Sequence[TrialRecord]) -> None:
        """Record the corner of the hypervolume once all baselines have ended."""
        info = self.record.info
        if info.reference is not None:
            return
        baselines = [record for record in records if record.kind == "baseline" and not record.outside]
        reference = hypervolume_reference(info.objectives, baselines)
        if reference is not None:
            self.record.update(reference=reference)


@contextmanager
def recording_end(recorder: SweepRecorder) -> Iterator[None]:
    """Record how the sweep ended and how long it took, whatever happens within."""
    state: EndState = "interrupted"
    try:
        yield
        state = end_state(recorder.record.folder.trials())
    finally:
        with suppress(OSError):  # the disk may be full, which may be the reason for the interruption
            recorder.record_end(state)


@contextmanager
def errors_for_command(folder: SweepFolder) -> Iterator[None]:
    """Raise InterruptedSweep for Ctrl-C and MachineError for a failure of the machine."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedSweep from None
    except OSError as error:
        raise machine_error(folder, error) from error


def end_state(records: Sequence[TrialRecord]) -> EndState:
    """Return the state of a sweep that has come to its end: it has failed if no trial has succeeded.

    Baselines do not count: an imported one succeeds whatever the sweep does.
    """
    if any(record.kind == "trial" and record.state == "complete" for record in records):
        return "finished"
    return "failed"


def machine_error(folder: SweepFolder, error: OSError) -> MachineError:
    """Return an error with its remedy; a sweep that has no record yet cannot be resumed."""
    if folder.has_sweep:
        return MachineError.of(error)
    return MachineError.of(error, "start again")


def hypervolume_reference(objectives: Sequence[Objective], baselines: Sequence[TrialRecord]) -> list[float] | None:
    """Return the corner from which hypervolume is measured: each objective's reference, or else the worst baseline.

    Return None as long as a baseline has not ended, or if an objective has neither.
    """
    measured = []
    for record in baselines:
        if record.state in ("waiting", "running", "interrupted"):
            return None
        if record.values is not None:
            measured.append(record.values)
    corner = []
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            corner.append(objective.reference)
        elif measured:
            values = [point[index] for point in measured]
            corner.append(min(values) if objective.goal == "max" else max(values))
        else:
            return None
    return corner
