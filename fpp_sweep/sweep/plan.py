"""The plan of a sweep: its datasets, seeds and shards; what is checked before Ray starts, and what a worker checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fpp_sweep.core.datasets import custom_datasets, list_split, require_known, require_possible_split, resolve
from fpp_sweep.core.models.names import require_model
from fpp_sweep.search.finalists import later_plans
from fpp_sweep.space.space import Space
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.config import TrialConfig, require_prompt, require_templates
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.specs import DatasetInfo, TextSource, Validation
from fpp_sweep.statistics.posthoc import CONFORMAL_SETS, require_images
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.worker_pool import (
    metrics_of_space,
    require_kind_of_device,
    require_precisions,
    require_writable_cache,
)
from fpp_sweep.tracking.stores import check_address, uri_of_new_sweep
from fpp_sweep.trial.posthoc import FITTED_SPLIT, is_fitted, needs_validation
from fpp_sweep.trial.trial import Plan
from fpp_sweep.workers.session import require_reachable

# the settings that say where adaptation starts; some methods start from templates
START_SETTINGS = ("prompt", "anchor_prompt", "method", "adapt.templates")
# the settings of the rule for lambda, which a fixed lambda replaces on ImageNet's shifts
LAMBDA_RULE = ("fpp.gamma1", "fpp.gamma2", "fpp.lambda_classes")


class Inspector(Protocol):
    """Worker, or pool of workers, that describes datasets and checks prompts."""

    def describe(self, names: Sequence[str], split: str) -> list[DatasetInfo]: ...

    def check(self, prompts: Sequence[TextSource], datasets: Sequence[DatasetInfo]) -> Validation: ...


def make_plan(space: Space, inspector: Inspector) -> Plan:
    """Return the plan for the datasets as the workers have them; raise InputError if a dataset is missing."""
    datasets = {}
    for split in splits_of_space(space):
        datasets[split] = tuple(inspector.describe(space.work.datasets, split))
    searched = datasets[space.search.split]
    require_measured(space, [dataset.name for dataset in searched])
    plan = Plan(
        datasets=datasets,
        seeds=space.work.seeds,
        shards=space.work.shards,
        columns=space.columns(),
        posthoc=space.work.posthoc,
    )
    _require_images_of_fits(plan)
    return plan


def splits_of_space(space: Space) -> list[str]:
    """Return the splits that a sweep uses: the one that it searches, test, and that of its post-hoc maps."""
    splits: list[str] = [space.search.split]
    if space.search.split != "test" and not space.search.evaluate_only:
        splits.append("test")
    conformal = [column for column in space.columns() if column in catalogue.CONFORMAL]
    if needs_validation([*space.work.posthoc, *conformal], splits[-1]) and FITTED_SPLIT not in splits:
        splits.append(FITTED_SPLIT)
    return splits


def _require_images_of_fits(plan: Plan) -> None:
    """Raise InputError unless there are enough images for the fits of post-hoc maps and of conformal thresholds."""
    split = _fitted_split(plan.datasets)
    if any(is_fitted(name) for name in plan.posthoc):
        for dataset in plan.datasets[split]:
            require_images(f"{dataset.name}, split {split}", dataset.size)
    if "temperature_transfer" in plan.posthoc and len(plan.datasets[split]) < 2:
        raise InputError("temperature_transfer needs the logits of another dataset; add one", "work.posthoc")
    if plan.conformal:
        for dataset in plan.datasets[split]:
            require_images(f"{dataset.name}, split {split}", dataset.size, CONFORMAL_SETS)


def _fitted_split(datasets: Mapping[str, Sequence[DatasetInfo]]) -> str:
    """Return the split that maps and thresholds are fitted on: validation, or the only one."""
    if FITTED_SPLIT in datasets:
        return FITTED_SPLIT
    (split,) = datasets
    return split


def require_measured(space: Space, datasets: Sequence[str]) -> None:
    """Raise InputError if a metric such as `ece/dtd` names a dataset that the sweep does not run on."""
    for metric in [*metrics_of_space(space), *space.search.margin]:
        dataset = catalogue.parts_of(metric).dataset
        if dataset and dataset not in datasets:
            raise unknown(f"dataset in metric {metric}:", dataset, datasets)


def check_plan(space: Space, inspector: Inspector) -> tuple[Plan, Validation]:
    """Return the plan of all stages, and the validation of its texts; raise InputError for all that cannot be used."""
    plan = make_plan(space, inspector)
    validation = validate(space, inspector, plan)
    return replace(plan, later=later_plans(plan, space, inspector.describe)), validation


def validate(space: Space, inspector: Inspector, plan: Plan) -> Validation:
    """Check every prompt that trials may use against the model and the class names.

    A note names searched settings that change nothing on some datasets.
    """
    datasets = list(plan.datasets_by_key().values())
    checked = inspector.check(sorted(sources_of(space)), datasets)
    return replace(checked, notes=(*checked.notes, *_fixed_lambda_notes(space, datasets)))


def _fixed_lambda_notes(space: Space, datasets: Iterable[DatasetInfo]) -> Iterator[str]:
    """Yield a note if settings of the rule for lambda are searched on ImageNet's shifts, where lambda is fixed."""
    searched = [param.key for param in space.searched()]
    without_effect = [key for key in searched if key in LAMBDA_RULE]
    fixed_lambda = space.start().fpp.lambda_shifts
    shifts = sorted({dataset.name for dataset in datasets if dataset.group == "shifts"})
    if without_effect and shifts and fixed_lambda is not None and "fpp.lambda_shifts" not in searched:
        yield (
            f"{', '.join(without_effect)}: no effect on {', '.join(shifts)}, where lambda is {fixed_lambda:g}; search "
            "fpp.lambda_shifts, or set fpp.lambda_shifts=none"
        )


