"""The driver of a sweep: search, display, report, notifications and MLflow, kept in order however it ends.

To import it takes seconds and loads Ray, which reads its environment when it is loaded: `session` must have set that.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord, WorkTotals
from fpp_sweep.records.steering import Queue
from fpp_sweep.search.racing import saved
from fpp_sweep.search.searcher import SweepSearcher, conduct
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.search.trial_runner import TrialContext
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.messages import stage
from fpp_sweep.sweep.api import InterruptedSweep, Options
from fpp_sweep.sweep.display import Display, split_line, trial_line
from fpp_sweep.sweep.live_status import live_status
from fpp_sweep.sweep.notify import Notifier
from fpp_sweep.sweep.opening import OpenedSweep
from fpp_sweep.sweep.reporter import Reporter
from fpp_sweep.tracking import Shipper
from fpp_sweep.workers.scheduler import SchedulerStatus
from fpp_sweep.workers.session import remove_own
from fpp_sweep.workers.status import StatusPoller

DELIVERY_SECONDS = 60.0  # for MLflow at the end of a sweep
INTERRUPTED_DELIVERY_SECONDS = 10.0  # the same after an interrupt
HURRIED_DELIVERY_SECONDS = 3.0  # the same after a second interrupt
EndState = Literal["finished", "failed", "interrupted"]


class SweepDriver:
    """A running sweep: the searcher, and everything that reports on it."""

    def __init__(self, space: Space, folder: SweepFolder, opened: OpenedSweep, options: Options, uri: str) -> None:
        self.space, self.folder, self.opened, self.options = space, folder, opened, options
        self.began = time.monotonic()
        info = folder.info()
        self.spent_before = info.spent  # seconds that earlier drivers have worked
        self.work_before = info.work
        self.delivery_seconds = DELIVERY_SECONDS
        self.shipper = Shipper(folder, uri)
        self.display = Display(sys.stderr, objectives=space.objectives)
        self.reporter = Reporter(folder, self.shipper)
        self.notifier = Notifier(space.search.notify, folder.path)
        self.tune_folder = ""  # for Tune's own records, which nothing reads
        self.poller = StatusPoller(opened.pool, self._show_status, self._note_restart, self._leave)
        self.searcher = SweepSearcher(
            space,
            folder,
            SweepStudy(folder.study_file, info.name, space, Queue.of(folder, info)),
            plan=opened.plan,
            watch=self.poller,
            gpus_per_worker=opened.gpus_per_worker,
            on_change=self._on_change,
            finish=options.finish,
        )

    def run(self) -> None:
        """Search to the end, or until an interrupt or a failure of the machine; report and deliver in any case."""
        try:
            self.search()
        except (KeyboardInterrupt, OSError) as error:
            self._record_interruption()
            if self.poller.lost:
                raise self.poller.lost from None
            if isinstance(error, OSError):
                raise MachineError.of(error) from error
            raise InterruptedSweep from None
        finally:
            self.close()

    def search(self) -> None:
        """Run all trials, and record how the sweep ended."""
        self.searcher.begin()
        self.shipper.start()
        self.reporter.start()
        self.poller.start()
        self.tune_folder = tempfile.mkdtemp(prefix="fpp_sweep-")
        conduct(self.searcher, self._trial_context(), self.tune_folder)
        self._record_outcome()
        trials = [record for record in self.folder.trials() if record.kind == "trial"]
        has_result = any(record.state == "complete" for record in trials)
        self._record_end("finished" if has_result else "failed")

    def _trial_context(self) -> TrialContext:
        return TrialContext(
            folder=self.folder,
            executor=self.opened.pool,
            plan=self.opened.plan,
            objectives=self.space.objectives,
            constraints=self.space.constraints,
            search_split=self.space.search.split,
            plugins=self.options.plugins,
            race=self.space.search.race,
        )

    # ------------------------------------------------------------ the sweep's own record

    def _record_outcome(self) -> None:
        """Record why the search ended, and what early stopping and the confirmation came to."""
        info = replace(self.folder.info(), end_reason=self.searcher.why_stopped or "")
        if self.space.search.race:
            info = replace(info, race=saved(self.searcher.records(), self.space.search.split))
        if confirmation := self.searcher.confirmation:
            info = replace(info, confirmed=confirmation.told(), confirmed_front=list(confirmation.front))
        self.folder.write_info(info)

    def _record_interruption(self) -> None:
        """Mark what was running, as far as the disk allows; a resumed sweep starts it again."""
        self.delivery_seconds = INTERRUPTED_DELIVERY_SECONDS
        with suppress(KeyboardInterrupt):  # the poller may interrupt as well
            self.poller.close()
        with suppress(OSError):
            for record in self.folder.trials():
                if record.state == "running":
                    reason = "the sweep was interrupted"
                    self.folder.write_trial(replace(record, state="interrupted", reason=reason, finished=time.time()))
            self._record_end("interrupted")

    def _record_end(self, state: EndState) -> None:
        info = replace(
            self.folder.info(),
            state=state,
            finished=None if state == "interrupted" else time.time(),
            spent=self.spent_before + self._seconds(),
            work=self._work(),
        )
        self.folder.write_info(info)
        self.notifier.send(state, front=self._front_values())

    def _work(self) -> WorkTotals:
        """Return the work of this driver's workers added to that of the drivers before it."""
        self.poller.look()
        status = self.poller.status
        if status is None:
            return self.work_before
        return self.work_before + WorkTotals(
            tasks=status.done, cached=status.at_hand, model_loads=status.loads, workers_lost=status.lost
        )

    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _front_values(self) -> dict[str, dict[str, float]]:
        metrics = [objective.metric for objective in self.space.objectives]
        values = {}
        for member in self.searcher.front():
            values[member.name] = dict(zip(metrics, member.values or (), strict=True))
        return values

    # ------------------------------------------------------------ called by the searcher and the poller

    def _on_change(self, record: TrialRecord, split: str) -> None:
        """Report that the searcher has started or ended a trial or baseline on a split."""
        self.reporter.nudge()
        if record.name in self.searcher.progress.running:
            return
        if split != self.space.search.split:
            self.display.event(split_line(record, split, self.space.objectives))
            return
        self._fix_reference()
        style = ""
        joins_front = record.kind == "trial" and record.name in {member.name for member in self.searcher.front()}
        if record.state == "failed":
            style = "red"
            self.notifier.send("trial failed", trial=record.name, reason=record.reason)
        elif joins_front:
            style = "green"
            self.notifier.send("new front", trial=record.name, front=self._front_values())
        self.display.event(trial_line(record, self.space.objectives, on_front=joins_front), style)

    def _fix_reference(self) -> None:
        """Record the corner of the hypervolume once all baselines have ended."""
        info = self.folder.info()
        if info.reference is not None:
            return
        baselines = [record for record in self.searcher.records() if record.kind == "baseline"]
        reference = hypervolume_reference(info.objectives, baselines)
        if reference is not None:
            self.folder.write_info(replace(info, reference=reference))

    def _show_status(self, scheduler: SchedulerStatus) -> None:
        info = replace(self.folder.info(), spent=self.spent_before)
        mlflow_error = self.shipper.status().error
        self.display.update(
            live_status(self.searcher, scheduler, info, seconds=self._seconds(), mlflow_error=mlflow_error)
        )

    def _note_restart(self) -> None:
        self.display.event("note: the scheduler died; another one continues from the results on disk")

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Write the report and deliver to MLflow; a second Ctrl-C skips the report, and a third one everything."""
        try:
            self._report_and_deliver()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            stage("interrupted again: leaving without the report, closing MLflow's run")
            self._deliver(HURRIED_DELIVERY_SECONDS)
            raise
        finally:
            shutil.rmtree(self.tune_folder, ignore_errors=True)

    def _report_and_deliver(self) -> None:
        self.poller.close()
        self.display.close()
        stage("writing the report, bringing MLflow up to date")
        self.reporter.close()
        self.notifier.close()
        self._deliver(self.delivery_seconds)

    def _deliver(self, seconds: float) -> None:
        left = self.shipper.close(seconds)
        if left:
            error = self.shipper.status().error or "it was too slow"
            print(f"MLflow lacks {left} records ({error}); deliver them later with:", file=sys.stderr)
            print(f"    python -m fpp_sweep.sync {self.folder.path}", file=sys.stderr)

    def _leave(self) -> None:
        """End the process in place of the main thread, which Ray blocks for a minute once its head is lost."""
        self._record_interruption()
        self.close()
        print(f"error: {self.poller.lost}", file=sys.stderr, flush=True)
        remove_own()
        os._exit(1)


def hypervolume_reference(objectives: Sequence[Objective], baselines: Sequence[TrialRecord]) -> list[float] | None:
    """Return the corner from which hypervolume is measured: each objective's reference, or else the worst baseline.

    Return None as long as a baseline has not ended, or if an objective has neither.
    """
    if any(record.state in ("waiting", "running", "interrupted") for record in baselines):
        return None
    values = [record.values for record in baselines if record.values is not None]
    corner = []
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            corner.append(objective.reference)
        elif values:
            worst = min if objective.goal == "max" else max
            corner.append(worst(point[index] for point in values))
        else:
            return None
    return corner
