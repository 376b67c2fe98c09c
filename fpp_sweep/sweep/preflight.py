"""What is checked and opened before a sweep's first trial: its folder, Ray, the first worker, and all that it names."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fpp_sweep.checks.provenance import git_state, plain, versions
from fpp_sweep.core.images.cache import default_cache
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.steering import begun, budget_in_force
from fpp_sweep.search.finalists import final_plan
from fpp_sweep.search.racing import require_blockwise, rung_ends
from fpp_sweep.space.params import Param
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import STEERED, Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, require_prompt
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import note, plural, stage
from fpp_sweep.spec.process import cores, terminable
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, Precision, Validation, WorkerSpec
from fpp_sweep.sweep.api import Options, plugin_digests, require_same
from fpp_sweep.sweep.notify import words_of
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.trial import Plan
from fpp_sweep.workers.session import gpus_here, session

if TYPE_CHECKING:
    from fpp_sweep.workers.actors import Pool

STARTS = ("prompt", "anchor_prompt", "deep_prompts")  # the settings that say where adaptation starts
SHARED = ("OMP_WAIT_POLICY", "FPP_SWEEP_CACHE")  # environment that workers on other machines need too
LOOK = 60.0  # seconds that a node has to tell what it is like


class Inspector(Protocol):
    """What can describe datasets and check prompts: a worker, or the pool of them."""

    def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo]: ...

    def check(
        self, methods: Sequence[str], prompts: Sequence[tuple[str, str]], datasets: Sequence[DatasetInfo]
    ) -> Validation: ...


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a run, the first of which is ready; sweeps on the same model may follow each other on them."""

    pool: Pool
    model: ModelInfo
    gpus_per_worker: float


@dataclass(frozen=True, slots=True)
class Opened:
    """All that a search needs, opened and checked."""

    pool: Pool
    plan: Plan
    final_plan: Plan | None  # of the final stage and the test split
    gpus_per_worker: float


def known_info(space: Space, options: Options, folder: SweepFolder) -> SweepInfo:
    """The record of a sweep that goes on, once all that was damaged in its folder is made whole."""
    info, problem = folder.restored_info()
    require_same(info, space, options, folder)
    mended(folder, info, space, problem)
    _require_stopped(folder, options.finish)
    return info


def going_on(space: Space, known: SweepInfo, folder: SweepFolder) -> Space:
    """The space with all that was asked for since the sweep began; what is new in it is a command like any other."""
    first = begun(folder, known)
    tried = [values for _, values in first.first_points()]
    tried += [dict(one.values) for one in folder.commands() if one.kind == "add"]
    for values in (values for _, values in space.first_points() if values not in tried):
        folder.ask("add", values)
    in_force = budget_in_force(known, space.search, folder.commands())
    asked = {key: value for key in STEERED if (value := getattr(space.search, key)) != getattr(first.search, key)}
    said = [one.values for one in folder.commands() if one.kind == "budget"]  # by the same command, some time ago
    asked = {
        key: value
        for key, value in asked.items()
        if value != getattr(in_force, key) and not any(key in one and one[key] == value for one in said)
    }
    if asked:
        folder.ask("budget", asked)
    return replace(space, points=first.points, search=replace(in_force, **asked))


def _require_stopped(folder: SweepFolder, names: Sequence[str]) -> None:
    """Only trials that lost a race can be finished."""
    stopped = [record.name for record in folder.trials() if record.state == "stopped" and record.estimate is not None]
    for name in names:
        if name not in stopped:
            raise InputError(
                f"--continue-trials {name}: no trial that lost a race; those are {', '.join(stopped) or 'none'}"
            )


def mended(folder: SweepFolder, info: SweepInfo, space: Space, problem: str | None) -> None:
    """Make the folder of a sweep whole, and tell what was wrong."""
    stage("reading what is done")
    from fpp_sweep.search.repair import mend  # loads Optuna, which takes a second

    for told in (*([problem] if problem else []), *mend(folder, info, space)):
        note(told)


