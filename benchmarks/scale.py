"""A sweep on hundreds of workers that compute nothing: `python -m benchmarks.scale --trials 1000 --workers 64`.

Ray, scheduler, trials, study, records, report and MLflow are real; only the workers are light. They are processes
without torch that wait for the duration of a task and answer with predictions of the right shape. The benchmark
measures the costs of the system itself: CPU time of each kind of process per task, memory, idle time of workers, sizes
on disk, and the time of commands that read such a folder. Several workers may share a process (`--processes`).
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from benchmarks.harness import require_complete
from fpp_sweep.cli import parser, run
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.search.job import TrialContext
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, WorkerSpec
from fpp_sweep.spec.tasks import BATCH, EvalTask, Task
from fpp_sweep.sweep.api import Options, Sweep
from fpp_sweep.sweep.sweep_record import new_info
from fpp_sweep.sweep.worker_pool import Workers
from fpp_sweep.tracking.delivery import deliver
from fpp_sweep.tracking.stores import open_store
from fpp_sweep.trial.results import TaskResult, pack_predictions
from fpp_sweep.trial.trial import Plan
from fpp_sweep.workers.session import WorkerNeeds, session
from tests.kit.processes import descendants, environment

SPACE = """
question: What does the system cost beside its work?
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  fpp.gamma2: {low: 0.1, high: 10, log: true}
  fpp.context_var: {low: x0.01, high: x10, log: true}
  fpp.class_var: {low: x0.01, high: x10, log: true}
