"""The dry run of a sweep: its configs and tasks, and about how long it would take (`tune --dry-run`).

Tasks are those of the sweep itself: baselines, published points, as many sampled trials as the budget allows, the final
stage and the test split. Those that a resumed sweep has measured are left out. A few steps of pretraining and a few
images are run here, and their time is multiplied.
"""

from __future__ import annotations

import math
import tempfile
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import torch

from fpp_sweep.core.images.features import images_per_batch
from fpp_sweep.records.records import ENDED, FINAL, REFERENCES, TrialRecord, baseline_name, trial_name
from fpp_sweep.records.texts import setting_text
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.space import Space
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, ViewConfig, relevant
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import plural, stage
from fpp_sweep.spec.process import cores, terminable
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, Validation
from fpp_sweep.spec.tasks import BATCH, EvalTask, PretrainTask, Task, effort, views_for
from fpp_sweep.sweep.plan import check_plan
from fpp_sweep.sweep.worker_pool import worker_spec
from fpp_sweep.trial.trial import Plan, flatten, with_pretrainings
from fpp_sweep.trial.worker import Worker
from fpp_sweep.workers.session import WorkerNeeds

WIDTH = 110  # columns
TRIALS_SHOWN = 8
FRONT_SIZE = 4  # members that are expected to run on the test split, without a final stage


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedSweep:
    """A sweep with the configs that it is expected to run, by name."""

    space: Space
    plan: Plan
    configs: Mapping[str, TrialConfig]

    def tasks(self) -> dict[str, list[Task]]:
        """Return the tasks of the search, of the final stage, and of the test split if the search is on another one.

        Tasks that several trials need are listed for each of them.
        """
        search = self.space.search
        baselines = self.space.baselines()
        tasks: dict[str, list[Task]] = {search.split: self._tasks(self.configs.values(), search.split)}
        if self.plan.later:
            references = list(baselines.values())
            if search.split != "test":  # there the finalists are measured against all baselines
                references = references[:REFERENCES]
            tasks[FINAL] = self._tasks([*references, *self.finalists()], FINAL)
        if search.split != "test" and not search.evaluate_only:
            on_test = self.finalists()
            if self.plan.later:
                on_test = on_test[:1]
            tasks["test"] = self._tasks([*baselines.values(), *on_test], "test")
        return tasks

    def finalists(self) -> list[TrialConfig]:
        """Return the configs of as many trials as will run again; the first trials stand for the best ones."""
        count = FRONT_SIZE
        if self.plan.later:
            count = self.space.search.finalists.count
        trials = [config for name, config in self.configs.items() if name.startswith("trial")]
        return trials[:count]

    def _tasks(self, configs: Iterable[TrialConfig], split: str) -> list[Task]:
        tasks: list[Task] = []
        for config in configs:
            plan = self.plan.on(split, config)
            evaluations = flatten([*plan.tasks(config, split).values()])
            tasks += with_pretrainings([*evaluations, *flatten(plan.posthoc_tasks(config, split).values())])
        return tasks


def expected_configs(space: Space, records: Sequence[TrialRecord] = ()) -> dict[str, TrialConfig]:
    """Return baselines and trials by name: trials with a record, finalists first, then those that are still to begin.

    Random values stand for the sampler's.
    """
    configs = {baseline_name(name): config for name, config in space.baselines().items()}
    for record in sorted(records, key=lambda record: len(record.results), reverse=True):
        has_ended_early = record.state in ENDED and record.state != "complete"
        if record.kind == "trial" and not record.outside and not has_ended_early:
            configs[record.name] = TrialConfig().replace(record.config)
    total = space.search.trials or len(space.queue())
    if space.search.sampler == "grid":
        total = min(total, len(space.queue()))
    else:
        space = replace(space, search=replace(space.search, sampler="random"))
    study = SweepStudy(space, records)
    while study.count() - study.n_outside < total:
        suggestion = study.ask()
        with suppress(InputError):  # settings that exclude each other: the trial fails before its first task
            configs[trial_name(suggestion.number)] = space.resolve(suggestion.settings)
    return configs


def config_lines(space: Space, configs: Mapping[str, TrialConfig]) -> Iterator[str]:
    """Yield the settings that configs share, and the other settings of the first few."""
    flat = {name: relevant(config.flat()) for name, config in configs.items()}
    shared = _shared_settings(list(flat.values()))
    configs_text = plural(len(configs), "config")
    yield f"sweep {space.name}: {configs_text}, {space.search.sampler}, on {space.work.model}"
    if shared:
        yield _filled(f"the same in all configs that read them: {_settings_text(shared)}", indent="", hanging=4)
    shown = list(flat)[: len(space.baselines()) + TRIALS_SHOWN]
    for name in shown:
        own_settings = {key: value for key, value in flat[name].items() if key not in shared}
        yield _filled(f"{name}: {_settings_text(own_settings)}", indent="  ", hanging=6)
    if len(flat) > len(shown):
        yield f"  ... and {len(flat) - len(shown)} more"
    if space.search.sampler != "grid":
        yield "  values that the sampler will choose are drawn at random here"