@contextmanager
def removed_if_refused(folder: SweepFolder, known: SweepInfo | None) -> Iterator[None]:
    """Where bad input ends a sweep before its first trial: remove a new folder, restore a resumed one's record."""
    try:
        yield
    except InputError:
        if known is None and not folder.trial_files():
            for path in (folder.info_file, folder.info_copy):
                path.unlink(missing_ok=True)
            if not folder.tasks.exists():  # the user may have put another sweep's results there
                shutil.rmtree(folder.path, ignore_errors=True)
        elif known is not None:
            folder.write_info(known)
        raise


def require_named(space: Space, options: Options) -> None:
    """What a space names and can be looked for here, before Ray and the model take minutes to start.

    A cluster's workers may see other files than the driver.
    """
    from fpp_sweep.core.datasets import require_known  # loads numpy

    work = space.work
    try:
        words_of(space.search.notify or "true")
    except InputError as error:
        note(error)
    if not options.on_cluster:
        names = require_known(work.datasets, work.data_root, work.dataset_file)
        _require_measured(space, names)
        for prompt, _ in sorted(_prompts(space)):
            require_prompt(prompt)
        if (asked := precisions(space)) != ["float32"]:
            from fpp_sweep.core.compute.precision import require_able
            from fpp_sweep.core.models.clip import choose_device  # loads torch

            device = "cpu" if work.gpus_per_worker == 0 else choose_device(work.device)
            for precision in asked if device == "cpu" else ():  # the first worker asks a GPU
                require_able(precision, device)


@contextmanager
def open_workers(
    space: Space, options: Options, tasks: Path, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Workers]:
    """Start Ray and a first worker; `tasks` is where results are kept, `meanwhile` is called while it starts."""
    work = space.work
    require_kind_of_device(work)
    if not options.on_cluster and work.cpus_per_worker > cores():
        told = f"work.cpus_per_worker={work.cpus_per_worker:g}: this machine has {cores()} CPUs"
        raise InputError(f"{told}; ask for no more than that")
    stage(f"joining the Ray cluster at {options.address}" if options.on_cluster else "starting Ray")
    cpus = max(cores(), math.ceil((work.workers or 1) * work.cpus_per_worker))
    with (
        session(options.address, cpus=cpus, verbose=options.verbose),
        terminable(),  # again: ray.init has replaced the handler
    ):
        # the pool imports Ray, which `session` must have imported first, with its environment set
        from fpp_sweep.workers.actors import WorkerNeeds, require_room, start_pool

        gpus = gpus_of_a_worker(work)
        env = environment() if options.on_cluster else {}
        needs = WorkerNeeds(workers=work.workers, cpus=work.cpus_per_worker, gpus=gpus, env=env)
        # with both numbers given, a cluster may start machines for them
        may_grow = options.on_cluster and None not in (work.workers, work.gpus_per_worker)
        if lacking := require_room(needs, may_grow=may_grow):
            note(lacking)
        meanwhile()
        spec = replace(worker_spec(space, gpus), plugins=options.plugins)
        if options.on_cluster:
            look_at_nodes(spec, env)
        shared = None if options.on_cluster or options.plugins else shared_results(space)
        pool = start_pool(spec, needs, tasks, attempts=work.attempts, timeout=work.task_timeout, shared=shared)
        stage(f"loading {work.model} on {'a first worker' if work.workers is None else plural(work.workers, 'worker')}")
        try:
            model = pool.open()
        except TaskFailed as error:
            raise InputError(error.reason) from error
        yield Workers(pool, model, gpus)


def require_kind_of_device(work: Work) -> None:
    """Raise InputError for a single device, such as cuda:1: Ray chooses the devices of its workers."""
    if work.device not in ("auto", "cpu", "cuda"):
        problem = f"{work.device} is one device, but workers get theirs from Ray"
        raise InputError(f"{problem}; give auto, cpu or cuda, or set CUDA_VISIBLE_DEVICES", "work.device")


def gpus_of_a_worker(work: Work) -> float:
    """Return how many GPUs each worker of a Ray session gets."""
    if work.device == "cpu":
        return 0.0
    if work.gpus_per_worker is not None:
        return work.gpus_per_worker
    return 1.0 if work.device == "cuda" or gpus_here() else 0.0


