"""The search spaces that come with the package, each by its name."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import yaml

from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path

PACKAGE = Path(__file__).parents[1]
FOLDER = "search_spaces"
NAME_COLUMNS = 15


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
        question = yaml.safe_load(path.read_text(encoding="utf-8"))["question"]
        indent = " " * NAME_COLUMNS
        lines.append(textwrap.fill(question, width, initial_indent=f"{name:<{NAME_COLUMNS}}", subsequent_indent=indent))
    return "\n".join(lines)