def _shared_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that several configs read, and that have one value in all of these."""
    values: dict[str, list[Any]] = {}
    for settings in configs:
        for key, value in settings.items():
            values.setdefault(key, []).append(value)
    shared = {}
    for key, column in values.items():
        if len(column) > 1 and len({str(value) for value in column}) == 1:
            shared[key] = column[0]
    return shared


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={setting_text(key, value, 4)}" for key, value in settings.items())


def _filled(text: str, *, indent: str, hanging: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=" " * hanging, break_on_hyphens=False)


OVERHEAD = 24.0  # seconds, on two cores, before the first task and after the last: libraries, Ray, model and report
TIMED_STEPS = 4  # steps of pretraining, after a first one
MEASURED_SECONDS = 5.0  # datasets that are left after this time get the speed of the last one, by number of classes


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds that a worker needs on one dataset."""

    pretraining_step: float
    method_start: float  # setting a method up for a dataset
    adapted_image: float  # adaptation to an image, with one step
    view: float  # drawing a view and sending it through the image tower

    def with_classes(self, ratio: float) -> Speed:
        """Return the speed on a dataset with more classes: texts, unlike views, take longer."""
        return Speed(ratio * self.pretraining_step, ratio * self.method_start, ratio * self.adapted_image, self.view)

    def seconds(self, task: Task) -> float:
        """Return the seconds of a task without image features."""
        if isinstance(task, PretrainTask):
            return task.config.fpp.steps * self.pretraining_step
        if not catalogue.method(task.config.method).learns:
            return 0.0
        return self.method_start + (task.stop - task.start) * effort(task.config) * self.adapted_image


def dry_run(spaces: Sequence[Space], records: Sequence[TrialRecord] = (), done: Container[str] = ()) -> str:
    """Return configs, tasks and cost of a sweep, or of several that share their results.

    Of a sweep that is resumed, `records` are those of its folder, and `done` the keys of the tasks that have a result.
    """
    with terminable(), tempfile.TemporaryDirectory() as cache:
        stage(f"loading {spaces[0].work.model}")
        worker = _open_worker(spaces[0], cache)
        checked = [check_plan(space, worker) for space in spaces]
        keys = _keys(worker.model_info(), checked)
        speeds = measure(worker, spaces[0].start(), list(keys.datasets.values()))
    workers = spaces[0].work.workers or _workers_that_fit(spaces[0])
    sweeps = []
    lines: list[str] = []
    notes: dict[str, None] = {}
    for space, (plan, validation) in zip(spaces, checked, strict=True):
        configs = expected_configs(space, records)
        sweeps.append(ExpectedSweep(space, plan, configs))
        lines += config_lines(space, configs)
        notes.update(dict.fromkeys([*validation.notes, *space.notes()]))
    lines += [f"note: {note}" for note in notes]
    return "\n".join([*lines, "", *cost_lines(sweeps, speeds, keys, workers, done)])


def _keys(model: ModelInfo, checked: Iterable[tuple[Plan, Validation]]) -> TaskKeys:
    datasets: dict[tuple[str, str], DatasetInfo] = {}
    prompts: dict[str, str] = {}
    for plan, validation in checked:
        datasets |= plan.datasets_by_key()
        prompts |= validation.prompts
    return TaskKeys(model, datasets, prompts)


def _open_worker(space: Space, cache: str) -> Worker:
    """Open a worker whose cache has no features, so that the time for computing them is measured, not for reading."""
    gpus, machine_share = 0.0, 1.0
    if _uses_gpus(space):
        gpus = space.work.gpus_per_worker or 1.0
        machine_share = min(1.0, gpus / torch.cuda.device_count())
    return Worker(replace(worker_spec(space, gpus), cache=cache, machine_share=machine_share))


def _uses_gpus(space: Space) -> bool:
    return torch.cuda.is_available() and space.work.gpus_per_worker != 0


def _workers_that_fit(space: Space) -> int:
    """Return how many workers this machine holds."""
    work = space.work
    machine = {"CPU": float(cores())}
    gpus = 0.0
    if _uses_gpus(space):
        machine["GPU"] = float(torch.cuda.device_count())
        gpus = work.gpus_per_worker or 1.0
    needs = WorkerNeeds(workers=None, cpus=work.cpus_per_worker, gpus=gpus, env={})
    return needs.workers_with_room([machine])


# ------------------------------------------------------------ measured speed


def measure(worker: Worker, start: TrialConfig, datasets: Sequence[DatasetInfo]) -> dict[str, Speed]:
    """Return the speed on each dataset: measured on those with the fewest classes, until that has taken long enough."""
    speeds: dict[str, Speed] = {}
    began = perf_counter()
    measured = None
    for dataset in sorted(datasets, key=lambda dataset: len(dataset.classes)):
        if dataset.name in speeds:
            continue
        if measured is None or perf_counter() - began < MEASURED_SECONDS:
            stage(f"measuring pretraining, adaptation and image features on {dataset.name}")
            measured = dataset
            speeds[dataset.name] = _measure(worker, start, dataset)
        else:
            ratio = len(dataset.classes) / len(measured.classes)
            speeds[dataset.name] = speeds[measured.name].with_classes(ratio)
    return speeds