search: {trials: TRIALS, split: test, max_failures: 1, sampler: SAMPLER}
work: {baselines: [], workers: WORKERS, shards: SHARDS, attempts: 1}
"""
CLASSES = 10
PROMPT = save({"context": np.zeros((4, 512), dtype=np.float32)}, {"drift": "0"})  # four tokens of ViT-B/16
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    scratch = Path(args.keep or tempfile.mkdtemp(prefix="scale-"))
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        for workers in args.workers:
            root = scratch / f"{workers}"
            root.mkdir()
            simulate(root, workers, args)
    finally:
        if not args.keep:
            shutil.rmtree(scratch)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.scale", __doc__ or "")
    add = options.add_argument
    add("--trials", type=int, default=1000, metavar="N")
    add("--workers", type=int, nargs="+", default=[64], metavar="N")
    add("--processes", type=int, default=64, metavar="N", help="processes that the workers share, each of about 70 MB")
    add("--datasets", type=int, default=10, metavar="N")
    add("--shards", type=int, default=8, metavar="N", help="shards of a dataset, each of 64 images")
    add("--seconds", type=float, default=0.0, metavar="S", help="duration of a task")
    add("--sampler", default="random")
    add("--commands", action="store_true", help="also time the commands that read the folder")
    add("--keep", metavar="FOLDER", help="folder in which the sweep is kept")
    return options.parse_args(argv)


class LightActor:
    """A substitute for `actors.WorkerActor` that serves any number of workers."""

    def __init__(self, seconds: float) -> None:
        import asyncio

        self._seconds = seconds
        self._sleep = asyncio.sleep
        self._for_ever = asyncio.Event()

    async def wait_for_ever(self) -> None:
        await self._for_ever.wait()

    async def model_info(self) -> ModelInfo:
        return model_info()

    async def run(self, pickled: bytes) -> bytes:
        task, *_ = pickle.loads(pickled)
        await self._sleep(self._seconds)
        return pickle.dumps(self._result(task))

    def _result(self, task: Task) -> TaskResult:
        seconds = self._seconds
        if not isinstance(task, EvalTask):
            return TaskResult(prompt=PROMPT, seconds={"pretrain": seconds}, worker_seconds=seconds)
        return TaskResult(
            predictions=pack_predictions(predictions(task)), seconds={"adapt": seconds}, worker_seconds=seconds
        )


def predictions(task: EvalTask) -> Predictions:
    """Return predictions that differ between trials, so that there is a front."""
    draw = np.random.default_rng(abs(hash((task.config.fpp.gamma1, task.dataset, task.start))))
    count = task.stop - task.start
    probabilities = draw.dirichlet(np.full(CLASSES, 0.3), count).astype(np.float32)
    labels = np.where(draw.random(count) < 0.6, probabilities.argmax(1), draw.integers(0, CLASSES, count))
    return Predictions.of(
        [f"{task.dataset}/{number:06d}.jpg" for number in range(task.start, task.stop)], labels, probabilities
    )


def model_info() -> ModelInfo:
    here: dict[str, Any] = {"device": "none", "arithmetic": "", "node": "here", "pid": os.getpid()}
    return ModelInfo(name="none", digest="none", embedding_scale=1.0, **here)


def space_of(args: argparse.Namespace, workers: int) -> Space:
    words = {"TRIALS": args.trials, "SAMPLER": args.sampler, "WORKERS": workers, "SHARDS": args.shards}
    text = SPACE
    for word, value in words.items():
        text = text.replace(word, str(value))
    return parse_space(text, "scale.yaml")


def plan_of(args: argparse.Namespace) -> Plan:
    shape: dict[str, Any] = {"group": "tiny", "classes": tuple(f"class {k}" for k in range(CLASSES)), "digest": ""}
    facts = (
        DatasetInfo(name=f"set{number}", split="test", size=BATCH * args.shards, images="", **shape)
        for number in range(args.datasets)
    )
    return Plan(datasets={"test": tuple(facts)}, seeds=(0,), shards=args.shards)


def start_light_pool(tasks: Path, workers: int, args: argparse.Namespace) -> Any:
    """Start the real scheduler with light workers."""
    import ray

    from fpp_sweep.workers.actors import Pool, RayWorker, SchedulerActor

    processes, logs = min(workers, args.processes), tasks.with_name("logs")

    class LightScheduler(SchedulerActor):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            remote: Any = ray.remote
            actor = remote(num_cpus=0, max_concurrency=10_000)(LightActor)
            self._hosts = [actor.remote(args.seconds) for _ in range(processes)]
            self._started = 0
            self._scheduler.start_worker = self._start_light

        async def _start_light(self) -> Any:
            host = self._hosts[self._started % processes]
            self._started += 1
            return LightWorker(host, await host.model_info.remote(), logs)

    class LightWorker(RayWorker):
        async def wait_until_dead(self) -> None:
            await self.actor.wait_for_ever.remote()

        def kill(self) -> None:
            """Do nothing: other workers share the process."""

    needs = WorkerNeeds(workers=workers, cpus=0.0, gpus=0.0, env={})
    remote: Any = ray.remote
    actor = remote(LightScheduler).options(num_cpus=0, max_concurrency=1_000_000)
    spec = WorkerSpec(model="none")
    return Pool(actor.remote(spec, needs, tasks, attempts=1, timeout=600.0))


@dataclass(slots=True)
class ProcessLog:
    """CPU time and memory of a process and its children, sampled every second, as some end before the sweep."""

    pid: int
    spent: dict[tuple[int, str], float] = field(default_factory=dict)  # CPU seconds by process and role
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # number of ended trials, MiB by role
    busy: list[tuple[int, int]] = field(default_factory=list)  # number of started trials, number of running tasks
    over: threading.Event = field(default_factory=threading.Event)

    def sample_until_over(self, ended: Callable[[], int], begun: Callable[[], int], running: Callable[[], int]) -> None:
        while not self.over.wait(1.0):
            self.sample(ended())
            self.busy.append((begun(), running()))

    def idle_share(self, workers: int, trials: int) -> float:
        """Return the share of workers without a task, from the first task until the last trial has begun."""
        idle: list[float] = []
        for begun, running in self.busy:
            if begun < trials and (running or idle):
                idle.append(1 - min(running, workers) / workers)
        return statistics.fmean(idle or [0.0])

    def sample(self, ended: int) -> None:
        row: dict[str, float] = {}
        for pid, role in roles(self.pid).items():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self.spent[pid, role] = (int(fields[11]) + int(fields[12])) / TICK
                _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
                row[role] = row.get(role, 0.0) + (int(resident) - int(shared)) * PAGE / MIB
        self.rows.append((ended, row))

    def cpu(self) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for (_, role), seconds in self.spent.items():
            total[role] += seconds
        return total

    def at(self, trials: int) -> dict[str, float]:
        """Return the memory at the time when `trials` trials had ended, or at the end."""
        for ended, row in self.rows:
            if ended >= trials:
                return row
        return self.rows[-1][1]


ROLES = {
    "LightScheduler": "scheduler",
    "LightActor": "workers",
    "TrialRunner": "trials",
    "ResourceTrainable": "trials",
    "raylet/raylet": "raylet",
    "gcs_server": "gcs",
}


def roles(pid: int) -> dict[int, str]:
    """Return the roles of a driver and of the processes below it."""
    by_process = {pid: "driver"}
    for child, line in descendants(pid).items():
        by_process[child] = role_of(line)
    return by_process


def role_of(line: str) -> str:
    """Return the role of a process by its command line."""
    for word, role in ROLES.items():
        if word in line:
            return role
    return "ray's others"


def simulate(root: Path, workers: int, args: argparse.Namespace) -> None:
    space, plan = space_of(args, workers), plan_of(args)
    folder = SweepFolder(root / "scale")
    uri = f"sqlite:///{root}/mlflow.db"
    open_store(uri)
    with session(None, cpus=2, verbose=False):
        from fpp_sweep.sweep.driver import SweepDriver  # loads Ray, after its environment is set

        pool = start_light_pool(folder.tasks, workers, args)
        pool.open()
        pool.begin(TaskKeys(model_info(), plan.datasets_by_key()))
        while pool.status().workers < workers:
            time.sleep(0.1)
        folder.path.mkdir(parents=True)
        record = SweepRecord(folder, new_info(space, Options(), folder, uri))
        record.update(state="running")
        process_log = ProcessLog(os.getpid())
        process_log.sample(0)
        before, began = process_log.cpu(), time.monotonic()
        context = TrialContext(folder=folder, executor=pool, plan=plan, space=space)
        sweep = SweepDriver(record, Workers(pool, model_info()), context, Options())
        counters = (
            lambda: sweep.searcher.ended()["complete"],
            lambda: len(sweep.searcher.records()),
            lambda: pool.status().running,
        )
        watcher = threading.Thread(target=process_log.sample_until_over, args=counters, daemon=True)
        watcher.start()
        try:
            sweep.search()
        finally:
            wall = time.monotonic() - began
            status = pool.status()
            process_log.over.set()
            watcher.join()
            process_log.sample(args.trials)
            spent = {role: seconds - before[role] for role, seconds in process_log.cpu().items()}
            closing = time.monotonic()
            sweep.end("finished")
            closing = time.monotonic() - closing
    require_all_done(folder, args, status.counts.done)
    print_costs(args, workers, wall, spent, status, process_log)
    print(f"  last report and delivery to MLflow: {closing:.1f} s")
    sizes(root, folder)
    if args.commands:
        commands(root, folder, uri)


def task_count(args: argparse.Namespace) -> int:
    """Return the number of tasks of all trials: on each dataset, a pretraining and its shards."""
    tasks_of_dataset = 1 + args.shards
    return int(args.trials * args.datasets * tasks_of_dataset)


def require_all_done(folder: SweepFolder, args: argparse.Namespace, done: int) -> None:
    """Raise InputError if a trial is not complete or a task was not done: figures of such a sweep mean nothing."""
    require_complete(folder, args.trials)
    tasks = task_count(args)
    if done < tasks:
        raise InputError(f"{done} of {tasks} tasks were done")


def print_costs(
    args: Any, workers: int, wall: float, spent: dict[str, float], status: Any, process_log: ProcessLog
) -> None:
    tasks = task_count(args)
    print(
        f"{workers} workers, {args.trials} trials, {tasks} tasks ({status.counts.done} done) of {args.seconds:g} s, "
        f"{os.cpu_count()} cores: {wall:.0f} s, {1000 * wall / tasks:.2f} ms a task",
        flush=True,
    )
    print("  CPU ms a task: " + ", ".join(f"{role} {1000 * s / tasks:.2f}" for role, s in sorted(spent.items())))
    if args.seconds:
        print(f"  workers idle until the last trial has begun: {process_log.idle_share(workers, args.trials):.1%}")
        print(f"  workers idle: {1 - tasks * args.seconds / (workers * wall):.0%} of the time")
    for trials in (args.trials // 10, args.trials):
        row = process_log.at(trials)
        print(f"  MiB at {trials} trials: " + ", ".join(f"{role} {row[role]:.0f}" for role in sorted(row)))


def sizes(root: Path, folder: SweepFolder) -> None:
    def size(path: Path) -> float:
        files = [path, *path.rglob("*")]
        return sum(file.stat().st_size for file in files if file.is_file()) / MIB

    parts = {name: size(folder.path / name) for name in ("tasks", "trials", "artifacts", "report", "study.journal")}
    parts["MLflow's database"], parts["MLflow's artifacts"] = size(root / "mlflow.db"), size(root / "mlartifacts")
    print("  MiB on disk: " + ", ".join(f"{name} {value:.1f}" for name, value in parts.items()))


def commands(root: Path, folder: SweepFolder, uri: str) -> None:
    """Measure the seconds of commands that read such a folder."""

    def timed(what: str, work: Any) -> None:
        times = []
        for _ in range(3):
            began = time.monotonic()
            work()
            times.append(time.monotonic() - began)
        print(f"  {what}: {statistics.median(times):.1f} s", flush=True)

    def typed(module: str, *words: str) -> Any:
        command = [sys.executable, "-m", module, str(folder.path), *words]
        return lambda: subprocess.run(command, check=True, capture_output=True, cwd=root, env=environment(root))

    timed("records read", folder.trials)
    timed("Sweep.table", Sweep(folder).table)
    timed("Sweep.front", Sweep(folder).front)
    timed("python -m fpp_sweep.show --page", typed("fpp_sweep.show", "--page"))
    timed("python -m fpp_sweep.sync, nothing to do", typed("fpp_sweep.sync"))
    fresh = f"sqlite:///{root}/fresh.db"
    open_store(fresh)
    began = time.monotonic()
    result = deliver(folder, fresh)
    print(f"  everything delivered to a new MLflow: {1000 * (time.monotonic() - began) / result.updated:.0f} ms a run")


if __name__ == "__main__":
    run(main)
