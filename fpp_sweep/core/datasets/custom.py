"""A user's own datasets: described in a YAML file (docs/datasets.md shows one), or folders, each as `NAME=PATH`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from fpp_sweep.core.datasets.catalogue import is_folder, is_taken
from fpp_sweep.core.datasets.class_folders import ClassFolders
from fpp_sweep.core.datasets.dataset import SPLITS
from fpp_sweep.core.datasets.files import as_sample_id, require_folder, require_printable
from fpp_sweep.core.datasets.layout import DatasetSpec, Layout, Renaming, as_words
from fpp_sweep.core.datasets.split_files import SplitJson
from fpp_sweep.space.work import Text
from fpp_sweep.space.yamlfile import read
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.names import listed_names
from fpp_sweep.spec.validation import as_mapping, at_key, build, check_fields, known_name, require, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name becomes part of file names

# ------------------------------------------------------------ entries of a file


def _as_class_name(value: Any, key: str) -> str:
    with at_key(key):
        require(isinstance(value, str) and value.strip(), f"must be text, in quotes if need be ({shown(value)})")
        return as_words(_printable(value))


def _printable(text: str) -> str:
    return require_printable(text, "text")


def _as_renaming(value: Any) -> Renaming:
    if value == ():  # the default
        return ()
    if isinstance(value, list) and value:
        return tuple(_as_class_name(name, str(index)) for index, name in enumerate(value))
    if isinstance(value, dict) and value:
        return {_printable(old): _as_class_name(new, old) for old, new in value.items()}
    raise InputError(f"must be a list of names by label, or a mapping from folders to names ({shown(value)})")


def _as_split_folders(value: Any) -> dict[str, str]:
    folders = {}
    for split, folder in as_mapping(value).items():
        known_name("split", split, SPLITS)
        folders[split] = as_sample_id(_as_class_name(folder, split), f"split {split}")
    return folders


UserText = Annotated[Text, AfterValidator(_printable)]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An entry of a dataset file."""

    layout: UserText
    images: UserText
    classes: Annotated[Renaming, BeforeValidator(_as_renaming)] = ()
    augmix: bool = True
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class _Folders(_Entry):
    """Images in class folders."""

    splits: Annotated[Mapping[str, str], BeforeValidator(_as_split_folders)] = field(default_factory=dict)

    def files(self, base: Path) -> Layout:
        images = str(base / user_path(self.images))
        return ClassFolders(images=images, split_folders=self.splits, renaming=self.classes)


@dataclass(frozen=True, kw_only=True)
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
    entry = build(kind, description, "")
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
