"""A user's own datasets: described in a YAML file (docs/datasets.md shows one), or folders, each as `NAME=PATH`."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.core.datasets.catalogue import is_folder, is_taken
from fpp_sweep.core.datasets.class_folders import ClassFolders
from fpp_sweep.core.datasets.dataset import SPLITS
from fpp_sweep.core.datasets.files import as_sample_id, read_text, require_folder, require_printable
from fpp_sweep.core.datasets.layout import DatasetSpec, Layout, Renaming, as_words
from fpp_sweep.core.datasets.split_files import SplitJson
from fpp_sweep.spec.errors import InputError, message_in_one_line, unknown
from fpp_sweep.spec.files import MAX_HANDWRITTEN_BYTES, user_path
from fpp_sweep.spec.names import listed_names

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name becomes part of file names
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 2

COMMON_KEYS = ("layout", "images", "classes", "augmix", "flip")
LAYOUT_KEYS = {"folders": (*COMMON_KEYS, "splits"), "split_json": (*COMMON_KEYS, "split_file")}


def read_custom(path: Path) -> dict[str, DatasetSpec]:
    """Return the datasets of a YAML file by name; relative paths in the file start at its folder."""
    if not path.exists():
        raise InputError(f"dataset file {path} is not there; correct --dataset-file")
    document = _parse(path, read_text(path, "dataset file", MAX_HANDWRITTEN_BYTES))
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path} must map dataset names to their descriptions, see docs/datasets.md")
    specs = {}
    for name, description in document.items():
        _require_name(name, str(path))
        specs[name] = _read_spec(path, name, description)
    return specs


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
    _require_name(name, argument)
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


class _Loader(yaml.SafeLoader):
    """Plain values only. Aliases, which make small files large, and repeated keys, which PyYAML drops, are errors."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _yaml_error(f"alias *{event.anchor} is not allowed here; write the value out", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise _yaml_error(f"key {key!r} twice", key_node)
            keys.add(key)
        return mapping


def _yaml_error(problem: str, marked: Any) -> yaml.YAMLError:
    """Return an error at the position of an event or node."""
    return yaml.constructor.ConstructorError(None, None, problem, marked.start_mark)


def _parse(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.problem}; correct it") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid YAML: {message_in_one_line(error)}") from error


def _require_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{where}: dataset name {_BRIEF.repr(name)} must be letters, digits, '.', '_' and '-' only")
    if is_taken(name):
        raise InputError(f"{where}: {name!r} is already the name of a dataset or group; choose another")


def _read_spec(path: Path, name: str, description: Any) -> DatasetSpec:
    where = f"{path}: {name}"
    if not isinstance(description, dict):
        raise InputError(f"{where} must be a mapping with the keys {', '.join(COMMON_KEYS)}, ...")
    kind = _read_text(description, "layout", where)
    if kind not in LAYOUT_KEYS:
        raise InputError(f"{where}: {unknown('layout', kind, LAYOUT_KEYS)}")
    for key in description:
        if key not in LAYOUT_KEYS[kind]:
            raise InputError(f"{where}: {unknown('key', str(key), LAYOUT_KEYS[kind])}")
    return DatasetSpec(
        layout=_read_layout(path.parent.absolute(), kind, description, where),
        group="custom",
        augmix=_as_bool(description.get("augmix", True), f"{where}.augmix"),
        flip=_as_bool(description.get("flip", True), f"{where}.flip"),
    )


def _read_layout(base: Path, kind: str, description: Mapping[str, Any], where: str) -> Layout:
    """Build a layout; relative paths start at `base`."""
    images = str(base / user_path(_read_text(description, "images", where)))
    renaming = _as_renaming(description.get("classes"), f"{where}.classes")
    if kind == "folders":
        split_folders = _as_split_folders(description.get("splits"), f"{where}.splits")
        return ClassFolders(images=images, split_folders=split_folders, renaming=renaming)
    split_file = str(base / user_path(_read_text(description, "split_file", where)))
    return SplitJson(images=images, split_file=split_file, renaming=renaming)


def _read_text(description: Mapping[str, Any], key: str, where: str) -> str:
    if key not in description:
        raise InputError(f"{where} needs the key {key!r}")
    return _as_text(description[key], f"{where}.{key}")


def _as_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be text (in quotes, if need be), got {_BRIEF.repr(value)}")
    if not value.strip():
        raise InputError(f"{where} is empty")
    return require_printable(value, where)


def _as_bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where} must be true or false, got {_BRIEF.repr(value)}")
    return value


def _as_renaming(value: Any, where: str) -> Renaming:
    if value is None:
        return ()
    if isinstance(value, list) and value:
        return tuple(as_words(_as_text(name, f"{where}[{index}]")) for index, name in enumerate(value))
    if isinstance(value, dict) and value:
        renaming = {}
        for old_name, new_name in value.items():
            key = _as_text(old_name, where)
            renaming[key] = as_words(_as_text(new_name, f"{where}.{_BRIEF.repr(old_name)}"))
        return renaming
    raise InputError(
        f"{where} must be a list of names by label, or a mapping from folders to names; got {_BRIEF.repr(value)}"
    )


def _as_split_folders(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not value:
        raise InputError(f"{where} must map {', '.join(SPLITS)} to folders, got {_BRIEF.repr(value)}")
    folders = {}
    for split in value:
        if split not in SPLITS:
            raise InputError(f"{where}: {unknown('split', str(split), SPLITS)}")
        folders[split] = as_sample_id(_read_text(value, split, where), f"{where}.{split}")
    return folders