def _measure(worker: Worker, start: TrialConfig, dataset: DatasetInfo) -> Speed:
    """Time a few tasks on a dataset. The first one of each kind includes what a worker does once."""
    one_step = _pretrain(worker, start, dataset, 1)
    if one_step < MEASURED_SECONDS:
        one_step = _pretrain(worker, start, dataset, 1)
    pretraining_step = one_step
    if one_step < MEASURED_SECONDS / TIMED_STEPS:
        pretraining_step = (_pretrain(worker, start, dataset, 1 + TIMED_STEPS) - one_step) / TIMED_STEPS
    method = start.method
    if not catalogue.method(method).learns:
        method = catalogue.TPT
    config = replace(start, method=method, prompt=start.anchor_prompt)
    views = views_for(config, dataset.group).count
    images = min(dataset.size, images_per_batch(views))
    task = EvalTask(config=config, dataset=dataset.name, split=dataset.split, seed=0, start=0, stop=images)
    first = worker.run(task, (), dataset.name)
    if first.worker_seconds < MEASURED_SECONDS / TIMED_STEPS:
        task = replace(task, stop=min(dataset.size, BATCH))
    second = worker.run(replace(task, seed=1), (), dataset.name)  # the same adapter, and views that are not cached
    adapted_image = second.seconds["adapt"] / task.stop
    return Speed(
        pretraining_step=max(0.0, pretraining_step),
        method_start=max(0.0, first.seconds["adapt"] - images * adapted_image),
        adapted_image=adapted_image / effort(config),
        view=second.seconds["features"] / (task.stop * views),
    )


def _pretrain(worker: Worker, start: TrialConfig, dataset: DatasetInfo, steps: int) -> float:
    config = replace(start, prompt="fpp", fpp=replace(start.fpp, steps=steps))
    return worker.run(PretrainTask(config=config, dataset=dataset.name, seed=0), ()).seconds["pretrain"]


# ------------------------------------------------------------ lines


def cost_lines(
    sweeps: Sequence[ExpectedSweep],
    speeds: Mapping[str, Speed],
    keys: TaskKeys,
    workers: int,
    done: Container[str] = (),
) -> Iterator[str]:
    """Yield the number of tasks, the time of one worker, and about how long the sweeps take.

    Tasks with a key in `done` have a result already.
    """
    requested: list[Task] = []
    for sweep in sweeps:
        for tasks in sweep.tasks().values():
            requested += tasks
    distinct = {keys.of(task): task for task in requested}  # trials share tasks with the same result
    left = [task for key, task in distinct.items() if key not in done]
    measured = [task for key, task in distinct.items() if key in done]
    evaluations = [task for task in left if isinstance(task, EvalTask)]
    images = sum(task.stop - task.start for task in evaluations)
    pretrainings = len(left) - len(evaluations)
    yield f"tasks: {pretrainings} pretrainings, {len(evaluations)} evaluations of shards, {images} images"
    if measured:
        yield f"done already: {plural(len(measured), 'task')}"
    with_features = {_shard(task, keys) for task in measured if isinstance(task, EvalTask)}
    by_stage = _seconds_by_stage(left, speeds, keys, with_features)
    work = math.fsum(by_stage.values())
    stages = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in by_stage.items())
    yield f"worker time, measured here: {stages}"
    total = OVERHEAD + work / workers
    yield f"estimate: about {format_seconds(total)} with {plural(workers, 'worker')}, within 30 %"
    budget = sweeps[0].space.search.wall_clock
    if budget is not None and budget < total:
        yield f"the budget of {format_seconds(budget)} may end it earlier"


class Shard(NamedTuple):
    """One shard of a split, and everything that decides the image features of a task on it."""

    dataset: str
    split: str
    seed: int
    start: int
    views: ViewConfig


def _shard(task: EvalTask, keys: TaskKeys) -> Shard:
    views = views_for(task.config, keys.datasets[task.dataset, task.split].group)
    return Shard(task.dataset, task.split, task.seed, task.start, views)


def _seconds_by_stage(
    tasks: Iterable[Task], speeds: Mapping[str, Speed], keys: TaskKeys, with_features: set[Shard]
) -> dict[str, float]:
    """Return the seconds of a worker for tasks, by stage; features of a shard are computed once."""
    seconds = {"pretraining": 0.0, "adaptation": 0.0, "image features": 0.0}
    for task in tasks:
        speed = speeds[task.dataset]
        if isinstance(task, PretrainTask):
            seconds["pretraining"] += speed.seconds(task)
            continue
        seconds["adaptation"] += speed.seconds(task)
        shard = _shard(task, keys)
        if shard not in with_features:
            with_features.add(shard)
            seconds["image features"] += (task.stop - task.start) * shard.views.count * speed.view
    return seconds


def format_seconds(seconds: float) -> str:
    """
    >>> [format_seconds(seconds) for seconds in (89.4, 90, 5399, 5400)]
    ['89 s', '1.5 min', '90.0 min', '1.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
