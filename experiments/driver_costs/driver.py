"""Overhead of a sweep: `python -m experiments.driver_costs.driver`.

The command measures two things:

- the time of trials whose task does nothing. They pass through everything that a real trial passes through: Ray Tune,
  Optuna's study, the trial's process, the scheduler, scoring, files and records. One trial runs at a time, so that no
  cost is hidden by another trial's work.
- the time of `ask` in a study that already has many trials.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import ray

from benchmarks.harness import require_complete
from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.search.job import TrialContext
from fpp_sweep.search.searcher import SweepSearcher, TrialChange, run_tune
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, TaskData, WorkerSpec
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.sweep_info import new_info
from fpp_sweep.trial.plan import Plan
from fpp_sweep.trial.results import TaskResult, pack_predictions
from fpp_sweep.workers.actors import Pool, SchedulerActor
from fpp_sweep.workers.assignment import Unavailable
from fpp_sweep.workers.needs import WorkerNeeds
from fpp_sweep.workers.session import session
from fpp_sweep.workers.status import StatusPoller

SPACE = """
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  fpp.gamma2: {low: 0.1, high: 10, log: true}
  fpp.context_var: {low: x0.01, high: x10, log: true}
  fpp.class_var: {low: x0.01, high: x10, log: true}
search: {trials: TRIALS, split: test, concurrency: 1, max_failures: 1}
work: {baselines: [], datasets: [scenes]}
"""
SAMPLES, CLASSES = 10, 3


class EndTimes:
    """A listener that stores the times at which trials were completed."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_change(self, change: TrialChange) -> None:
        if change.has_ended and change.record.state == "complete":
            self.ends.append(time.monotonic())


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    for count in args.asked:
        print(f"ask with {count} trials in the study: {1000 * ask_seconds(count):.0f} ms", flush=True)
    print_overhead(args.trials)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("experiments.driver_costs.driver", __doc__ or "")
    options.add_argument("--trials", type=int, default=200, metavar="N", help="number of trials that do nothing")
    options.add_argument(
        "--asked", type=int, nargs="*", default=[100, 500, 2000], metavar="N", help="numbers of trials in the study"
    )
    return options.parse_args(argv)


def space_of(trials: int) -> Space:
    return parse_space(SPACE.replace("TRIALS", str(trials)), "driver.yaml")


def ask_seconds(count: int) -> float:
    """Return the median seconds of five asks in a study that is filled with random trials."""
    space = space_of(10 * count)
    with tempfile.TemporaryDirectory() as scratch:
        study = SweepStudy(Path(scratch) / "study.journal", "asked", space)
        inner = study._study
        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            param.key: optuna.distributions.FloatDistribution(float(param.low or 0), float(param.high or 0), log=True)
            for param in space.searched()
        }
        random = optuna.samplers.RandomSampler(seed=0)
        source = optuna.create_study(sampler=random, directions=["maximize", "minimize"])
        for _ in range(count):
            trial = source.ask(distributions)
            source.tell(trial, list(trial.params.values())[:2])
        inner.add_trials(source.trials)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            number, _, values = study.ask()
            times.append(time.perf_counter() - began)
            record = TrialRecord(
                name="x", kind="trial", state="complete", number=number, params=values, values=[1.0, 1.0]
            )
            study.tell(record)
    return statistics.median(times)


def print_overhead(trials: int) -> None:
    here: dict[str, Any] = {"device": "none", "arithmetic": "", "node": "here", "pid": os.getpid(), "seconds": 0.0}
    model = ModelInfo(name="none", digest="none", embedding_scale=1.0, **here)
    shape: dict[str, Any] = {"group": "tiny", "classes": ("a", "b", "c"), "size": SAMPLES, "digest": "", "images": ""}
    data = DatasetInfo(name="scenes", split="test", **shape)

    class IdleWorker:
        """A worker that returns a result without any work."""

        def __init__(self) -> None:
            self.info = model
            self.slot = "here"
            self.doing = ""

        async def run(self, task: Task, inputs: Sequence[TaskResult], adapter_key: str, data: TaskData) -> TaskResult:
            if not isinstance(task, EvalTask):
                return TaskResult(prompt=b"prompt", seconds={"pretrain": 0.0})
            probabilities = np.full((SAMPLES, CLASSES), 1 / CLASSES, np.float32)
            labels = np.arange(SAMPLES) % CLASSES
            rows = Predictions.of([str(i) for i in range(SAMPLES)], labels, probabilities)
            return TaskResult(predictions=pack_predictions(rows))

        async def wait_until_unavailable(self) -> Unavailable:
            await asyncio.Event().wait()
            return "dead"

        def kill(self) -> None:
            pass

        async def wait_resources_released(self) -> None:
            pass

    space = space_of(trials)
    with tempfile.TemporaryDirectory() as scratch, session(None, cpus=2, verbose=False):

        class IdleScheduler(SchedulerActor):
            def __init__(self, tasks: Path) -> None:
                needs = WorkerNeeds(workers=1, cpus=1, gpus=0, env={})
                super().__init__(WorkerSpec(model="none"), needs, tasks, attempts=1, timeout=60.0)
                self._scheduler.start_worker = self._start_idle

            async def _start_idle(self) -> IdleWorker:
                return IdleWorker()

        folder = SweepFolder(Path(scratch) / "driver")
        folder.path.mkdir()
        actor: Any = ray.remote(IdleScheduler)
        folder.write_info(new_info(space, Options(), folder, ""))
        pool = Pool(actor.options(num_cpus=0, max_concurrency=1000).remote(folder.tasks))
        pool.open()
        listener = EndTimes()
        plan = Plan(datasets={"test": (data,)}, seeds=(0,))
        pool.begin(TaskKeys(model, plan.datasets_by_key()))
        searcher = SweepSearcher(
            space,
            folder,
            SweepStudy(folder.study_file, "driver", space),
            plan=plan,
            poller=StatusPoller(pool),
            gpus_per_worker=0.0,
            listeners=[listener],
        )
        searcher.prepare_jobs()
        context = TrialContext(
            folder=folder, executor=pool, plan=plan, objectives=space.objectives, constraints=(), search_split="test"
        )
        run_tune(searcher, context, scratch)
        require_complete(folder, trials)
    gaps = [later - earlier for earlier, later in pairwise(listener.ends)]
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{len(listener.ends)} of {trials} trials that do nothing, {cores} cores, load {load:.1f}:")
    for label, part in (("all", gaps), ("the last fifty", gaps[-50:])):
        print(f"  {label}: {1000 * statistics.median(part):.0f} ms a trial (median), at most {1000 * max(part):.0f}")


if __name__ == "__main__":
    run(main)
