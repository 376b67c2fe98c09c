"""A sweep's own record (sweep.json): at the start, at a resume, and once a worker has opened model and data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fpp_sweep.checks.versions import git_state, versions
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.search.question import asked_now
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, Validation
from fpp_sweep.sweep.api import Options

THEN = ", then "  # between the software of two drivers


def new_info(space: Space, options: Options, folder: SweepFolder, tracking_uri: str) -> SweepInfo:
    """Return the record of a sweep that starts now."""
    info = SweepInfo(
        name=folder.path.name,
        created=time.time(),
        state="interrupted",  # until its inputs are checked
        space=space.plain(),
        objectives=space.objectives,
        search_split=space.search.split,
        tracking_uri=tracking_uri,
        command=options.command,
        address=options.address or "",
        group=options.group,
        plugins=options.plugin_digests(),
        plugin_files=options.plugin_files(),
        engine=ENGINE_NAME,
    )
    return _with_software(info)


def resumed_info(
    info: SweepInfo, space: Space, tracking_uri: str, options: Options, answers: Sequence[str]
) -> SweepInfo:
    """Return the record of a sweep that is resumed now, with the space that is asked."""
    return replace(
        _with_software(info),
        state="interrupted",
        finished=None,
        end_reason="",
        answers=answers,
        tracking_uri=tracking_uri,
        address=options.address or "",
        plugins={**info.plugins, **options.plugin_digests()},
        plugin_files={**info.plugin_files, **options.plugin_files()},
        **asked_now(info, space),
    )


def _with_software(info: SweepInfo) -> SweepInfo:
    """Return the record with the software of this driver, behind that of earlier drivers if it differs."""
    by_name = dict(info.versions)
    for name, version in versions().items():
        by_name[name] = _then(by_name.get(name, ""), version)
    commit, has_changes = git_state()
    git_commit = _then(info.git_commit, commit)
    return replace(info, versions=by_name, git_commit=git_commit, git_dirty=info.git_dirty or has_changes)


def _then(before: str, now: str) -> str:
    """Return what a text was before, and what it is now if that differs.

    >>> _then("", "2.9"), _then("2.9", "2.9"), _then("2.9", "2.10"), _then("2.9, then 2.10", "2.10")
    ('2.9', '2.9', '2.9, then 2.10', '2.9, then 2.10')
    """
    if not before:
        return now
    if not now or before.split(THEN)[-1] == now:
        return before
    return f"{before}{THEN}{now}"


def software_changes(before: SweepInfo, now: SweepInfo) -> list[str]:
    """Return a note if this driver has other software than the one before it."""
    changes = []
    for name, text in now.versions.items():
        if text != before.versions.get(name):
            changes.append(f"{name} {text}")
    if now.git_commit != before.git_commit:
        changes.append(f"commit {now.git_commit}")
    if not changes:
        return []
    return [f"software has changed since the sweep began: {'; '.join(changes)}; its results are of all these"]


def with_inputs(
    info: SweepInfo, space: Space, model: ModelInfo, datasets: Iterable[DatasetInfo], validation: Validation
) -> SweepInfo:
    """Return the record with the digests of model, prompts, and datasets of all splits.

    Raise InputError if the sweep is resumed and one of them has changed.
    """
    digests: dict[str, str] = {}
    images: dict[str, str] = {}
    unsearched_digests = dict(info.unsearched_datasets)
    unsearched_images = dict(info.unsearched_images)
    for dataset in datasets:
        if dataset.split == space.search.split:
            digests[dataset.name] = dataset.digest
            images[dataset.name] = dataset.images
        else:
            name = f"{dataset.name} {dataset.split}"
            unsearched_digests[name] = dataset.digest
            unsearched_images[name] = dataset.images
    opened = replace(
        info,
        state="running",
        model=model.name,
        model_digest=model.digest,
        embedding_scale=model.embedding_scale,
        device=model.device,
        datasets=digests,
        images=images,
        unsearched_datasets=unsearched_digests,
        unsearched_images=unsearched_images,
        prompts=dict(sorted({**info.prompts, **validation.prompts}.items())),
    )
    if info.model:  # an earlier driver has opened them
        _require_unchanged(info, opened)
    return opened


def _require_unchanged(before: SweepInfo, now: SweepInfo) -> None:
    """Raise InputError if the model, the data or the prompts differ from those that the sweep began with."""
    problem = _first_change(before, now)
    if problem is not None:
        raise InputError(f"{before.name} cannot be resumed: {problem} than when it began; begin a new sweep instead")


def _first_change(before: SweepInfo, now: SweepInfo) -> str | None:
    """Return the first input that has changed, in words; None if all are the same."""
    if before.model_digest != now.model_digest:
        return f"model {now.model} has other weights"
    changed_splits = [
        *_changed_names(before.datasets, now.datasets),
        *_changed_names(before.unsearched_datasets, now.unsearched_datasets),
    ]
    if changed_splits:
        return f"it has other images or class names ({', '.join(changed_splits)})"
    changed_prompts = _changed_names(before.prompts, now.prompts)
    if changed_prompts:
        return f"a prompt file has other content ({', '.join(changed_prompts)})"
    return None


def image_changes(before: SweepInfo, now: SweepInfo) -> list[str]:
    """Return a note that names the datasets whose image files have another size or time than when the sweep began."""
    changed_splits = [
        *_changed_names(before.images, now.images),
        *_changed_names(before.unsearched_images, now.unsearched_images),
    ]
    if not before.model or not changed_splits:
        return []
    return [
        f"image files have changed (size or time) since the sweep began ({', '.join(changed_splits)}); further trials "
        "use the changed files"
    ]


def _changed_names(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names with another digest than before; a resumed sweep may read further splits."""
    return [name for name, digest in now.items() if before.get(name, digest) != digest]
