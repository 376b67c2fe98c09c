"""Drives a sweep through Ray Tune: baselines, then the search, then the front on the test split.

Tune asks the conductor for the next job, a trial on one split, and reports when one has ended. By then the trial's own
process has written its results to the sweep's folder. So a driver that dies between any two steps leaves a folder and a
study from which `begin` continues.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import tune
from ray.tune import RunConfig, TuneConfig, Tuner
from ray.tune.search import Searcher
from sqlalchemy.exc import OperationalError

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import MIN_GROWTH, front_of
from fpp_sweep.records.pareto import front
from fpp_sweep.records.records import ENDED, FINAL, Command, Kind, TrialRecord
from fpp_sweep.records.steering import budget_in_force
from fpp_sweep.search.finalists import FinalJobs
from fpp_sweep.search.job import TrialContext, ended
from fpp_sweep.search.study import SweepStudy, name_of
from fpp_sweep.search.trial_runner import ABORT_REASON, TrialRunner
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.trial.trial import Plan
from fpp_sweep.workers.status import StatusPoller

START = 5.0  # seconds: a trial's process that is still starting when another trial ends is dropped by Tune


@dataclass(slots=True)
class Progress:
    """How far a sweep is, for the display."""

    phase: str = "starting"
    total: int | None = None
    running: set[str] = field(default_factory=set)
    finished: int = 0
    failed: int = 0
    stopped: int = 0
    seconds: list[float] = field(default_factory=list)  # of finished trials


class AbortTune(BaseException):
    """Ends Tune's loop with its cause; Tune wraps an Exception in pages of its own."""


@contextmanager
def halting() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AbortTune from error


