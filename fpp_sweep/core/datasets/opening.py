"""From the name of a dataset to one of its splits, whose images all exist; a user's own datasets.

Those are described in a YAML file (docs/datasets.md shows one), or are folders, each as `NAME=PATH`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator

from fpp_sweep.core.datasets.catalogue import expand, is_folder, is_taken, resolve
from fpp_sweep.core.datasets.dataset import SPLITS, Dataset, as_sample_id, fair_order, require_folder, require_printable
from fpp_sweep.core.datasets.layouts import ClassFolders, DatasetSpec, Layout, Listing, Renaming, SplitJson, as_words
from fpp_sweep.space.work import Text
from fpp_sweep.space.yamlfile import read
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import listed_names, user_path
from fpp_sweep.spec.validation import as_mapping, at_key, build, checked, known_name, require, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name becomes part of file names

# ------------------------------------------------------------ entries of a file


def _as_class_name(value: Any, key: str) -> str:
    with at_key(key):
        require(isinstance(value, str) and value.strip(), f"must be text, in quotes if need be ({shown(value)})")
        return as_words(_printable(value))


def _printable(text: str) -> str:
    return require_printable(text, "text")


def _as_renaming(value: Any) -> Renaming:
    return {_printable(old): _as_class_name(new, old) for old, new in as_mapping(value).items()}


def _as_split_folders(value: Any) -> dict[str, str]:
    folders = {}
    for split, folder in as_mapping(value).items():
        known_name("split", split, SPLITS)
        folders[split] = as_sample_id(_as_class_name(folder, split), f"split {split}")
    return folders


UserText = Annotated[Text, AfterValidator(_printable)]


@checked
class _Entry:
    """An entry of a dataset file."""

    layout: UserText
    images: UserText
    classes: Annotated[Renaming, BeforeValidator(_as_renaming)] = field(default_factory=dict)
    augmix: bool = True
    flip: bool = True


@checked
class _Folders(_Entry):
    """Images in class folders."""

    splits: Annotated[Mapping[str, str], BeforeValidator(_as_split_folders)] = field(default_factory=dict)

    def files(self, base: Path) -> Layout:
        images = str(base / user_path(self.images))
        return ClassFolders(images=images, split_folders=self.splits, renaming=self.classes)


@checked
class _SplitFile(_Entry):
    """Images that a split file lists."""

    split_file: UserText

    def files(self, base: Path) -> Layout:
        images, split_file = (str(base / user_path(path)) for path in (self.images, self.split_file))
        return SplitJson(images=images, split_file=split_file, renaming=self.classes)


LAYOUTS: Mapping[str, type[_Folders | _SplitFile]] = {"folders": _Folders, "split_json": _SplitFile}


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
    require("layout" in as_mapping(description), f"needs the key 'layout': {' or '.join(LAYOUTS)}")
    with at_key("layout"):
        kind = LAYOUTS[known_name("layout", description["layout"], LAYOUTS)]
    entry = build(kind, description)
    return DatasetSpec(layout=entry.files(base), group="custom", augmix=entry.augmix, flip=entry.flip)


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
    try:
        layout.require_classes()
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    return name, DatasetSpec(layout=layout, group="custom")


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
