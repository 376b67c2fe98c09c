"""The tasks that sweeps compute, the time of each task, and the time of all with several workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fpp_sweep.core.images.chunks import CHUNK
from fpp_sweep.core.images.features import images_per_batch
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task, effort, views_for
from fpp_sweep.sweep.expected import ExpectedSweep, Phase
from fpp_sweep.sweep.timing import Speed


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds, between a lower and an upper bound."""

    low: float
    high: float

    def __add__(self, later: Range) -> Range:
        return Range(self.low + later.low, self.high + later.high)


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """The tasks of sweeps that share their results, and the seconds that each takes a worker."""

    phases: Sequence[Phase]
    key_of: Mapping[Task, str]  # key of the task that is computed: a task with more columns serves one with fewer
    tasks: Mapping[str, Task]  # tasks that are computed, by key
    seconds: Mapping[str, float]  # by key
    feature_seconds: Mapping[str, float]  # by key; a task that reads images first also computes their features
    views: int  # views whose features are computed
    core_share: float  # share of the time of measuring in which the process had a core

    @classmethod
    def of(cls, sweeps: Sequence[ExpectedSweep], speeds: Mapping[str, Speed], keys: TaskKeys) -> Costs:
        phases: list[Phase] = []
        for sweep in sweeps:
            phases += sweep.phases()
        requested: dict[Task, None] = {}
        for phase in phases:
            for trial in phase.trials:
                requested.update(dict.fromkeys(trial))
        key_of, tasks = _computed_tasks(requested, keys)
        feature_seconds, views = _feature_seconds(requested, key_of, speeds, keys)
        return cls(
            phases=phases,
            key_of=key_of,
            tasks=tasks,
            seconds={key: task_seconds(task, speeds[task.dataset]) for key, task in tasks.items()},
            feature_seconds=feature_seconds,
            views=views,
            core_share=min(speed.core_share for speed in speeds.values()),
        )

    @property
    def evaluations(self) -> list[EvalTask]:
        return [task for task in self.tasks.values() if isinstance(task, EvalTask)]

    @property
    def pretraining(self) -> float:
        """Seconds that a worker needs for all pretrainings."""
        return self._seconds_of(PretrainTask)

    @property
    def adaptation(self) -> float:
        """Seconds that a worker needs for all evaluations, without image features."""
        return self._seconds_of(EvalTask)

    def _seconds_of(self, kind: type[Task]) -> float:
        return math.fsum(self.seconds[key] for key, task in self.tasks.items() if isinstance(task, kind))

    @property
    def features(self) -> float:
        return math.fsum(self.feature_seconds.values())

    @property
    def work(self) -> float:
        return self.pretraining + self.adaptation + self.features

    def requested_evaluations(self) -> int:
        """Return how many evaluations the trials ask for, shared ones counted for each."""
        count = 0
        for phase in self.phases:
            for trial in phase.trials:
                count += sum(isinstance(task, EvalTask) for task in trial)
        return count

    def seconds_after_search(self, sweep: ExpectedSweep) -> float:
        """Return the seconds that a worker needs for the final stage and the test split of one of the sweeps."""
        seconds = 0.0
        computed: set[str] = set()
        for phase in self.phases:
            for trial in phase.trials:
                work, _ = self._new_work(trial, computed)
                if phase.sweep is sweep and not phase.is_search:
                    seconds += work
        return seconds

    def phase_times(self, workers: int) -> list[Range]:
        """Return how long each phase takes with several workers.

        A phase takes at least its work divided by the workers, and at least its longest chain of tasks that wait for
        each other. A schedule without needless gaps takes at most the sum of both (Graham's bound). Trials that run one
        after the other are a chain, too. The lower bound assumes that nothing else uses the cores.
        """
        times = []
        computed: set[str] = set()  # by earlier trials
        for phase in self.phases:
            work, chains = 0.0, []
            for trial in phase.trials:
                seconds, chain = self._new_work(trial, computed)
                work += seconds
                chains.append(chain)
            longest = max(max(chains, default=0.0), math.fsum(chains) / phase.trials_at_once(workers))
            work_per_worker = work / workers
            low = max(work_per_worker, longest) * self.core_share
            times.append(Range(low, work_per_worker + longest * (1 - 1 / workers)))
        return times

    def _new_work(self, trial: Sequence[Task], computed: set[str]) -> tuple[float, float]:
        """Return the seconds of all tasks of a trial and of its longest chain, without tasks that are computed already.

        The keys of the trial's tasks are added to `computed`.
        """
        new = {}
        for task in trial:
            if self.key_of[task] not in computed:
                new[self.key_of[task]] = task
        computed.update(new)
        work, longest = 0.0, 0.0
        for key, task in new.items():
            chain = self._seconds_with_features(key)
            for needed in task.needs:
                if self.key_of[needed] in new:
                    chain += self._seconds_with_features(self.key_of[needed])
            work += self._seconds_with_features(key)
            longest = max(longest, chain)
        return work, longest

    def _seconds_with_features(self, key: str) -> float:
        return self.seconds[key] + self.feature_seconds.get(key, 0.0)


def _computed_tasks(requested: Iterable[Task], keys: TaskKeys) -> tuple[dict[Task, str], dict[str, Task]]:
    """Return the key of the task that is computed for each requested task, and the computed tasks by key.

    A task with more columns is computed instead of one with fewer, if both are requested.
    """
    requested_by_key = {keys.of(task): task for task in requested}
    key_of = {}
    computed = {}
    for task in requested:
        compatible = [key for key in keys.compatible_keys(task) if key in requested_by_key]
        key = compatible[-1]  # the key of the task with the most columns
        key_of[task] = key
        computed[key] = requested_by_key[key]
    return key_of, computed


def _feature_seconds(
    requested: Iterable[Task], key_of: Mapping[Task, str], speeds: Mapping[str, Speed], keys: TaskKeys
) -> tuple[dict[str, float], int]:
    """Return by key the seconds for the features of images that a task reads first, and the number of views."""
    seconds: dict[str, float] = {}
    total_views = 0
    counted: set[tuple[object, ...]] = set()  # shards whose features an earlier task computes
    for task in requested:
        if not isinstance(task, EvalTask):
            continue
        view_config = views_for(task.config, keys.datasets[task.dataset, task.split].group)
        shard = (task.dataset, task.split, task.seed, task.start, view_config)
        if shard in counted:
            continue
        counted.add(shard)
        images = task.stop - task.start
        views = images * view_config.count
        total_views += views
        speed = speeds[task.dataset]
        drawing = views * speed.drawn_image / task.config.views.count
        encoding = views_in_tower(images, view_config.count) * speed.encoded_view
        key = key_of[task]
        seconds[key] = seconds.get(key, 0.0) + drawing + encoding
    return seconds, total_views


def views_in_tower(images: int, views: int) -> int:
    """Return how many views go through the image tower: it takes batches of one size, and the last are filled up."""
    batch = images_per_batch(views)
    chunks, rest = divmod(images, CHUNK)
    batches = chunks * math.ceil(CHUNK / batch) + math.ceil(rest / batch)
    return views * batch * batches


def task_seconds(task: Task, speed: Speed) -> float:
    """Return the seconds of a task without image features."""
    if isinstance(task, PretrainTask):
        return task.config.fpp.steps * speed.pretraining_step
    images = task.stop - task.start
    if not catalogue.method(task.config.method).learns:
        return images * speed.zero_shot_image
    return speed.method_start + images * speed.adapted_image * effort(task.config)