def shared_results(space: Space) -> Path | None:
    """Where results of all sweeps of this machine are; none where it is searched for what work costs."""
    metrics = [goal.metric for goals in (space.objectives, space.constraints) for goal in goals]
    timed = not all(catalogue.metric(metric).of_dataset for metric in metrics)
    root = Path(space.work.cache) if space.work.cache else default_cache()
    # a stream that left out an image goes on from another state, and no shard after it tells
    cut = space.work.on_bad_image == "skip" and any(catalogue.method(name).stateful for name in space.methods())
    return root.absolute() / "tasks" if space.work.reuse_results and not timed and not cut else None


def environment() -> dict[str, str]:
    return {key: os.environ[key] for key in SHARED if key in os.environ}


def look_at_nodes(spec: WorkerSpec, env: Mapping[str, str]) -> None:
    """Refuse nodes whose results would differ or fail, and note what else `doctor` would find in seconds."""
    from fpp_sweep.checks.findings import SPOILS, judge
    from fpp_sweep.checks.probes import look
    from fpp_sweep.workers.nodes import on_every_node

    key = secrets.token_hex()
    nodes = on_every_node(look, spec, key, env=env, seconds=LOOK)
    for finding in judge({"driver": look(spec, key) | {"clock": 0.0}, **nodes}):
        told = f"{finding.node}: {finding.what} {finding.found}; {finding.remedy}"
        if finding.state == "wrong" and finding.what in SPOILS:
            raise InputError(told)
        if finding.state != "ok":
            note(told)


def open_sweep(space: Space, folder: SweepFolder, workers: Workers) -> Opened:
    """Check that all that the space names exists and has not changed, and tell the workers what they work on."""
    pool, model = workers.pool, workers.model
    stage("looking at datasets and prompts")
    try:
        plan = make_plan(space, pool)
        final = final_plan(plan, space, pool.describe)
        checks = check(space, pool, plan)
    except TaskFailed as error:
        raise InputError(error.reason) from error
    for line in (*checks.notes, *space.left_out(), *changed_images(folder.info(), space, plan)):
        note(line)
    datasets = plan.known()
    if final is not None:
        datasets.update(final.known())
    pool.begin(TaskKeys(model, datasets, checks.prompts))
    folder.write_info(with_facts(folder.info(), space, model, plan, checks))
    return Opened(pool, plan, final, workers.gpus_per_worker)


def worker_spec(space: Space, gpus: float) -> WorkerSpec:
    """What a worker opens for a space."""
    work = space.work
    return WorkerSpec(
        model=work.model,
        data_root=work.data_root,
        dataset_file=work.dataset_file,
        limit=work.limit,
        cache=work.cache,
        exact_cache=work.float32_cache,
        on_bad_image=work.on_bad_image,
        loaders=work.loaders,
        device="cuda" if gpus else "cpu",
        threads=work.threads or max(1, int(work.cpus_per_worker)),
        share=min(1.0, gpus or work.cpus_per_worker / cores()),
        precisions=tuple(precisions(space)),
        compile=work.compile,
        folder=os.getcwd(),
    )


def precisions(space: Space) -> list[Precision]:
    """What trials and baselines may ask for."""
    configs = [*space.baselines().values(), space.start()]
    searched = (choice for param in space.searched() if param.key == "precision" for choice in param.choices)
    return sorted({*(config.precision for config in configs), *searched})


def make_plan(space: Space, models: Inspector) -> Plan:
    """The datasets of the space as they are where workers run; a missing one is an InputError."""
    split = space.search.split
    splits = [split] if split == "test" or space.search.evaluate_only else [split, "test"]
    datasets = {split: tuple(models.describe(space.work.datasets, split)) for split in splits}
    names = [facts.name for facts in datasets[split]]
    _require_measured(space, names)
    work, race = space.work, space.search.race
    ends = {}
    if race:
        require_blockwise(space.objectives, space.constraints)
        ends = rung_ends(race, datasets[split])
    return Plan(datasets=datasets, seeds=work.seeds, shards=work.shards, columns=space.columns(), rungs=ends)


