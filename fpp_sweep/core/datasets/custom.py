"""A user's own datasets, described in a YAML file; docs/datasets.md shows one."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.core.datasets.base import SPLITS
from fpp_sweep.core.datasets.class_names import Renaming, as_words
from fpp_sweep.core.datasets.coop import SplitJson
from fpp_sweep.core.datasets.folders import ClassFolders
from fpp_sweep.core.datasets.layout import Layout, Spec
from fpp_sweep.core.datasets.names import is_taken
from fpp_sweep.core.datasets.paths import printable, read_text, sample_id
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import MAX_HANDWRITTEN_BYTES

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # it becomes part of file names
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 2

COMMON_KEYS = ("layout", "images", "classes", "augmix", "flip")
LAYOUT_KEYS = {"folders": (*COMMON_KEYS, "splits"), "split_json": (*COMMON_KEYS, "split_file")}


def read_custom(path: Path) -> dict[str, Spec]:
    """The datasets of a file, by name; relative paths in it start at its folder."""
    document = _parse(path, read_text(path, "dataset file", MAX_HANDWRITTEN_BYTES))
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path} must map dataset names to their descriptions, see docs/datasets.md")
    return {_name(path, name): _spec(path, name, fields) for name, fields in document.items()}


class _Loader(yaml.SafeLoader):
    """Plain values only: no alias, by which a file would grow, and no repeated key, whose last PyYAML would keep."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _refused(f"alias *{event.anchor} is not allowed here; write the value out", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _refused(f"key {key!r} twice", key_node)
            seen.add(key)
        return mapping


def _refused(problem: str, found: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, found.start_mark)


def _parse(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def _name(path: Path, name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{path}: dataset name {_BRIEF.repr(name)} must be letters, digits, '.', '_' and '-' only")
    if is_taken(name):
        raise InputError(f"{path}: {name!r} is already the name of a dataset or group; choose another")
    return name


def _spec(path: Path, name: str, fields: Any) -> Spec:
    where = f"{path}: {name}"
    if not isinstance(fields, dict):
        raise InputError(f"{where} must be a mapping with the keys {', '.join(COMMON_KEYS)}, ...")
    layout = _text(fields, "layout", where)
    if layout not in LAYOUT_KEYS:
        raise InputError(f"{where}: {unknown('layout', layout, LAYOUT_KEYS)}")
    for key in fields:
        if key not in LAYOUT_KEYS[layout]:
            raise InputError(f"{where}: {unknown('key', str(key), LAYOUT_KEYS[layout])}")
    base = path.parent.absolute()
    images = str(base / _text(fields, "images", where))
    renaming = _renaming(fields.get("classes"), f"{where}.classes")
    if layout == "folders":
        split_folders = _split_folders(fields.get("splits"), f"{where}.splits")
        files: Layout = ClassFolders(images=images, split_folders=split_folders, renaming=renaming)
    else:
        split_file = str(base / _text(fields, "split_file", where))
        files = SplitJson(images=images, split_file=split_file, renaming=renaming)
    augmix, flip = (_as_bool(fields.get(key, True), f"{where}.{key}") for key in ("augmix", "flip"))
    return Spec(layout=files, group="custom", augmix=augmix, flip=flip)


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    if key not in fields:
        raise InputError(f"{where} needs the key {key!r}")
    return _as_text(fields[key], f"{where}.{key}")


def _as_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be text (in quotes, if need be), got {_BRIEF.repr(value)}")
    if not value.strip():
        raise InputError(f"{where} is empty")
    return printable(value, where)


def _as_bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where} must be true or false, got {_BRIEF.repr(value)}")
    return value


def _renaming(value: Any, where: str) -> Renaming:
    match value:
        case None:
            return ()
        case list() if value:
            return tuple(as_words(_as_text(name, f"{where}[{n}]")) for n, name in enumerate(value))
        case dict() if value:
            return {
                _as_text(key, where): as_words(_as_text(name, f"{where}.{_BRIEF.repr(key)}"))
                for key, name in value.items()
            }
    raise InputError(
        f"{where} must be a list of names by label, or a mapping from folders to names; got {_BRIEF.repr(value)}"
    )


def _split_folders(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not value:
        raise InputError(f"{where} must map {', '.join(SPLITS)} to folders, got {_BRIEF.repr(value)}")
    for split in value:
        if split not in SPLITS:
            raise InputError(f"{where}: {unknown('split', str(split), SPLITS)}")
    return {split: sample_id(_text(value, split, where), f"{where}.{split}") for split in value}
