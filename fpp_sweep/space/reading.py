"""Reading search spaces (docs/spaces.md) and config files; errors name file, line and key.

An assignment `key=value` of a command line changes one key of the document, as if the file had said so.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.space.objectives import MAX_NAME
from fpp_sweep.space.params import PARAM_KEYS, check_settings
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work
from fpp_sweep.space.yamlfile import Document, join, of_plain, parse, read
from fpp_sweep.spec.config import TrialConfig, settings
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.validation import build, keys, require_keys, shown

PACKAGE = Path(__file__).parents[1]
FOLDER = "search_spaces"
NAME_COLUMNS = 15


def load_space(path: Path | str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a YAML file, or the shipped space of a name such as `perturb`.

    An override is `dotted.key=value`, its value YAML, and `null` takes a key out: search.trials=20,
    work.datasets=[dtd, pets], params.fpp.gamma1.high=3.

    >>> space = load_space("perturb", ["search.trials=40", "params.fpp.class_var=null"])
    >>> space.search.trials, [param.key for param in space.params]
    (40, ['fpp.gamma1', 'fpp.gamma2', 'fpp.context_var'])
    """
    path = find_space(path)
    return space_from(read(path, "search space"), path.stem, overrides)


def parse_space(text: str, where: str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a YAML text; errors name `where` as its file."""
    return space_from(parse(text, where), Path(where).stem, overrides)


def space_of(plain: Mapping[str, Any], where: str) -> Space:
    """Return the space of `Space.plain()`, as the record of a sweep holds it."""
    return space_from(of_plain(plain, where), Path(where).stem)


def space_from(document: Document, stem: str, overrides: Sequence[str] = ()) -> Space:
    """Return the space of a document; overrides change the document first."""
    if not isinstance(document.value, dict):  # the file may be a link to any other, so its text is not quoted
        raise document.error("", "is no search space, which has params or a grid; see docs/spaces.md")
    for assignment in overrides:
        _override(document, assignment)
    with document.locating():
        return build(Space, {"name": _name_of(stem), **document.value})


def read_config(path: Path) -> dict[str, Any]:
    """Return settings by dotted key from a file with `config:`, such as a sweep's best/*.yaml or trials/*.json."""
    document = read(path, "config")
    values = document.value
    if not isinstance(values, dict) or "config" not in values:  # any file may be named, so none is quoted
        raise InputError(f"{path}: has no `config:`; a sweep's best/*.yaml and trials/*.json do")
    if path.suffix != ".json":  # a trial's record has more keys
        with document.locating():
            require_keys(values, ["config"])
    with document.locating("config"):
        return check_settings(values["config"], TrialConfig())


def _name_of(stem: str) -> str:
    """Return a file's name as the name of a space."""
    name = re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", stem).strip("-")
    return name[:MAX_NAME] or "space"


# ------------------------------------------------------------ assignments of a command line


def _override(document: Document, assignment: str) -> None:
    """Set a key of the document, or remove it if the value is `null`.

    A setting of the trials (`fpp.gamma2=0.3`) gets one value for all trials: it moves from `params` to `base`.
    """
    path, equals, text = assignment.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {assignment!r}: expected key=value, such as fpp.gamma2=0.3 or search.trials=20")
    where = f"--set {assignment}"
    if not text.strip():
        raise InputError(f"{where}: has no value; give one, or null, which takes {path} out")
    if path in settings():
        _require_outside_grid(document.value.get("grid"), path, where)
        params = document.value.get("params")
        if isinstance(params, dict):
            params.pop(path, None)
        path = f"base.{path}"
    elif path.partition(".")[0] not in keys(Space):
        raise InputError(f"{where}: {unknown('key', path, _known_keys())}")
    new = parse(text, where)
    _put(document.value, "", path, new.value, where)
    for inner in new.places:
        document.places[join(path, inner)] = (where, join(path, inner))
    while path := path.rpartition(".")[0]:
        if path.startswith("params.") or path not in document.places:  # bounds are checked together
            document.places[path] = (where, path)


def _known_keys() -> list[str]:
    """Return the keys of a space and of its sections, and the settings of a trial."""
    valid_keys = [*keys(Space), *settings()]
    valid_keys += [f"search.{key}" for key in keys(Search)]
    valid_keys += [f"work.{key}" for key in keys(Work)]
    return valid_keys


def _require_outside_grid(grid: Any, setting: str, where: str) -> None:
    """Raise InputError if a grid has values of the setting, which would replace the one that is set."""
    if not isinstance(grid, list):
        return
    for block in grid:
        if isinstance(block, dict) and setting in block:
            raise InputError(f"{where}: the grid has values of {setting}; change them there, or take {setting} out")


def _put(values: Any, outer: str, path: str, new: Any, where: str) -> None:
    """Put a value at a path below values of an outer path; None takes a key out."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: {outer} is {shown(values)}, which has no {path!r}")
    known = [key for key in values if f"{path}.".startswith(f"{key}.")]  # a key may have dots, too
    key = max(known, key=len, default=_new_key(outer, path))
    rest = path[len(key) + 1 :]
    if rest:
        if values.get(key) is None:
            values[key] = {}
        _put(values[key], join(outer, key), rest, new, where)
    elif new is None:
        values.pop(key, None)
    else:
        values[key] = new


def _new_key(outer: str, path: str) -> str:
    """Return the key that a mapping lacks: a parameter's key has dots, the keys of a parameter have none."""
    if outer in ("", "search"):
        return path.partition(".")[0]
    stem, _, last = path.rpartition(".")
    if outer == "params" and last in PARAM_KEYS:
        return stem
    return path


# ------------------------------------------------------------ spaces that come with the package


def shipped_folder() -> Path:
    """Return the folder of the shipped spaces: inside an installed package, or at the top of a clone."""
    installed = PACKAGE / FOLDER
    if installed.is_dir():
        return installed
    return PACKAGE.parent / FOLDER


def shipped_spaces() -> dict[str, Path]:
    """Return the files of the shipped spaces by name."""
    return {path.stem: path for path in sorted(shipped_folder().glob("*.yaml"))}


def find_space(word: Path | str) -> Path:
    """Return the file of a search space, from its path or from the name of a shipped space.

    >>> find_space("perturb").name
    'perturb.yaml'
    """
    path = user_path(word)
    if os.path.exists(path):
        return path
    shipped = shipped_spaces()
    is_name = path.name == str(path) and not path.suffix
    if is_name and path.name in shipped:
        return shipped[path.name]
    if is_name:
        raise unknown("search space", path.name, shipped)
    if path.stem in shipped and path.parent.name == FOLDER:
        raise InputError(f"search space {path} does not exist; {path.stem} without a path is the shipped space")
    return path  # its reader refuses it, and suggests similar files


def list_shipped_spaces(width: int) -> str:
    """Return a line for each shipped space with its question, wrapped to a number of columns."""
    lines = []
    for name, path in shipped_spaces().items():
        question = read(path, "search space").value["question"]
        indent = " " * NAME_COLUMNS
        lines.append(textwrap.fill(question, width, initial_indent=f"{name:<{NAME_COLUMNS}}", subsequent_indent=indent))
    return "\n".join(lines)
