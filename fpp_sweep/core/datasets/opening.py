"""From the name of a dataset to one of its splits, whose images all exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fpp_sweep.core.datasets.catalogue import expand, resolve
from fpp_sweep.core.datasets.custom import custom_datasets
from fpp_sweep.core.datasets.dataset import SPLITS, Dataset, fair_order
from fpp_sweep.core.datasets.files import require_folder
from fpp_sweep.core.datasets.layout import DatasetSpec, Listing
from fpp_sweep.spec.errors import InputError, unknown

NO_CUSTOM: Mapping[str, DatasetSpec] = MappingProxyType({})


def open_dataset(
    name: str, split: str, data_root: Path | None = None, custom: Mapping[str, DatasetSpec] = NO_CUSTOM
) -> Dataset:
    """Open one split in hash order; every image is known to exist.

    >>> scenes = open_dataset("scenes", "test")
    >>> scenes.source.image(scenes.ids[0]).size
    (64, 64)
    """
    name, spec = resolve(name, custom)
    listing = list_split(name, spec, split, data_root)
    order, _ = fair_order(name, listing.ids)
    return Dataset(
        name=name,
        split=split,
        group=spec.group,
        classes=listing.classes,
        ids=tuple(listing.ids[position] for position in order),
        labels=np.asarray(listing.labels, dtype=np.int64)[order],
        source=listing.source,
        augmix=spec.augmix,
        flip=spec.flip,
        file_positions=order,
    )


def list_split(name: str, spec: DatasetSpec, split: str, data_root: Path | None) -> Listing:
    """List the samples of a split; raise InputError that names the dataset if it has none."""
    require_possible_split(name, spec, split)
    try:
        root = Path()
        if spec.below_root:
            root = require_root(data_root)
        listing = spec.layout.read(root, split)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if not listing.ids:
        raise InputError(f"{name}: the {split} split is empty; add images, or use another split")
    if len(listing.classes) < 2:
        raise InputError(f"{name}: has one class ({listing.classes[0]!r}), but needs two or more; add another class")
    return listing


def require_possible_split(name: str, spec: DatasetSpec, split: str) -> None:
    """Raise InputError if a dataset of this layout never has the split, such as `val` of ImageNet's shifts."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split not in spec.layout.splits:
        possible = " and a ".join(spec.layout.splits)
        raise InputError(
            f"{name} has only a {possible} split, not {split!r}; leave this dataset out, or set search.split=test"
        )


def require_known(names: Iterable[str], data_root: str | None, dataset_file: str | None) -> list[str]:
    """Return the datasets that names and groups mean, or all of the file's.

    Raise InputError for a name that is not known, and for a data root that is needed and does not exist.
    """
    names = list(names)
    custom = custom_datasets(names, dataset_file)
    datasets = expand(names or list(custom), custom)
    needs_root = [name for name in datasets if resolve(name, custom)[1].below_root]
    root = None
    if data_root:
        root = Path(data_root)
    if not needs_root:
        if root is not None:  # a wrong data root is an error even where no dataset needs it
            require_root(root)
        return datasets
    try:
        require_root(root)
    except InputError as error:
        raise InputError(f"{needs_root[0]}: {error}") from error
    return datasets


def require_root(data_root: Path | None) -> Path:
    """Return the data root; raise InputError if there is none or it is not a folder."""
    if data_root is None:
        raise InputError("needs --data-root, the folder that holds the datasets")
    require_folder(data_root, "data root", "correct --data-root")
    return data_root