class SweepSearcher(Searcher):
    """See the module's text."""

    def __init__(
        self,
        space: Space,
        folder: SweepFolder,
        study: SweepStudy,
        *,
        plan: Plan,
        final_plan: Plan | None = None,
        watch: StatusPoller,
        gpus_per_worker: float,
        on_change: Callable[[TrialRecord, str], None],
        finish: Sequence[str] = (),
    ) -> None:
        """`on_change` is called with a record and a split when the trial begins on that split and when it has ended.

        `finish` are trials that lost a race and are run to their end.
        """
        super().__init__()
        self.progress = Progress()
        self.why_stopped: str | None = None
        self._space, self._folder, self._study = space, folder, study
        self._plan, self._watch = plan, watch
        self._began = time.monotonic() - folder.info().spent  # earlier drivers' time counts, too
        self._gpus = gpus_per_worker
        self._on_change = on_change
        self._running: dict[str, tuple[str, str]] = {}  # Tune's trial -> name and split
        self._since: dict[str, float] = {}  # Tune's trial -> when it began
        self._processes: set[int] = set()  # that have run a job
        self._order = 0
        self._losses: Counter[tuple[str, str]] = Counter()  # of a job's process
        self._again: list[tuple[str, str]] = []
        self._adopted: list[int] = []
        self._baselines: list[str] = []
        self._finish = list(finish)
        self._final_jobs = FinalJobs(space, folder, has_final_stage=final_plan is not None)
        self._failures = 0  # in a row
        self._records = {record.name: record for record in folder.trials()}
        self._count_trials([])

    @property
    def search(self) -> Search:
        """As it is now: some of it may be changed while it runs."""
        return self._space.search

    def begin(self) -> None:
        """Make folder and study agree, and find what is left to do."""
        for number in self._study.unfinished():
            record = next((known for known in self._records.values() if known.number == number), None)
            if record is not None and record.state in ENDED:
                self._study.tell(record)  # the last driver died before it could
            else:
                self._adopted.append(number)
        for name, config in self._space.baselines().items():
            known = self._records.get(f"baseline-{name}")
            if known is None or known.state not in ("complete", "stopped"):
                self._write(_waiting(f"baseline-{name}", "baseline", config, origin="baseline"))
                self._baselines.append(f"baseline-{name}")
        for record in self._trials():
            if record.name in self._finish:
                self._write(replace(record, state="waiting", finished=None))
            elif record.estimate is not None and record.state not in ENDED:
                self._finish.append(record.name)
        for record in self._trials():
            self.progress.finished += record.state == "complete"
            self.progress.failed += record.state == "failed"
            self.progress.stopped += record.state == "stopped"

    def records(self) -> list[TrialRecord]:
        return list(self._records.values())

    def _trials(self) -> list[TrialRecord]:
        return [record for record in self._records.values() if record.kind == "trial"]

    def _at_once(self) -> int:
        return self._plan.concurrent_trials(self.search, self._watch.status.workers)

    def _too_short(self) -> bool:
        """Whether the trials under way may end before one more process for trials has started."""
        if not self._running or len(self._running) < len(self._processes):
            return False
        return time.monotonic() - min(self._since.values()) < START

    # ------------------------------------------------------------ what somebody asks for meanwhile

    def _steer(self) -> None:
        """Take up commands: those to stop a trial its own process follows, and a point waits for its turn."""
        commands = self._folder.commands()
        waiting = [command for command in commands if command.applied is None]
        if not waiting:
            return
        info = self._folder.info()
        before = self.search, self.progress.total
        search = budget_in_force(info, self.search, commands)
        if search != self.search:
            self._space = replace(self._space, search=search)
            plain = {**info.space, "search": self._space.plain()["search"]}
            self._folder.write_info(replace(info, space=plain, begun=info.begun or info.space))
        self._count_trials(commands)
        if (self.search, self.progress.total) != before:
            self.why_stopped = None
            self._final_jobs.reset()
        for command in waiting:
            if command.kind == "budget":
                self._applied(command)
            elif command.kind == "stop":
                record = self._records.get(command.values["trial"])
                if record is None or record.state in ENDED:
                    self._applied(command, record.state if record else "no such trial")

    def _applied(self, command: Command, outcome: str = "", number: int | None = None) -> None:
        self._folder.has_applied(command, outcome, number)
        steered = [command.words for command in self._folder.commands()]
        self._folder.write_info(replace(self._folder.info(), steered=steered))

    def _place_point(self) -> None:
        """The oldest point that was added and waits is the next trial; written before the study hears of it."""
        command = next((one for one in self._folder.commands() if one.kind == "add" and one.applied is None), None)
        number, added = self._study.free(), self._study.queue.added
        if command and number is not None and number not in added:  # it is where a driver was killed in between
            self._applied(command, name_of(number), number)
            added[number] = dict(command.values)

    def _count_trials(self, commands: Sequence[Command]) -> None:
        self.progress.total = self.search.trials
        if self.search.sampler == "grid":
            known = len(self._study.queue) + sum(one.kind == "add" and one.applied is None for one in commands)
            self.progress.total = min(self.search.trials or known, known)

    # ------------------------------------------------------------ what Tune calls

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    @halting()
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        self._steer()
        if len(self._running) >= self._at_once() or self._too_short():
            return None
        job = self._next()
        if job is None:
            return None if self._running else str(Searcher.FINISHED)
        name, split = job
        record = self._records[name]
        if split == self._space.search.split:
            attempt = record.attempt + (record.started > 0)
            begun = replace(record, state="running", started=time.time(), attempt=attempt)
            self._write(replace(begun, reason=None, details=None))
        self._running[trial_id] = job
        self._since[trial_id] = time.monotonic()
        self.progress.running.add(name)
        self._order += 1
        self._on_change(self._records[name], split)
        return {"name": name, "split": split, "order": self._order}

    @halting()
    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        name, split = job = self._running.pop(trial_id)
        del self._since[trial_id]
        self.progress.running.discard(name)
        if result:
            self._processes.add(result["pid"])
            if result.get(ABORT_REASON):
                raise MachineError(result[ABORT_REASON])
        record = self._folder.trial(name)
        searched = split == self._space.search.split
        if record.state == "running" if searched else error and split not in record.results:
            self._losses[job] += 1
            if self._losses[job] < self._space.work.attempts:  # no verdict on its settings
                self._again.append(job)
                return
            record = ended(record, split, "failed", f"the trial's process died {self._losses[job]} times")
            self._folder.write_trial(record)
        self._records[name] = record
        if searched and record.kind == "trial":
            self._study.tell(record)
            self._count(record)
        self._on_change(record, split)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the study and the folder are the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore, likewise."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its searcher into records that nothing reads again."""
        return {}

    # ------------------------------------------------------------ what is next

    def _next(self) -> tuple[str, str] | None:
        """The next job's name and split; None if there is none now."""
        if self._again:
            return self._again.pop(0)
        split = self._space.search.split
        if self._baselines:
            self.progress.phase = "baselines"
            return self._baselines.pop(0), split
        if self._waits_for_baselines():
            return None
        if self._finish:
            return self._finish.pop(0), split
        if not self._enough():
            self.progress.phase = "search"
            return self._begin_trial(), split
        return self._next_final_job()

    def _waits_for_baselines(self) -> bool:
        """Constraints may be relative to a baseline, which must have ended then."""
        if not any(constraint.baseline for constraint in self._space.constraints):
            return False
        return any(self._records[name].kind == "baseline" for name, _ in self._running.values())

    def _enough(self) -> bool:
        """Whether a budget is used up; what was begun before is finished all the same."""
        if self.why_stopped is None:
            self.why_stopped = self._watch.status.fatal or self._exhausted()
        return self.why_stopped is not None and not (self._adopted and self._watch.status.fatal is None)

    def _exhausted(self) -> str | None:
        search = self._space.search
        begun = self._study.begun() - len(self._adopted)
        if self.progress.total is not None and begun >= self.progress.total:
            return f"all {self.progress.total} trials"
        if search.wall_clock is not None and time.monotonic() - self._began >= search.wall_clock:
            return f"wall clock of {search.wall_clock:g} s used up"
        if search.gpu_hours is not None and self.gpu_hours() >= search.gpu_hours:
            return f"{search.gpu_hours:g} GPU-hours used up"
        if search.patience and front_of(self._folder.info(), self.records()).stagnant(search.patience):
            return f"hypervolume grew by less than {MIN_GROWTH:.0%} in the last {search.patience} finished trials"
        if search.max_failures is not None and self._failures >= search.max_failures:
            return f"{self._failures} trials in a row failed"
        return None

    def gpu_hours(self) -> float:
        records = self._records.values()
        held = sum(record.held + sum(result.device_seconds for result in record.results.values()) for record in records)
        return held * (self._gpus or 1) / 3600  # on CPUs, hours of workers

    def _begin_trial(self) -> str:
        if not self._adopted:
            self._place_point()
        number, origin, values = self._study.adopt(self._adopted.pop(0)) if self._adopted else self._study.ask()
        name = name_of(number)
        if name not in self._records:
            config = self._space.resolve(values)
            facts: dict[str, Any] = {"number": number, "origin": origin, "params": values}
            self._write(_waiting(name, "trial", config, **facts))
        return name

    def _next_final_job(self) -> tuple[str, str] | None:
        """Return the next job of the final stage or the test split; None if there is none now."""
        if self._watch.status.fatal or self._space.search.evaluate_only:
            return None
        job = self._final_jobs.next(self._records, list(self._running.values()))
        if job is not None:
            _, split = job
            self.progress.phase = "final stage" if split == FINAL else split
        return job

    def front(self) -> list[TrialRecord]:
        """The trials that no other dominates; infeasible ones are not on it."""
        feasible = [record for record in self._trials() if record.state == "complete" and record.feasible]
        points = [list(record.values or ()) for record in feasible]
        goals = [objective.goal for objective in self._space.objectives]
        return [feasible[index] for index in front(points, goals)] if points else []

    def _count(self, record: TrialRecord) -> None:
        if record.state == "complete":
            self.progress.finished += 1
            self._failures = 0
            self.progress.seconds.append((record.finished or 0) - record.started)
        elif record.state == "stopped":
            self.progress.stopped += 1
            self._failures = 0
        else:
            self.progress.failed += 1
            self._failures += 1

    def told(self, error: BaseException) -> BaseException:
        """Why the sweep ends; the study's database says in its own way what is wrong with its disk."""
        cause = error if isinstance(error, OperationalError) else error.__cause__
        if isinstance(cause, OperationalError):
            return MachineError.of(OSError(f"{self._folder.study_file}: {cause.orig}"))
        return MachineError.of(error) if isinstance(error, OSError) else error

    def _write(self, record: TrialRecord) -> None:
        self._folder.write_trial(record)
        self._records[record.name] = record


def _waiting(name: str, kind: Kind, config: TrialConfig, **facts: Any) -> TrialRecord:
    return TrialRecord(name=name, kind=kind, state="waiting", config=config.flat(), key=keys.of_config(config), **facts)


def conduct(conductor: SweepSearcher, brief: TrialContext, storage: str) -> None:
    """Let Tune run until the conductor has nothing left; raises MachineError where it cannot go on."""
    node = ray.util.get_node_ip_address()
    trainable = tune.with_resources(tune.with_parameters(TrialRunner, brief=brief), {"cpu": 0, f"node:{node}": 0.001})
    tuner = Tuner(
        trainable,
        tune_config=TuneConfig(
            search_alg=conductor,
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=lambda trial: trial.config["name"],
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=RunConfig(name="tune", storage_path=storage, verbose=0),
    )
    try:
        tuner.fit()
    except AbortTune as halt:
        raise conductor.told(halt.__cause__ or halt) from None
