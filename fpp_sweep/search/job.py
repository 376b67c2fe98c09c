"""One job of a sweep, a trial on one split: run it and record its result, or why it has none. Ray is not needed."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.log import write_line
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.search.racing import RacePolicy, RaceRules
from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.work import Race
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.trial import Executor, Plan, StoppingPolicy, TrialStopped, metric_of, run_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """What every trial's process is given once."""

    folder: SweepFolder
    executor: Executor
    plan: Plan
    final_plan: Plan | None = None  # of the final stage and the test split; none: the plan of the search
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    search_split: str
    plugins: tuple[PluginFile, ...] = ()
    driver: StoppingPolicy = field(default_factory=StoppingPolicy)
    race: Race | None = None


@dataclass(frozen=True, slots=True)
class LoggingExecutor:
    """A trial's executor, with a line in its log for each result; it ends where somebody has stopped the trial."""

    executor: Executor
    log: Path
    folder: SweepFolder
    trial: str
    held: list[float] = field(default_factory=list)  # seconds that workers were

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """See trial.Executor."""
        self._go_on()
        with closing(self.executor.results(tasks, order)) as results:
            for task, result in results:
                self.held.append(result.held)
                write_line(
                    self.log, f"{task.title}: {f'{result.held:.3f} s, {result.worker}' if result.held else 'at hand'}"
                )
                self._go_on()
                yield task, result

    def _go_on(self) -> None:
        for command in self.folder.commands():
            if command.kind == "stop" and command.applied is None and command.values.get("trial") == self.trial:
                raise TrialStopped("stopped by `steer`")


def run_job(brief: TrialContext, name: str, split: str, order: int) -> None:
    """Run a trial on a split and record its result, or why it has none; an OSError says nothing about the trial."""
    folder = brief.folder
    record = folder.trial(name)
    log = folder.artifacts(name) / "log.txt"
    write_line(log, f"{name} begins on {split}: config {record.key}, attempt {record.attempt}")
    driver = _driver(brief, record, split)
    executor = LoggingExecutor(brief.executor, log, folder, name)
    try:
        config = TrialConfig().replace(record.config)
        plan = brief.plan
        if split != brief.search_split and brief.final_plan is not None:
            plan = brief.final_plan.for_config(config, brief.plan.seeds)
        result, datasets = run_trial(plan, config, split, executor, order=order, policy=driver)
        record = replace(record, results={**record.results, split: result})
        if split == brief.search_split:
            values = [metric_of(result, objective.metric) for objective in brief.objectives]
            broken = violations(brief, result) if record.kind == "trial" else {}
            record = replace(record, values=values, constraints=broken, state="complete", finished=time.time())
        try:
            write_artifacts(folder.artifacts(name), datasets, split, f"{name}, {split}: {record.config['method']}")
        except OSError as error:  # whatever is complete has its files, too
            raise MachineError.of(error) from error
    except MachineError as error:
        write_line(log, f"{name} is interrupted on {split}: {error}")
        raise
    except TrialStopped as stop:
        record = replace(record, held=record.held + math.fsum(executor.held))
        record = ended(record, split, "stopped", str(stop))
        if isinstance(driver, RacePolicy):
            record = driver.with_estimate(record)
    except Exception as error:
        failure = error if isinstance(error, TaskFailed) else TaskFailed.of(error)
        record = ended(record, split, "failed", failure.reason, failure.details)
    folder.write_trial(record)
    write_line(log, f"{name} has ended on {split}: {record.reason or record.state}", record.details or "")


def _driver(brief: TrialContext, record: TrialRecord, split: str) -> StoppingPolicy:
    if brief.race is None or split != brief.search_split:
        return brief.driver
    rules = RaceRules(race=brief.race, objectives=brief.objectives, constraints=brief.constraints, split=split)
    return RacePolicy(rules, brief.folder, record)


def ended(record: TrialRecord, split: str, state: Any, reason: str, details: str = "") -> TrialRecord:
    """A trial that ended early; one that only its test split ended keeps what it had."""
    if record.state == "complete":
        return replace(record, reason=f"on {split}: {reason}", details=details)
    return replace(record, state=state, reason=reason, details=details, finished=time.time())


def violations(brief: TrialContext, result: SplitResult) -> dict[str, float]:
    """How far each constraint is broken."""
    values = {}
    for constraint in brief.constraints:
        baseline = None
        if constraint.baseline is not None:
            record = brief.folder.trial(f"baseline-{constraint.baseline}")
            if brief.search_split not in record.results:
                raise ValueError(f"constraint {constraint.name}: baseline {constraint.baseline} failed")
            baseline = metric_of(record.results[brief.search_split], constraint.metric)
        values[constraint.name] = constraint.violation(metric_of(result, constraint.metric), baseline)
    return values
