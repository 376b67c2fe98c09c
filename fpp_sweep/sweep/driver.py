"""The driver of a sweep: search, display, report and MLflow, kept in order however it ends.

Importing this module takes seconds and loads Ray. Ray reads its environment variables at that moment, so import the
module only after `workers.session` has set them.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryDirectory

from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.search.job import TrialContext
from fpp_sweep.search.question import TAKEN_OVER, asked_now, with_answer
from fpp_sweep.search.searcher import SweepSearcher, run_tune
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.sweep.api import RESUMES_LEFT, Options
from fpp_sweep.sweep.live import Display, live_status
from fpp_sweep.sweep.plan import check_plan
from fpp_sweep.sweep.reporter import Reporter
from fpp_sweep.sweep.summary import print_next_command, resume_command
from fpp_sweep.sweep.sweep_record import EndState, Start, SweepRecorder, end_state
from fpp_sweep.sweep.worker_pool import Workers
from fpp_sweep.tracking.delivery import DeliveryThread, print_later_delivery
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.workers.ray_session import end_services
from fpp_sweep.workers.session import SchedulerStatus, StatusPoller

# seconds that the end of a sweep waits for MLflow
DELIVERY_TIMEOUT = 60.0
INTERRUPTED_DELIVERY_TIMEOUT = 10.0  # after an interrupt


def open_sweep(start: Start, workers: Workers) -> TrialContext:
    """Check that all inputs exist and are those of the start, record them, and tell the workers the tasks' keys."""
    stage("looking at datasets and prompts")
    try:
        plan, validation = check_plan(start.space, workers.pool)
    except TaskFailed as error:
        raise InputError(error.reason) from error
    workers.pool.begin(start.accept(workers.model, plan, validation))
    return TrialContext(
        folder=start.record.folder, executor=workers.pool, plan=plan, space=start.space, plugins=start.plugins
    )


class SweepDriver:
    """A running sweep: the searcher, and everything that reports on it."""

    def __init__(self, record: SweepRecord, workers: Workers, context: TrialContext, options: Options) -> None:
        self.options, self.record, self.folder, self.uri = options, record, record.folder, record.info.tracking_uri
        self.workers = workers
        self.delivery_timeout = DELIVERY_TIMEOUT
        self.recorder = SweepRecorder(record)
        self.display = Display(sys.stderr, objectives=context.space.objectives)
        self.mlflow = DeliveryThread(self.folder, self.uri, on_error=self.display.event)
        self.reporter = Reporter(self.folder, self.mlflow)
        self.poller = StatusPoller(workers.pool, on_status=self._show_status, on_stuck=self._leave)
        self._take_over(context)

    def _take_over(self, context: TrialContext) -> None:
        """Direct the workers by a space from now on."""
        self.context = context
        self.display.objectives = context.space.objectives
        self.searcher = SweepSearcher(
            context.space,
            self.record,
            plan=context.plan,
            poller=self.poller,
            listeners=(self.reporter, self.recorder, self.display),
        )

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
            self._take_over(self._reopen(*self.searcher.next_question))
            self._run_jobs()
        if self.poller.status.fatal:
            raise MachineError(f"{self.poller.status.fatal}; put that right, then go on with --resume")
        self.record.update(end_reason=self.searcher.why_stopped or "")

    def _reopen(self, space: Space, command: int) -> TrialContext:
        """Ask the space of a command with the same workers; refused inputs change nothing."""
        before = self.record.info
        answers = with_answer(before.answers, command, TAKEN_OVER)
        asked = SweepRecord(self.folder, replace(before, answers=answers, **asked_now(before, space)))
        start = Start(space=space, record=asked, before=before, plugins=self.options.plugins)
        self.poller.poll()
        work = self.poller.status  # a new run of the workers counts from 0
        try:
            context = open_sweep(start, self.workers)
        except InputError as error:
            self.record.update(answers=with_answer(before.answers, command, f"refused: {error}"))
            return replace(self.context, space=self.searcher.space)  # with what was taken over meanwhile
        self.record.info = asked.info
        self.recorder.add_work(work)
        return context

    def _run_jobs(self) -> None:
        """Run the baselines, and trials of the space that is asked now until the searcher has no more."""
        self.searcher.prepare_jobs()
        self.recorder.record_reference(self.searcher.records())
        with TemporaryDirectory(prefix="fpp_sweep-", ignore_cleanup_errors=True) as tune_folder:
            run_tune(self.searcher, self.context, tune_folder)  # nothing reads Tune's own records

    # ------------------------------------------------------------ called by the poller

    def _show_status(self, scheduler: SchedulerStatus) -> None:
        info = replace(self.record.info, spent=self.recorder.spent_before)
        self.display.update(live_status(self.searcher, scheduler, info, seconds=self.recorder.seconds()))

    # ------------------------------------------------------------ the end

    def end(self, state: EndState) -> None:
        """Record the state in which the sweep ends, write the report, and deliver to MLflow."""
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
        """Write the report and deliver to MLflow; a second Ctrl-C skips what is left, which `show` and `sync` write."""
        self.poller.close()
        self.display.close()
        stage("writing the report, bringing MLflow up to date")
        self.reporter.close()
        with suppress(OSError):  # a full disk
            self.searcher.study.export(self.folder.study_file, self.folder.path.name)
        problem = self.mlflow.close(self.delivery_timeout)
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
        print_next_command(self.folder, self.options.command, "stopped")
        sys.stderr.flush()
        os._exit(1)  # `sys.exit` would end this thread only


def resume_in_new_process(folder: SweepFolder, resumes_left: int) -> None:
    """Replace this process by one that resumes the sweep."""
    words = shlex.split(resume_command(folder, folder.info()))
    sys.stderr.flush()
    os.environ[RESUMES_LEFT] = str(resumes_left)
    os.execvp(words[0], words)
