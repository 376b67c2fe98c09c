"""Check what can be checked on this machine before Ray and the model take up to minutes to start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.core.datasets import custom_datasets, list_split, require_known, require_possible_split, resolve
from fpp_sweep.core.models.names import require_model
from fpp_sweep.space.space import Space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.config import is_template_file, require_prompt, require_templates
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.notify import command_words
from fpp_sweep.sweep.plan import require_measured, sources_of, splits_of_space
from fpp_sweep.sweep.worker_spec import require_kind_of_device, require_precisions, require_writable_cache
from fpp_sweep.tracking.stores import check_address, uri_of_new_sweep
from fpp_sweep.trial.templates import texts_by_class
from fpp_sweep.workers.session import require_reachable


def check_before_start(space: Space, options: Options) -> None:
    """Raise InputError if the cluster cannot be reached, or something that the space names cannot be used.

    On a cluster only the first worker can tell about files: it may see others than the driver.
    """
    if space.search.notify:
        command_words(space.search.notify)
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
    _require_texts_of_classes(space, datasets)
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


def _require_texts_of_classes(space: Space, datasets: Sequence[str]) -> None:
    """Raise InputError if a template file lacks a class; only such a file is worth listing the images of a split."""
    files = [source.templates for source in sorted(sources_of(space)) if is_template_file(source.templates)]
    if not files:
        return
    custom = custom_datasets(space.work.datasets, space.work.dataset_file)
    data_root = Path(space.work.data_root) if space.work.data_root else None
    for name in datasets:
        name, spec = resolve(name, custom)
        classes = list_split(name, spec, space.search.split, data_root).classes
        for file in files:
            texts_by_class(file, name, classes)
