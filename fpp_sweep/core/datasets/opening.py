"""From a name to a dataset whose files have been found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fpp_sweep.core.datasets.base import SPLITS, Dataset
from fpp_sweep.core.datasets.custom import read_custom
from fpp_sweep.core.datasets.layout import Listing, Spec
from fpp_sweep.core.datasets.names import expand, resolve
from fpp_sweep.core.datasets.paths import require_folder
from fpp_sweep.core.datasets.sample_order import fair_order
from fpp_sweep.spec.errors import InputError, unknown

NO_CUSTOM: Mapping[str, Spec] = MappingProxyType({})


def require_known(names: Iterable[str], data_root: str | None, dataset_file: str | None) -> list[str]:
    """Names and groups, or all of the file's, as datasets: each is known, and what holds its files is there."""
    custom = read_custom(Path(dataset_file)) if dataset_file else NO_CUSTOM
    found = expand(list(names) or list(custom), custom)
    below = [name for name in found if resolve(name, custom)[1].below_root]
    if below or data_root:
        try:
            require_root(Path(data_root) if data_root else None)
        except InputError as error:
            raise InputError(f"{below[0]}: {error}" if below else str(error)) from error
    return found


def open_dataset(
    name: str, split: str, data_root: Path | None = None, custom: Mapping[str, Spec] = NO_CUSTOM
) -> Dataset:
    """One split in hash order, every image known to exist.

    >>> scenes = open_dataset("scenes", "test")
    >>> scenes.source.image(scenes.ids[0]).size
    (64, 64)
    """
    name, spec = resolve(name, custom)
    listing = list_split(name, spec, split, data_root)
    ids = list(listing.ids)
    order, _ = fair_order(name, ids)
    return Dataset(
        name=name,
        split=split,
        group=spec.group,
        classes=listing.classes,
        ids=tuple(ids[position] for position in order),
        labels=np.asarray(listing.labels, dtype=np.int64)[order],
        source=listing.source,
        augmix=spec.augmix,
        flip=spec.flip,
        places=order,
    )


def list_split(name: str, spec: Spec, split: str, data_root: Path | None) -> Listing:
    """The samples of a split, not empty; an InputError names the dataset."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split not in spec.layout.splits:
        raise InputError(f"{name} has only a {' and a '.join(spec.layout.splits)} split, not {split!r}")
    try:
        root = require_root(data_root) if spec.below_root else Path()
        listing = spec.layout.read(root, split)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if not listing.ids:
        raise InputError(f"{name}: the {split} split is empty")
    return listing


def require_root(data_root: Path | None) -> Path:
    if data_root is None:
        raise InputError("needs --data-root, the folder that holds the datasets")
    require_folder(data_root, "data root")
    return data_root
