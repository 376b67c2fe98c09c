"""The order of a sweep's jobs under Ray Tune: baselines, search, final stage, test split.

Tune asks the searcher for the next job, which is a trial on one split, and reports when a job has ended. By then the
trial's own process has written its results to the sweep's folder. So a driver that dies between any two steps leaves a
folder from which the next driver continues.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import ray
from ray import tune
from ray.tune import RunConfig, TuneConfig, Tuner
from ray.tune.search import Searcher

from fpp_sweep.records.folder import SweepRecord
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import (
    ENDED,
    FINAL,
    STOPPED_BY_STEER,
    TrialRecord,
    baseline_name,
    impossible_record,
    trial_name,
    waiting_record,
)
from fpp_sweep.search.finalists import FinalJobs, Job
from fpp_sweep.search.job import TrialContext, ended_early
from fpp_sweep.search.question import (
    TAKEN_OVER,
    asked_now,
    count_answered,
    is_taken_at_once,
    reassess,
    require_no_start,
    unanswered,
    with_answer,
    with_command,
)
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.search.trial_runner import ABORT_REASON, TrialRunner
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.trial.trial import Plan
from fpp_sweep.workers.session import StatusPoller

START_SECONDS = 5.0  # time within which Tune's process for a new trial has started
MAX_IMPOSSIBLE = 100  # trials in a row whose settings exclude each other: the space may have no others


@dataclass(frozen=True, slots=True)
class TrialChange:
    """The start or the end of a trial or baseline on a split."""

    record: TrialRecord
    split: str
    on_search_split: bool
    has_ended: bool
    records: Sequence[TrialRecord]  # all records of the sweep
    joins_front: bool = False  # True if a trial that has ended on the searched split is on the front


class ChangeListener(Protocol):
    """A part of the driver that reacts to the changes of trials."""

    def on_change(self, change: TrialChange) -> None: ...


class NextQuestion(NamedTuple):
    """A space that is asked once no job runs, as it needs other plans."""

    space: Space
    command: int  # index of the command of `steer` that asks it


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a process of Tune runs."""

    job: Job
    began: float  # time.monotonic() at its start


class AbortTune(BaseException):
    """The end of Tune's loop, with its cause; Tune would wrap an Exception in pages of text."""


@contextmanager
def aborting_tune() -> Iterator[None]:
    """Turn an exception of the block into AbortTune, whose cause is a MachineError for an error of the disk."""
    try:
        yield
    except OSError as error:
        raise AbortTune from MachineError.of(error)
    except Exception as error:
        raise AbortTune from error


