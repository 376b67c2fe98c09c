"""One job of a sweep, which is a trial on one split: run the trial and record its result, or the reason for none.

A job runs without Ray as well, with an executor that computes tasks in this process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder, write_line
from fpp_sweep.records.records import STOPPED_BY_STEER, State, TrialRecord, baseline_name
from fpp_sweep.search.question import gate_violation, results_of_baselines, with_values
from fpp_sweep.space.space import Space
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.trial import Collapsed, Executor, Plan, run_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """The arguments that all jobs of a sweep have in common."""

    folder: SweepFolder
    executor: Executor
    plan: Plan
    space: Space
    plugins: tuple[PluginFile, ...] = ()


class TrialStopped(Exception):
    """End of a trial at the user's request; finished tasks stay on disk."""


@dataclass(frozen=True, slots=True)
class LoggingExecutor:
    """A trial's executor that logs each result and raises TrialStopped once `steer` stops the trial.

    The first `answered` commands have an answer, so they say nothing about this run of the trial.
    """

    executor: Executor
    log: Path
    folder: SweepFolder
    trial: str
    answered: int
    worker_seconds: list[float] = field(default_factory=list)  # one number for each result

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """See trial.Executor."""
        self._raise_if_stopped()
        with closing(self.executor.results(tasks, order)) as results:
            for task, result in results:
                self.worker_seconds.append(result.worker_seconds)
                origin = "cached"
                if result.worker_seconds:  # a worker computed the result for this trial
                    origin = f"{result.worker_seconds:.3f} s, {result.worker}"
                write_line(self.log, f"{task.title}: {origin}")
                self._raise_if_stopped()
                yield task, result

    def _raise_if_stopped(self) -> None:
        for command in self.folder.commands()[self.answered :]:
            if command.kind == "stop" and command.words[0] == self.trial:
                raise TrialStopped(STOPPED_BY_STEER)


def run_job(context: TrialContext, name: str, split: str, order: int, answered: int = 0) -> None:
    """Run a trial on a split, and record its result or why it has none.

    Raise OSError if the disk fails, which says nothing about the trial.
    """
    folder = context.folder
    record = folder.trial(name)
    log = folder.artifacts(name) / "log.txt"
    write_line(log, f"{name} begins on {split}: config {record.key}, attempt {record.attempt}")
    executor = LoggingExecutor(context.executor, log, folder, name, answered)
    outcome, details = "complete", ""
    try:
        record = _run(context, record, split, executor, order)
    except MachineError as error:
        write_line(log, f"{name} is interrupted on {split}: {error}")
        raise
    except TrialStopped as stop:
        record = ended_early(_with_worker_time(record, executor), split, "stopped", str(stop))
        outcome = str(stop)
    except Collapsed as collapse:
        outcome = f"collapsed, {collapse}"
        record = ended_early(_with_worker_time(record, executor), split, "collapsed", str(collapse))
        record = replace(record, drift=collapse.drift, constraints=gate_violation(context.space.gate(), collapse.drift))
    except Exception as error:
        failure = TaskFailed.of(error)
        outcome, details = failure.reason, failure.details
        record = ended_early(_with_worker_time(record, executor), split, "failed", outcome, details)
    folder.write_trial(record)
    write_line(log, f"{name} has ended on {split}: {outcome}", details)


def _run(context: TrialContext, record: TrialRecord, split: str, executor: Executor, order: int) -> TrialRecord:
    """Run a trial on a split, write its files, and return its record with the results."""
    config = TrialConfig().replace(record.config)
    plan = context.plan.on(split, config)
    is_search = split == context.space.search.split
    if is_search and record.kind == "trial":  # baselines have no gate
        plan = replace(plan, gate=context.space.gate())
    result, datasets = run_trial(plan, config, split, executor, order=order)
    record = replace(record, results={**record.results, split: result})
    if record.reason_split == split:  # an earlier attempt failed
        record = replace(record, reason=None, details=None, reason_split="")
    if is_search:
        drift = max(dataset.drift for dataset in datasets)
        record = replace(record, drift=drift or None, state="complete")
        record = with_values(record, context.space, results_of_baselines(_references(context), split))
    try:
        title = f"{record.name}, {split}: {record.config['method']}"
        write_artifacts(context.folder.artifacts(record.name), datasets, split, title)
    except OSError as error:  # a trial is complete only with its files
        raise MachineError.of(error) from error
    if is_search:
        record = replace(record, finished=time.time())
    return record


def _with_worker_time(record: TrialRecord, executor: LoggingExecutor) -> TrialRecord:
    """Add worker time to a record that gets no result; else the time is in the result."""
    return replace(record, seconds_without_result=record.seconds_without_result + math.fsum(executor.worker_seconds))


def ended_early(record: TrialRecord, split: str, state: State, reason: str, details: str = "") -> TrialRecord:
    """Return the record of a trial that ended early; a trial that is complete keeps its state and results."""
    if record.state == "complete":
        return replace(record, reason=f"on {split}: {reason}", details=details, reason_split=split)
    finished = time.time()
    return replace(record, state=state, reason=reason, details=details, reason_split=split, finished=finished)


def _references(context: TrialContext) -> list[TrialRecord]:
    """Return the baselines that constraints are relative to."""
    references = []
    for constraint in context.space.constraints_and_floor():
        if constraint.baseline is not None:
            references.append(context.folder.trial(baseline_name(constraint.baseline)))
    return references
