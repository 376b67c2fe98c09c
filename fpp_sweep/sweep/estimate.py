"""What a sweep would do, and about what it would cost: `tune --dry-run`.

The tasks are those of the sweep itself: baselines, published points, as many sampled trials as the budget allows, and
the test split, with everything that trials share counted once. What a task costs is measured here, on this machine's
device, with a few steps and a few images of each dataset.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from fpp_sweep.core.images.chunks import CHUNK
from fpp_sweep.core.images.features import at_once
from fpp_sweep.search.racing import NEVER_STOPPED
from fpp_sweep.space.params import Param
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, relevant
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.process import cores
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task, effort
from fpp_sweep.sweep import timing
from fpp_sweep.sweep.preflight import check, make_plan, worker_spec
from fpp_sweep.sweep.schedule import Piece, Schedule
from fpp_sweep.sweep.timing import Speed
from fpp_sweep.trial.trial import Plan, with_pretrainings
from fpp_sweep.trial.worker import Worker

WIDTH = 110  # columns
FRONT = 4  # members that are expected to be run on the test split
START = 24.0  # seconds before the first task and after the last: libraries, Ray, the model, the report; two cores
SHOWN = 8  # trials printed
SAVED = 0.14, 0.62  # of adaptation, by races on 200 to 5,000 images a dataset (docs/sweep.md)


def dry_run(spaces: Sequence[Space], table: Sequence[int] = ()) -> str:
    """The configs, tasks and cost of a sweep, or of several that share their results, as text.

    `table` are numbers of workers to compare.
    """
    first = spaces[0].work
    gpu = torch.cuda.is_available() and first.gpus_per_worker != 0
    with tempfile.TemporaryDirectory() as cache:
        # an empty cache: reading features that exist already would be timed instead of computing them
        worker = Worker(replace(worker_spec(spaces[0], (first.gpus_per_worker or 1.0) if gpu else 0.0), cache=cache))
        plans = [make_plan(space, worker) for space in spaces]
        notes = dict.fromkeys(
            note
            for space, plan in zip(spaces, plans, strict=True)
            for note in (*check(space, worker, plan).notes, *space.left_out())
        )
        workers = first.workers or _that_fit(first, gpu)
        speeds: dict[str, Speed] = {}
        with busy(min(workers, cores()) - 1):
            for space, plan in zip(spaces, plans, strict=True):
                for facts in plan.datasets[space.search.split]:
                    if facts.name not in speeds:
                        speeds[facts.name] = timing.measure(worker, space.start(), facts)
    known = {key: facts for plan in plans for key, facts in plan.known().items()}
    runs = [Expected(space, plan, dict(expected_configs(space))) for space, plan in zip(spaces, plans, strict=True)]
    lines = [line for run in runs for line in config_lines(run.space, run.configs)]
    lines += [*(f"note: {note}" for note in notes), ""]
    keys = TaskKeys(worker.facts(), known)
    size = len(worker.clip.text.projection[0]) * (4 if worker.spec.exact_cache else 2)
    return "\n".join([*lines, *cost_lines(runs, speeds, workers, keys, size=size, table=table)])


def _that_fit(work: Work, gpu: bool) -> int:
    """Workers on this machine."""
    there, each = (torch.cuda.device_count(), work.gpus_per_worker or 1.0) if gpu else (cores(), work.cpus_per_worker)
    return max(1, int(there / each + 1e-9))


@dataclass(frozen=True, slots=True)
class Expected:
    """A sweep and the configs that it is expected to run, by name."""

    space: Space
    plan: Plan
    configs: Mapping[str, TrialConfig]

    def runs(self) -> Iterator[tuple[TrialConfig, str]]:
        """Configs with the splits that they run on."""
        split = self.space.search.split
        yield from ((config, split) for config in self.configs.values())
        if split != "test" and not self.space.search.evaluate_only:
            trials = [name for name in self.configs if name.startswith("trial")][:FRONT]
            yield from (
                (config, "test")
                for name, config in self.configs.items()
                if name.startswith("baseline") or name in trials
            )

    def trials(self) -> dict[str, list[list[Task]]]:
        """The tasks of each run, by split."""
        cut: dict[str, list[list[Task]]] = {}
        for config, split in self.runs():
            tasks = self.plan.tasks(config, split).values()
            cut.setdefault(split, []).append(with_pretrainings([shard for shards in tasks for shard in shards]))
        return cut


@contextmanager
def busy(others: int) -> Iterator[None]:
    """Keep so many more cores busy, as the other workers will: a core is faster while others are idle."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def expected_configs(space: Space) -> Iterator[tuple[str, TrialConfig]]:
    """Baselines and trials by name; random points stand for what a sampler will choose."""
    for name, config in space.baselines().items():
        yield f"baseline-{name}", config
    queue = space.queue()
    draw = random.Random(space.search.seed)
    total = space.search.trials or len(queue)
    if space.search.sampler == "grid":
        total = min(total, len(queue))
    for number in range(total):
        values = queue[number][1] if number < len(queue) else sample_point(space.searched(), draw)
        yield f"trial-{number:04d}", space.resolve(values)