class SweepSearcher(Searcher):
    """The searcher of a sweep, as Ray Tune calls it.

    The searcher calls the listeners, in their order, when a trial begins on a split and when it has ended there.
    """

    def __init__(
        self,
        space: Space,
        record: SweepRecord,
        *,
        plan: Plan,
        poller: StatusPoller,
        listeners: Sequence[ChangeListener] = (),
    ) -> None:
        super().__init__()
        self.phase = "starting"  # for the display
        self.total: int | None = None  # number of trials
        self.why_stopped: str | None = None
        self.next_question: NextQuestion | None = None
        self.space = space
        self._record = record
        self._folder = record.folder
        self._plan = plan
        self._poller = poller
        self._began = time.monotonic() - record.info.spent  # earlier drivers' time counts, too
        self._listeners = listeners
        self._running: dict[str, RunningJob] = {}  # by the id of Tune's trial
        self._process_ids: set[int] = set()  # processes of Tune that have run a job
        self._jobs_begun = 0
        self._lost_processes: Counter[Job] = Counter()
        self._waiting_jobs: list[Job] = []  # of baselines, and of trials whose process died
        self._final_jobs = FinalJobs(space, self._folder)
        self._failures_in_a_row = 0
        self._impossible_in_a_row = 0  # trials whose settings exclude each other
        self._begin_study(run_failed_again=True)

    def _begin_study(self, *, run_failed_again: bool = False) -> None:
        """Have all records answer the space, and build the study of those that it holds."""
        records = reassess(self._folder, self.space, run_failed_again=run_failed_again)
        self._records = {record.name: record for record in records}
        self.study = SweepStudy(self.space, records)
        running = {running.job.name for running in self._running.values()}
        # trials that an earlier driver began
        self._unfinished = [number for number in self.study.unfinished() if trial_name(number) not in running]
        self.total = self.search.trials
        if self.search.sampler == "grid":  # it has no more trials than points
            points = len(self.space.queue())
            self.total = min(self.search.trials or points, points)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def search(self) -> Search:
        """The settings of the search, some of which may change while it runs."""
        return self.space.search

    def prepare_jobs(self) -> None:
        """Write a record for each baseline that has to run."""
        for baseline, config in self.space.baselines().items():
            name = baseline_name(baseline)
            new = waiting_record(name, "baseline", config, origin="baseline")
            record = self._records.get(name)
            if record is None or record.state not in ("complete", "stopped") or record.key != new.key:
                self._write(new)
                self._waiting_jobs.append(Job(name, self.search.split))

    def records(self) -> list[TrialRecord]:
        return list(self._records.values())

    def ended(self) -> Counter[str]:
        """Return the number of trials of the space in each state in which a trial has ended."""
        return Counter(record.state for record in self._trials() if record.state in ENDED and not record.outside)

    def _trials(self) -> list[TrialRecord]:
        return [record for record in self._records.values() if record.kind == "trial"]

    def _max_running(self) -> int:
        return self._plan.concurrent_trials(self.search, self._poller.status.workers)

    def _must_wait_for_start(self) -> bool:
        """Return True if Tune has to start a process and the oldest running job has only just begun.

        Tune drops a process that is still starting when another job ends.
        """
        if not self._running:
            return False
        has_idle_process = len(self._running) < len(self._process_ids)
        oldest_start = min(running.began for running in self._running.values())
        return not has_idle_process and time.monotonic() - oldest_start < START_SECONDS

    # ------------------------------------------------------------ commands of `steer`

    def _read_commands(self) -> None:
        """Obey the commands that have no answer yet; each answer is recorded in one write with what it changes."""
        info = self._record.info
        for index, command in unanswered(self._folder.commands(), info.answers):
            if self.next_question is not None:
                return
            if command.kind == "stop":
                answer = self._stop(command.words[0])
                if answer:
                    self._record.update(answers=with_answer(self._record.info.answers, index, answer))
                continue
            try:
                space = with_command(self._folder, self.space, command, info.plugins)
                require_no_start(self.space, space)
            except InputError as error:
                self._record.update(answers=with_answer(self._record.info.answers, index, f"refused: {error}"))
                continue
            if is_taken_at_once(self.space, space):
                answers = with_answer(self._record.info.answers, index, TAKEN_OVER)
                self._record.update(**asked_now(self._record.info, space), answers=answers)
                self._ask(space)
            else:
                self.next_question = NextQuestion(space, index)

    def _ask(self, space: Space) -> None:
        """Take over a space, which may give the search more to do."""
        self.space = space
        self._final_jobs.reset(space)
        self.why_stopped = None
        self._begin_study()

    def _stop(self, name: str) -> str:
        """Stop a trial that waits, or that this driver does not run; a running one obeys in its own process."""
        record = self._records.get(name)
        if record is None:
            return "no such trial"
        if record.state in ENDED:
            return record.state
        if name in {running.job.name for running in self._running.values()}:
            return ""
        self._waiting_jobs = [job for job in self._waiting_jobs if job.name != name]
        self._unfinished = [number for number in self._unfinished if number != record.number]
        record = ended_early(record, self.search.split, "stopped", STOPPED_BY_STEER)
        self._write(record)
        self._end(record, self.search.split)
        return "stopped"

    # ------------------------------------------------------------ calls of Tune

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    @aborting_tune()
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        self._read_commands()
        if len(self._running) >= self._max_running() or self._must_wait_for_start():
            return None
        job = None
        if self.next_question is None:
            job = self._next()
        if job is None:
            if self._running:
                return None
            return str(Searcher.FINISHED)
        self._begin(job, trial_id)
        answered = count_answered(self._folder.commands(), self._record.info.answers)
        return {"name": job.name, "split": job.split, "order": self._jobs_begun, "answered": answered}

    def _begin(self, job: Job, trial_id: str) -> None:
        """Note that Tune's trial begins a job; on the searched split the record says so, too."""
        name, split = job
        record = self._records[name]
        if split == self.search.split:
            attempt = record.attempt
            if record.started:
                attempt += 1
            begun = replace(record, state="running", started=time.time(), attempt=attempt, reason=None, details=None)
            self._write(begun)
            self.phase = "search" if record.kind == "trial" else "baselines"
        elif split == FINAL:
            self.phase = "final stage"
        else:
            self.phase = split if record.kind == "trial" else f"baselines on {split}"
        self._running[trial_id] = RunningJob(job, time.monotonic())
        self._jobs_begun += 1
        self._announce(self._records[name], split, has_ended=False)

    @aborting_tune()
    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        job = self._running.pop(trial_id).job
        name, split = job
        if result:
            self._process_ids.add(result["pid"])
            if result.get(ABORT_REASON):
                raise MachineError(result[ABORT_REASON])
        record = self._folder.trial(name)
        if self._has_lost_process(record, split, error=error):
            self._lost_processes[job] += 1
            attempts = self._lost_processes[job]
            if attempts < self.space.work.attempts:  # a lost process says nothing about the trial's settings
                self._waiting_jobs.append(job)
                return
            record = ended_early(record, split, "failed", f"the trial's process died {attempts} times")
            self._folder.write_trial(record)
        self._records[name] = record
        self._end(record, split)

    def _end(self, record: TrialRecord, split: str) -> None:
        """Tell the study and the listeners that a trial has ended on a split, and record the time that is spent."""
        self._record.update(spent=time.monotonic() - self._began)  # a driver that is killed cannot record it
        if split == self.search.split:
            if record.kind == "trial":
                self.study.tell(record)
                self._failures_in_a_row = self._failures_in_a_row + 1 if record.state == "failed" else 0
            elif self._is_reference(record):
                self._begin_study()  # trials of an earlier question are measured against the baseline now
        self._announce(record, split, has_ended=True)

    def _has_lost_process(self, record: TrialRecord, split: str, *, error: bool) -> bool:
        """Return True if the process of a job has died: else it has recorded how the job ended."""
        if split == self.search.split:
            return record.state == "running"
        return error and split not in record.results

    def _announce(self, record: TrialRecord, split: str, *, has_ended: bool) -> None:
        """Call the listeners with a trial that has started or ended on a split."""
        on_search_split = split == self.search.split
        joins_front = False
        if on_search_split and has_ended:
            joins_front = record in front_of(self._record.info, self.records()).members
        change = TrialChange(record, split, on_search_split, has_ended, self.records(), joins_front)
        for listener in self._listeners:
            listener.on_change(change)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the folder is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the folder is the state."""

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: Tune pickles its searcher into records that nothing reads again."""
        return {}

    # ------------------------------------------------------------ the next job

    def _next(self) -> Job | None:
        """Return the next job; None if there is none now."""
        if self._waiting_jobs:
            return self._waiting_jobs.pop(0)
        split = self.search.split
        if self._waits_for_baselines():
            return None
        problem = self._problem_of_baselines()
        if problem is not None:  # a trial could not be compared, and would be computed in vain
            self.why_stopped = problem
            return self._next_final_job()
        while self._may_begin_trial():
            record = self._next_trial()
            if record.state != "failed":
                return Job(record.name, split)
        return self._next_final_job()

    def _waits_for_baselines(self) -> bool:
        """Return True if a baseline that a constraint is relative to runs on the split of the search."""
        for running in self._running.values():
            if running.job.split == self.search.split and self._is_reference(self._records[running.job.name]):
                return True
        return False

    def _is_reference(self, record: TrialRecord) -> bool:
        """Return True for a baseline that a constraint is relative to."""
        references = [constraint.baseline for constraint in self.space.constraints_and_floor()]
        return record.kind == "baseline" and record.label in references

    def _problem_of_baselines(self) -> str | None:
        """Return why a constraint cannot be computed, if the baseline that it is relative to has no result."""
        for constraint in self.space.constraints:
            if constraint.baseline is None:
                continue
            record = self._records[baseline_name(constraint.baseline)]
            if record.state in ("failed", "stopped"):
                reason = f"which has no result: {record.reason}"
                return f"constraint {constraint.name} needs baseline {constraint.baseline}, {reason}"
        return None

    def _may_begin_trial(self) -> bool:
        """Return True until the search stops; record why it stops.

        Trials that an earlier driver began run after the search has stopped, too.
        """
        if self.why_stopped is None:
            self.why_stopped = self._reason_to_stop()
        if self.why_stopped is None:
            return True
        if self._poller.status.fatal is not None:
            return False
        return bool(self._unfinished)

    def _reason_to_stop(self) -> str | None:
        """Return why no further trial begins: no worker can work, a used-up budget, or failures in a row."""
        if self._poller.status.fatal:
            return self._poller.status.fatal
        search = self.search
        begun = self.study.count() - self.study.n_outside - len(self._unfinished)
        if self.total is not None and begun >= self.total:
            return f"all {self.total} trials"
        if search.wall_clock is not None and time.monotonic() - self._began >= search.wall_clock:
            return f"wall clock of {search.wall_clock:g} s used up"
        if search.max_failures is not None and self._failures_in_a_row >= search.max_failures:
            return f"{self._failures_in_a_row} trials in a row failed"
        if self._impossible_in_a_row >= MAX_IMPOSSIBLE:
            return f"the settings of {MAX_IMPOSSIBLE} trials in a row exclude each other; narrow the ranges"
        return None

    def _next_trial(self) -> TrialRecord:
        """Return the record of the next trial, which is written if the trial is new.

        The record says that the trial failed if its settings exclude each other, such as a smallest area above the
        largest.
        """
        if self._unfinished:
            number = self._unfinished.pop(0)
            if trial_name(number) in self._records:
                return self._records[trial_name(number)]
            suggestion = self.study.ask_again(number)
        else:
            suggestion = self.study.ask()
        name = trial_name(suggestion.number)
        fields: dict[str, Any] = {
            "number": suggestion.number,
            "origin": suggestion.origin,
            "params": suggestion.settings,
        }
        try:
            config = self.space.resolve(suggestion.settings)
        except InputError as error:
            settings = self.space.settings_of(suggestion.settings)
            return self._fail_impossible(impossible_record(name, str(error), config=settings, **fields))
        self._impossible_in_a_row = 0
        record = waiting_record(name, "trial", config, **fields)
        self._write(record)
        return record

    def _fail_impossible(self, record: TrialRecord) -> TrialRecord:
        """Report a trial that has failed before its start; such a failure says nothing about the machines."""
        self._write(record)
        self.study.tell(record)
        self._impossible_in_a_row += 1
        self._announce(record, self.search.split, has_ended=True)
        return record

    def _next_final_job(self) -> Job | None:
        """Return the next job of the final stage or the test split; None if there is none now."""
        if self._poller.status.fatal or self.search.evaluate_only:
            return None
        running_jobs = [running.job for running in self._running.values()]
        return self._final_jobs.next(self._records, running_jobs)

    def _write(self, record: TrialRecord) -> None:
        self._folder.write_trial(record)
        self._records[record.name] = record


def run_tune(searcher: SweepSearcher, context: TrialContext, storage: str) -> None:
    """Run Tune until the searcher has no job left; raise MachineError if the machine prevents that."""
    driver_node = ray.util.get_node_ip_address()
    trainable = tune.with_parameters(TrialRunner, context=context)
    # a trial's process waits for workers and uses no CPU; it runs beside the driver, where the sweep's folder is
    trainable = tune.with_resources(trainable, {"cpu": 0, f"node:{driver_node}": 0.001})
    tuner = Tuner(
        trainable,
        tune_config=TuneConfig(
            search_alg=searcher,
            num_samples=-1,  # until the searcher returns FINISHED
            reuse_actors=True,
            trial_name_creator=lambda trial: trial.config["name"],
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=RunConfig(name="tune", storage_path=storage, verbose=0),
    )
    try:
        tuner.fit()
    except AbortTune as abort:
        raise abort.__cause__ or abort from None