def sources_of(space: Space) -> set[TextSource]:
    """Return the prompts and templates that trials and baselines may start from."""
    sources = set()
    for config in [*space.baselines().values(), *_possible_starts(space)]:
        if config.templates:
            sources.add(TextSource(prompt="", templates=config.templates))
        else:
            sources.add(TextSource(prompt=config.source))
    return sources


def _possible_starts(space: Space) -> list[TrialConfig]:
    """Return a config for each combination of the settings that say where adaptation starts."""
    points: list[Mapping[str, Any]] = [{}]
    if space.grid:
        points = list(space.grid_points())
    else:
        for param in space.params:
            if param.key in START_SETTINGS:
                without = points if param.when else []  # its conditions may fail
                points = [{**point, param.key: choice} for point in points for choice in param.choices] + without
    starts = []
    for point in points:
        start = {key: value for key, value in point.items() if key in START_SETTINGS}
        starts.append(space.resolve(start))
    return starts


def check_before_start(space: Space, options: Options) -> None:
    """Raise InputError if the cluster cannot be reached, or something that the space names cannot be used.

    On a cluster only the first worker can tell about files: it may see others than the driver.
    """
    if options.address is not None and options.on_cluster:
        require_reachable(options.address)
        return
    require_model(space.work.model)
    datasets = require_known(space.work.datasets, space.work.data_root, space.work.dataset_file)
    require_measured(space, datasets)
    _require_splits(space, datasets)
    for source in sorted(sources_of(space)):
        require_prompt(source.prompt)
        require_templates(source.templates)
    require_precisions(space)
    require_writable_cache(space)


def check_before_ray_start(space: Space, options: Options) -> None:
    """Raise InputError if something cannot be used, or names a device that workers on Ray cannot choose."""
    require_kind_of_device(space.work)
    if not options.resume:
        check_address(uri_of_new_sweep(options.tracking_uri or space.work.tracking_uri))  # before it has a folder
    check_before_start(space, options)


def check_before_local_start(space: Space, options: Options) -> None:
    """Load plugins; raise InputError if something cannot be used, or needs workers on Ray."""
    plugins.load(options.plugins)
    space.require_no_workers()
    check_before_start(space, options)


def _require_splits(space: Space, datasets: Sequence[str]) -> None:
    """Raise InputError if a dataset never has a split that is used, or if the user's own images lack one.

    Listing the files of all datasets could take minutes.
    """
    custom = custom_datasets(space.work.datasets, space.work.dataset_file)
    for name in datasets:
        for split in splits_of_space(space):
            if name in custom:
                list_split(name, custom[name], split, None)
            else:
                require_possible_split(*resolve(name, custom), split)
