"""The driver of a sweep: search, display, report, notifications and MLflow, kept in order however it ends.

Importing this module takes seconds and loads Ray. Ray reads its environment variables at that moment, so import the
module only after `workers.session` has set them.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace

from fpp_sweep.records.folder import SweepRecord
from fpp_sweep.space.space import Space
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.live import Display, live_status
from fpp_sweep.sweep.notify import notify
from fpp_sweep.sweep.opening import OpenedSweep, reopen
from fpp_sweep.sweep.recording import EndState, SweepRecorder, end_state
from fpp_sweep.sweep.reporter import Reporter
from fpp_sweep.sweep.resume_command import print_next_command, resume_in_new_process
from fpp_sweep.sweep.searching import context_of, new_searcher, run_jobs
from fpp_sweep.tracking.delivery import DeliveryThread, print_later_delivery
from fpp_sweep.workers.ray_session import end_services
from fpp_sweep.workers.status import SchedulerStatus, StatusPoller

# seconds that the end of a sweep waits for MLflow
DELIVERY_TIMEOUT = 60.0
INTERRUPTED_DELIVERY_TIMEOUT = 10.0  # after an interrupt
HURRIED_DELIVERY_TIMEOUT = 3.0  # after a second interrupt


class SweepDriver:
    """A running sweep: the searcher, and everything that reports on it."""

    def __init__(self, space: Space, record: SweepRecord, opened: OpenedSweep, options: Options) -> None:
        self.options, self.record, self.folder, self.uri = options, record, record.folder, record.info.tracking_uri
        self.delivery_timeout = DELIVERY_TIMEOUT
        self.recorder = SweepRecorder(record)
        self.display = Display(sys.stderr, objectives=space.objectives)
        self.mlflow = DeliveryThread(self.folder, self.uri, on_error=self.display.event)
        self.reporter = Reporter(self.folder, self.mlflow)
        self.poller = StatusPoller(opened.workers.pool, on_status=self._show_status, on_stuck=self._leave)
        self._take_over(space, opened)

    def _take_over(self, space: Space, opened: OpenedSweep) -> None:
        """Direct the workers by a space from now on."""
        self.space, self.opened = space, opened
        self.display.objectives = space.objectives
        listeners = (self.reporter, self.recorder, self.display)
        self.searcher = new_searcher(space, self.record, opened, self.poller, listeners)

    def run(self) -> None:
        """Search to the end, or until an interrupt or an error; record the end, report and deliver in any case."""
        state: EndState = "interrupted"
        try:
            self.search()
            state = end_state(self.folder.trials())
        except KeyboardInterrupt:
            if self.poller.failure and self.poller.has_interrupted:
                raise self.poller.failure from None
            raise  # the user's, or a batch system's, which ends Ray's processes, too
        except BaseException:
            self.poller.poll()
            if self.poller.failure:  # the cause of this error
                raise self.poller.failure from None
            raise
        finally:
            self.end(state)

    def search(self) -> None:
        """Run all trials, and record why the search ended."""
        self.mlflow.start()
        self.reporter.start()
        self.poller.start()
        self._run_jobs()
        while self.searcher.next_question is not None:
            space, command = self.searcher.next_question
            opened = reopen(self.record, space, command, self.opened.workers)
            if opened is None:
                space, opened = self.space, self.opened
            self._take_over(space, opened)
            self._run_jobs()
        self.record.update(end_reason=self.searcher.why_stopped or "")

    def _run_jobs(self) -> None:
        """Run all jobs of the space that is asked now."""
        self.recorder.record_reference(self.searcher.records())
        run_jobs(self.searcher, context_of(self.folder, self.space, self.opened, self.options.plugins))

    # ------------------------------------------------------------ called by the poller

    def _show_status(self, scheduler: SchedulerStatus) -> None:
        info = replace(self.record.info, spent=self.recorder.spent_before)
        self.display.update(live_status(self.searcher, scheduler, info, seconds=self.recorder.seconds()))

    # ------------------------------------------------------------ the end

    def end(self, state: EndState) -> None:
        """Record the state in which the sweep ends, notify the user, write the report, and deliver to MLflow."""
        if state == "interrupted":
            self.delivery_timeout = INTERRUPTED_DELIVERY_TIMEOUT
        with suppress(KeyboardInterrupt):  # the poller may interrupt as well
            self.poller.close()
        self.poller.poll()  # for the last counts of the workers
        try:
            self.recorder.record_end(state, self.poller.status)
        except OSError:  # the disk may be full, which may be the reason for the interruption
            if state != "interrupted":
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Write the report and deliver to MLflow; a second Ctrl-C skips the report, and a third one everything."""
        try:
            self._report_and_deliver()
        except KeyboardInterrupt:
            handler_before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third Ctrl-C ends the process at once
            try:
                stage("interrupted: leaving without the report, closing MLflow's run")
                self._deliver(HURRIED_DELIVERY_TIMEOUT)
            finally:
                signal.signal(signal.SIGINT, handler_before)  # a notebook or program goes on
            raise

    def _report_and_deliver(self) -> None:
        self.poller.close()
        self.display.close()
        stage("writing the report, bringing MLflow up to date")
        self.reporter.close()
        with suppress(OSError):  # a full disk
            self.searcher.study.export(self.folder.study_file, self.folder.path.name)
        self._deliver(self.delivery_timeout)
        if self.space.search.notify:
            notify(self.space.search.notify, self.folder)

    def _deliver(self, timeout: float) -> None:
        """Bring MLflow up to date within a time; print the command that delivers the rest later."""
        problem = self.mlflow.close(timeout)
        if problem:
            print_later_delivery(self.folder, self.uri, problem)

    def _leave(self) -> None:
        """End this process from the poller's thread; a command resumes its sweep in a new process.

        Without its GCS, Ray blocks the main thread, and ends the process after a minute.
        """
        self.end("interrupted")
        end_services()
        if self.options.command and self.options.resumes_left:
            note(f"{self.poller.failure}; the sweep resumes itself")
            resume_in_new_process(self.folder, self.options.resumes_left - 1)
        print(f"error: {self.poller.failure}", file=sys.stderr)
        print_next_command(self.folder, "", (), "stopped")
        sys.stderr.flush()
        os._exit(1)  # `sys.exit` would end this thread only
