"""From the name of a dataset to one of its splits, whose images all exist; a user's own datasets.

Those are described in a YAML file (docs/datasets.md shows one), or are folders, each as `NAME=PATH`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fpp_sweep.core.datasets.catalogue import expand, is_folder, is_taken, resolve
from fpp_sweep.core.datasets.dataset import SPLITS, Dataset, fair_order, require_folder
from fpp_sweep.core.datasets.layouts import ClassFolders, DatasetSpec, Listing, SplitJson
from fpp_sweep.space.yamlfile import read
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import listed_names, user_path
from fpp_sweep.spec.validation import as_mapping, at_key, build, keys, known_name, require, require_keys

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name becomes part of file names

# ------------------------------------------------------------ entries of a file


LAYOUTS: Mapping[str, type[ClassFolders | SplitJson]] = {"folders": ClassFolders, "split_json": SplitJson}
OWN_KEYS = ("layout", "augmix", "flip")  # keys of an entry that are not its layout's


def read_custom(path: Path) -> dict[str, DatasetSpec]:
    """Return the datasets of a YAML file by name; relative paths in the file start at its folder."""
    document = read(path, "dataset file")
    if not isinstance(document.value, dict) or not document.value:
        raise document.error("", "must map dataset names to their descriptions; see docs/datasets.md")
    specs = {}
    with document.locating():
        for name, description in document.value.items():
            _require_name(name)
            with at_key(name):
                specs[name] = _spec_of(path.parent.absolute(), description)
    return specs


def _spec_of(base: Path, description: Any) -> DatasetSpec:
    """Return the dataset that an entry describes; relative paths start at `base`."""
    values = as_mapping(description)
    require("layout" in values, f"needs the key 'layout': {' or '.join(LAYOUTS)}")
    with at_key("layout"):
        layout = LAYOUTS[known_name("layout", values["layout"], LAYOUTS)]
    require_keys(values, [*OWN_KEYS, *keys(layout)])
    files = {key: value for key, value in values.items() if key not in OWN_KEYS}
    switches = {key: values[key] for key in ("augmix", "flip") if key in values}
    return DatasetSpec(layout=build(layout, files), group="custom", root=base, **switches)


def _require_name(name: str) -> None:
    require(NAME.fullmatch(name), f"dataset name {name!r} must be letters, digits, '.', '_' and '-' only")
    require(not is_taken(name), f"{name!r} is already the name of a dataset or group; choose another")


# ------------------------------------------------------------ requested datasets


def custom_datasets(names: Iterable[str], dataset_file: str | None) -> dict[str, DatasetSpec]:
    """Return a user's own datasets by name: those of the dataset file, and the folders among requested names.

    A name is the name of any dataset or group, or `NAME=PATH` for a folder; all but folders are passed over.
    """
    specs = {}
    if dataset_file:
        specs = read_custom(user_path(dataset_file))
    for word in listed_names(names):
        if not is_folder(word):
            continue
        name, spec = folder_dataset(word)
        if name in specs:
            raise InputError(f"{word}: {name!r} is the name of another dataset as well; choose another name")
        specs[name] = spec
    return specs


def folder_dataset(argument: str) -> tuple[str, DatasetSpec]:
    """Return name and description of the dataset that `NAME=PATH` means: a folder in ImageFolder's layout.

    The folder has a folder for each class, or such folders in train, val and test; see `ClassFolders`.
    """
    name, _, folder = argument.partition("=")
    with at_key(argument):
        _require_name(name)
    if not folder:
        raise InputError(f"{argument}: no path; write NAME=PATH, such as mine=photos")
    images = user_path(folder).absolute()
    require_folder(images, f"{name}: image folder", "correct the path")
    layout = ClassFolders(images=str(images))
    with at_key(name):
        layout.require_classes()
    return name, DatasetSpec(layout=layout, group="custom", root=Path())


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
    )


def list_split(name: str, spec: DatasetSpec, split: str, data_root: Path | None) -> Listing:
    """List the samples of a split; raise InputError that names the dataset if it has none."""
    require_possible_split(name, spec, split)
    with at_key(name):
        listing = spec.layout.read(spec.root or require_root(data_root), split)
        require(listing.ids, f"the {split} split is empty; add images, or use another split")
        problem = f"has one class ({listing.classes[0]!r}), but needs two or more; add another class"
        require(len(listing.classes) > 1, problem)
    return listing


def require_possible_split(name: str, spec: DatasetSpec, split: str) -> None:
    """Raise InputError if a dataset of this layout never has the split, such as `val` of ImageNet's shifts."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split not in spec.layout.possible_splits:
        possible = " and a ".join(spec.layout.possible_splits)
        raise InputError(
            f"{name} has only a {possible} split, not {split!r}; leave this dataset out, set search.split=test, "
            "or leave out maps and conformal sets, which are fitted on val"
        )


def require_known(names: Iterable[str], data_root: str | None, dataset_file: str | None) -> list[str]:
    """Return the datasets that names and groups mean, or all of the file's.

    Raise InputError for a name that is not known, and for a data root that is needed and does not exist.
    """
    names = list(names)
    custom = custom_datasets(names, dataset_file)
    datasets = expand(names or list(custom), custom)
    needs_root = [name for name in datasets if resolve(name, custom)[1].root is None]
    if data_root or needs_root:  # a wrong data root is an error even where no dataset needs it
        with at_key(next(iter(needs_root), "")):
            require_root(Path(data_root) if data_root else None)
    return datasets


def require_root(data_root: Path | None) -> Path:
    """Return the data root; raise InputError if there is none or it is not a folder."""
    if data_root is None:
        raise InputError("needs --data-root, the folder that holds the datasets")
    require_folder(data_root, "data root", "correct --data-root")
    return data_root