def sample_point(params: Iterable[Param], draw: random.Random) -> dict[str, Any]:
    """A point of the space."""
    values: dict[str, Any] = {}
    for param in params:
        if not param.exists(values):
            continue
        if param.kind == "choice":
            values[param.key] = draw.choice(param.choices)
            continue
        low, high = param.bounds
        value = math.exp(draw.uniform(math.log(low), math.log(high))) if param.log else draw.uniform(low, high)
        value = min(max(value, low), high)
        values[param.key] = round(value) if param.kind == "int" else value
    return values


def config_lines(space: Space, configs: Mapping[str, TrialConfig]) -> Iterator[str]:
    """What is the same in all configs, and what is not in the first few."""
    flat = {name: relevant(config.flat()) for name, config in configs.items()}
    keys = list(dict.fromkeys(key for settings in flat.values() for key in settings))
    seen = {key: {str(settings[key]) for settings in flat.values() if key in settings} for key in keys}
    same = [
        f"{key}={_short(next(settings[key] for settings in flat.values() if key in settings))}"
        for key in keys
        if len(seen[key]) == 1
    ]
    yield f"sweep {space.name}: {len(configs)} configs, {space.search.sampler}, on {space.work.model}"
    yield textwrap.fill(f"the same in all: {', '.join(same)}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    queue = len(space.queue())
    shown = list(flat)[: len(space.baselines()) + min(queue, SHOWN) + 1]
    for name in shown:
        drawn = name.startswith("trial") and int(name[-4:]) >= queue
        line = ", ".join(f"{key}={_short(value)}" for key, value in flat[name].items() if len(seen[key]) > 1)
        text = f"{name}: {line}{' (drawn at random here)' if drawn else ''}"
        yield textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    if len(flat) > len(shown):
        yield f"  ... and {len(flat) - len(shown)} more"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What sweeps that share their results have to compute, and what it takes a worker."""

    phases: Sequence[tuple[Expected, str, Sequence[Sequence[Task]]]]  # a sweep's trials on a split
    done_by: Mapping[Task, str]  # key of the task that is computed for it: one with more columns serves
    tasks: Mapping[str, Task]  # those that are computed
    seconds: Mapping[str, float]
    features: Mapping[str, float]  # seconds besides, where a task is the first to read the features of its images
    views: int  # whose features are kept

    @classmethod
    def of(cls, sweeps: Sequence[Expected], speeds: Mapping[str, Speed], keys: TaskKeys) -> Costs:
        phases = [(sweep, split, trials) for sweep in sweeps for split, trials in sweep.trials().items()]
        every = dict.fromkeys(task for *_, trials in phases for trial in trials for task in trial)
        found = {keys.of(task): task for task in every}
        done_by = {task: [key for key in keys.serving(task) if key in found][-1] for task in every}
        features: dict[str, float] = {}
        read: dict[tuple[object, ...], int] = {}
        for task in (task for task in every if isinstance(task, EvalTask)):
            views = catalogue.method(task.config.method).views or task.config.views.count
            chunk = (task.dataset, task.split, task.seed, task.start, views, task.config.views)
            if chunk not in read:
                read[chunk] = (task.stop - task.start) * views
                key, speed = done_by[task], speeds[task.dataset]
                draw = read[chunk] * speed.draw / task.config.views.count
                tower = _in_tower(task.stop - task.start, views) * speed.tower
                features[key] = features.get(key, 0.0) + draw + tower
        tasks = {key: found[key] for key in done_by.values()}
        seconds = {key: _seconds(task, speeds[task.dataset]) for key, task in tasks.items()}
        return cls(phases, done_by, tasks, seconds, features, sum(read.values()))

    def total(self, kind: type[Task]) -> float:
        return math.fsum(self.seconds[key] for key, task in self.tasks.items() if isinstance(task, kind))

    def ends(self, workers: int, *, features: bool = True) -> list[float]:
        """When each phase is over, with so many workers."""
        besides = self.features if features else {}
        schedule = Schedule(workers)
        return [
            schedule.run(
                [self._pieces(trial, besides) for trial in trials], sweep.plan.at_once(sweep.space.search, workers)
            )
            for sweep, _, trials in self.phases
        ]

    def _pieces(self, trial: Sequence[Task], besides: Mapping[str, float]) -> list[Piece]:
        keys = {self.done_by[task]: tuple(self.done_by[need] for need in task.needs) for task in trial}
        return [Piece(key, self.seconds[key] + besides.get(key, 0.0), needs) for key, needs in keys.items()]


def cost_lines(
    sweeps: Sequence[Expected],
    speeds: Mapping[str, Speed],
    workers: int,
    keys: TaskKeys,
    *,
    size: int = 0,
    table: Sequence[int] = (),
) -> Iterator[str]:
    """Tasks, and the seconds that they take; `size` are the bytes of a view's features."""
    costs = Costs.of(sweeps, speeds, keys)
    pretrain, adapt, drawn = costs.total(PretrainTask), costs.total(EvalTask), math.fsum(costs.features.values())
    work = pretrain + adapt + drawn
    wall = START + costs.ends(workers)[-1]
    device = "CPU" if keys.model.device == "cpu" else "GPU"
    evaluations = [task for task in costs.tasks.values() if isinstance(task, EvalTask)]
    asked = sum(isinstance(task, EvalTask) for *_, trials in costs.phases for trial in trials for task in trial)
    images = sum(task.stop - task.start for task in evaluations)
    parts = f"pretraining {_time(pretrain)}, adaptation {_time(adapt)}, image features {_time(drawn)}"
    shared = f" ({asked - len(evaluations)} more are shared)" if asked > len(evaluations) else ""
    pretrainings = len(costs.tasks) - len(evaluations)
    yield f"tasks: {pretrainings} pretrainings, {len(evaluations)} evaluations of shards{shared}, {images} images"
    yield f"worker time, measured here ({device}): {parts} (features once, less where cached)"
    yield f"estimate: {_time(work)} of {device} time, {_time(wall)} with {workers} workers like this one"
    yield from _table(costs, work, table, size)
    yield from (line for sweep in sweeps for line in _race_lines(sweep, speeds, work))
    budgets = [sweep.space.search.wall_clock for sweep in sweeps]
    if len(budgets) == 1 and budgets[0] is not None and budgets[0] < wall:
        yield f"the budget of {_time(budgets[0])} ends it earlier"


def _table(costs: Costs, work: float, counts: Sequence[int], size: int) -> Iterator[str]:
    """The same with other numbers of workers: what cannot be spread, and what waits, becomes idle time."""
    if not counts:
        return
    yield f"image features: {costs.views * size / 1e6:,.1f} MB in each cache that computes them all"
    yield f"{'workers':>9}{'starting':>10}{'features':>10}{'search':>10}{'test':>10}{'all':>10}{'idle':>7}"
    searched = [split == sweep.space.search.split for sweep, split, _ in costs.phases]
    for workers in counts:
        plain, everything = costs.ends(workers, features=False), costs.ends(workers)[-1]
        spans = [end - begin for begin, end in pairwise([0.0, *plain])]
        search = math.fsum(span for span, of_search in zip(spans, searched, strict=True) if of_search)
        told = (START, everything - plain[-1], search, plain[-1] - search, START + everything)
        line = "".join(f"{_time(seconds):>10}" for seconds in told)
        yield f"{workers:>9}{line}{1 - work / (workers * told[-1]):>7.0%}"


def _race_lines(sweep: Expected, speeds: Mapping[str, Speed], work: float) -> Iterator[str]:
    """What a race may save: a part of the adaptation of trials that it may stop, and of nothing else."""
    race, split = sweep.space.search.race, sweep.space.search.split
    if race is None:
        return
    asked = sum(origin in NEVER_STOPPED for origin, _ in sweep.space.queue())
    first = max(race.reserve, asked)
    trials = [config for name, config in sweep.configs.items() if name.startswith("trial")][first:]
    tasks = (task for config in trials for shards in sweep.plan.tasks(config, split).values() for task in shards)
    share = sum(_seconds(task, speeds[task.dataset]) for task in tasks) / work
    least, most = SAVED
    told = f"race: trials after the first {first} adapt for {share:.0%} of this"
    yield f"{told}; {least:.0%} to {most:.0%} of that was saved elsewhere: {least * share:.0%} to {most * share:.0%}"


def _in_tower(images: int, views: int) -> int:
    """Views that go through the image tower, whose groups are of one size."""
    group = at_once(views)
    chunks, rest = divmod(images, CHUNK)
    return views * group * (chunks * math.ceil(CHUNK / group) + math.ceil(rest / group))


def _seconds(task: Task, speed: Speed) -> float:
    if isinstance(task, PretrainTask):
        return task.config.fpp.steps * speed.step
    images = task.stop - task.start
    if not catalogue.method(task.config.method).learns:
        return images * speed.plain
    return speed.begin + images * speed.image * effort(task.config)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
