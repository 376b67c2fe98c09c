"""Write a sweep's own record while it runs: its outcome, its end, and the corner of its hypervolume."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord, WorkTotals
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.sweep.api import InterruptedSweep

if TYPE_CHECKING:  # imports Ray, which a sweep in one process does without
    from fpp_sweep.search.searcher import SweepSearcher, TrialChange
    from fpp_sweep.workers.status import SchedulerStatus

EndState = Literal["finished", "failed", "interrupted"]


class SweepRecorder:
    """Writes sweep.json for one driver; time and work of earlier drivers are added."""

    def __init__(self, folder: SweepFolder, info: SweepInfo) -> None:
        """Take the record as it is before this driver has worked; it need not be written yet."""
        self.folder = folder
        self.spent_before = info.spent  # seconds that earlier drivers have worked
        self._work_before = info.work
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Return how long this driver has worked."""
        return time.monotonic() - self._began

    def record_outcome(self, searcher: SweepSearcher) -> None:
        """Record why the search ended."""
        self.folder.write_info(replace(self.folder.info(), end_reason=searcher.why_stopped or ""))

    def record_end(self, state: EndState, scheduler: SchedulerStatus | None = None) -> None:
        """Record the state in which this driver leaves the sweep, with its time and the work of its workers."""
        if state == "interrupted":
            self.record_interrupted_trials()
        work = self._work_before
        if scheduler is not None:
            counts = scheduler.counts
            work += WorkTotals(
                tasks=counts.done, cached=counts.cached, model_loads=counts.loads, workers_lost=counts.lost
            )
        finished = None if state == "interrupted" else time.time()
        spent = self.spent_before + self.seconds()
        self.folder.write_info(replace(self.folder.info(), state=state, finished=finished, spent=spent, work=work))

    def record_interrupted_trials(self) -> None:
        """Mark trials that were running, as far as the disk allows; a resumed sweep starts them again."""
        for file in self.folder.trial_files():
            with suppress(OSError, InputError):  # the resume names a damaged record
                record = self.folder.trial(file.stem)
                if record.state == "running":
                    reason = "the sweep was interrupted"
                    self.folder.write_trial(replace(record, state="interrupted", reason=reason, finished=time.time()))

    def on_change(self, change: TrialChange) -> None:
        if change.on_search_split and change.has_ended:
            self.record_reference(change.records)

    def record_reference(self, records: Sequence[TrialRecord]) -> None:
        """Record the corner of the hypervolume once all baselines have ended."""
        info = self.folder.info()
        if info.reference is not None:
            return
        baselines = [record for record in records if record.kind == "baseline"]
        reference = hypervolume_reference(info.objectives, baselines)
        if reference is not None:
            self.folder.write_info(replace(info, reference=reference))


@contextmanager
def recording_end(recorder: SweepRecorder) -> Iterator[None]:
    """Record how the sweep ended and how long it took, whatever happens within."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError, InputError):  # as far as disk and record allow
            recorder.record_end("interrupted")
        _raise_for_command(error, recorder.folder)
        raise
    recorder.record_end(end_state(recorder.folder.trials()))


def end_state(records: Sequence[TrialRecord]) -> EndState:
    """Return the state of a sweep that has come to its end: it has failed if no trial has succeeded.

    Baselines do not count: an imported one succeeds whatever the sweep does.
    """
    if any(record.kind == "trial" and record.state == "complete" for record in records):
        return "finished"
    return "failed"


@contextmanager
def recording_interruption(folder: SweepFolder) -> Iterator[None]:
    """Record an interruption, of any kind, that comes before the driver runs.

    Ctrl-C is raised as InterruptedSweep, and a failure of the machine as MachineError.
    """
    try:
        yield
    except BaseException as error:
        with suppress(OSError, InputError):  # the disk may be full, or the record damaged
            info = folder.info()
            if info.state == "running":
                folder.write_info(replace(info, state="interrupted"))
        _raise_for_command(error, folder)
        raise


def _raise_for_command(error: BaseException, folder: SweepFolder) -> None:
    """Raise InterruptedSweep for Ctrl-C and MachineError for a failure of the machine; return for other errors."""
    if isinstance(error, KeyboardInterrupt):
        raise InterruptedSweep from None
    if isinstance(error, OSError):
        raise machine_error(folder, error) from error


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