def _require_measured(space: Space, names: Sequence[str]) -> None:
    """Metrics of a dataset are of one of these."""
    metrics = [goal.metric for goals in (space.objectives, space.constraints) for goal in goals]
    for metric in metrics:
        name = metric.partition("/")[2]
        if name and name not in names:
            raise unknown(f"dataset in metric {metric}:", name, names)


def check(space: Space, models: Inspector, plan: Plan) -> Validation:
    """Fit every method and prompt that trials may use to the model and the classes."""
    baselines = list(space.baselines().values())
    methods = {config.method for config in [*baselines, space.start()]}
    methods.update(*(param.choices for param in space.searched() if param.key == "method"))
    prompts = _prompts(space)
    facts = [facts for datasets in plan.datasets.values() for facts in datasets]
    return models.check(sorted(methods), sorted(prompts), facts)


def _prompts(space: Space) -> set[tuple[str, str]]:
    """What trials may start from, with how prompts of deeper layers are used."""
    return {(config.source, config.deep_prompts) for config in [*space.baselines().values(), *_starts(space)]}


def _starts(space: Space) -> list[TrialConfig]:
    """Configs that start from every prompt, and from a MaPLe checkpoint in every way, that trials may start from."""
    points: list[dict[str, Any]] = space.grid_points() if space.grid else [{}]
    if not space.grid:
        for param in space.params:  # parents first
            if param.key in STARTS:
                points = [{**point, **more} for point in points for more in _values(param, point)]
    return [space.resolve({key: point[key] for key in STARTS if key in point}) for point in points]


def _values(param: Param, point: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a point may go on with; a parameter may be absent where it depends on settings that the point leaves out."""
    known = {key: allowed for key, allowed in param.when.items() if key in STARTS}
    if any(point.get(key) not in allowed for key, allowed in known.items()):
        return [{}]
    return [*({param.key: choice} for choice in param.choices), *([{}] if len(known) < len(param.when) else [])]


def info_at_start(known: SweepInfo | None, space: Space, options: Options, folder: SweepFolder, uri: str) -> SweepInfo:
    """The sweep's record, as it begins or goes on."""
    if known is not None:
        first = known.begun or (known.space if plain(space) != known.space else {})
        return replace(known, state="running", finished=None, tracking_uri=uri, space=plain(space), begun=first)
    commit, dirty = git_state()
    return SweepInfo(
        name=folder.path.name,
        created=time.time(),
        state="running",
        space=plain(space),
        objectives=space.objectives,
        search_split=space.search.split,
        tracking_uri=uri,
        command=options.command,
        group=options.group,
        plugins=plugin_digests(options),
        versions=versions(),
        git_commit=commit,
        git_dirty=dirty,
    )


def with_facts(info: SweepInfo, space: Space, model: ModelInfo, plan: Plan, checked: Validation) -> SweepInfo:
    """What is known once a worker has opened model, datasets and prompts; it must be what it was."""
    now = replace(
        info,
        model=model.name,
        model_digest=model.digest,
        embedding_scale=model.embedding_scale,
        device=model.device,
        datasets={dataset.name: dataset.digest for dataset in plan.datasets[space.search.split]},
        images=_images(space, plan),
        prompts=dict(sorted(checked.prompts.items())),
    )
    if not info.model:  # the first driver, or one that was ended before this
        return now
    for before, after, what in (
        (info.model_digest, now.model_digest, f"model {model.name} has other weights"),
        (info.datasets, now.datasets, "its data differ"),
        (info.prompts, now.prompts, "a prompt file differs"),
    ):
        if before != after:
            raise InputError(f"{info.name} cannot be resumed: {what} than when it began; begin a new sweep instead")
    return now


def changed_images(info: SweepInfo, space: Space, plan: Plan) -> list[str]:
    """A note where image files have another size or time than when the sweep began: finished trials saw the others."""
    if not info.model or info.images == _images(space, plan):
        return []
    return ["image files have changed (size or time) since the sweep began; what is left is computed from those of now"]


def _images(space: Space, plan: Plan) -> dict[str, str]:
    return {dataset.name: dataset.images for dataset in plan.datasets[space.search.split]}
