"""The config of a file, which may lie in the folder of a sweep that another person made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import read_config
from fpp_sweep.spec.config import is_file_name, is_template_file
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path

FILE_SETTINGS = ("prompt", "anchor_prompt", "adapt.templates")  # settings that may name a file


def read_settings(config: Path) -> dict[str, Any]:
    """Return the settings of a file.

    If the file lies in the folder of a sweep, raise InputError for a link out of that folder on the way to the file, or
    to another file of the folder that a setting names. Files elsewhere that a setting names are the user's own.
    """
    sweeps = _sweeps_around(config)
    for sweep in sweeps:
        sweep.inside(config.absolute())
    settings = read_config(config)
    for key, file in _files_of(settings).items():
        for sweep in sweeps:
            _require_own(sweep, file, f"{config}: config.{key}")
    return settings


def require_own_prompts(flag: str, prompts: Iterable[str]) -> None:
    """Raise InputError if a flag names a prompt in the folder of a sweep, and a link on the way leads out of it."""
    for prompt in prompts:
        if is_file_name(prompt):
            file = Path(os.path.abspath(user_path(prompt)))
            for sweep in _sweeps_around(file):
                _require_own(sweep, file, flag)


def _sweeps_around(file: Path) -> list[SweepFolder]:
    """Return the folders of sweeps in which a file lies."""
    folders = [SweepFolder(parent) for parent in file.absolute().parents]
    return [folder for folder in folders if folder.has_sweep]


def _files_of(settings: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files that settings name."""
    files = {}
    for key in FILE_SETTINGS:
        value = settings.get(key)
        if value and (is_file_name(value) or is_template_file(value)):
            files[key] = Path(os.path.abspath(user_path(value)))
    return files


def _require_own(sweep: SweepFolder, file: Path, where: str) -> None:
    if file.is_relative_to(sweep.path) or file.is_relative_to(os.path.realpath(sweep.path)):
        try:
            sweep.inside(file)
        except InputError as error:
            raise InputError(error.problem, where) from None
