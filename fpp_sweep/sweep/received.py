"""Checks of a config in the folder of a sweep, which another person may have made."""

from __future__ import annotations

import os
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import read_config
from fpp_sweep.spec.config import is_file_name, is_template_file
from fpp_sweep.spec.errors import InputError

FILE_SETTINGS = ("prompt", "anchor_prompt", "adapt.templates")  # settings that may name a file


def require_own_files(config: Path) -> None:
    """Raise InputError if a link leads out of the sweep's folder from a file that a config in the folder names there.

    Files elsewhere that a config names are the user's own.
    """
    files = {}
    for key, value in read_config(config).items():
        if key in FILE_SETTINGS and value and (is_file_name(value) or is_template_file(value)):
            files[key] = Path(os.path.abspath(value))
    for parent in config.absolute().parents:
        folder = SweepFolder(parent)
        if folder.has_sweep:
            for key, file in files.items():
                _require_own(folder, file, f"{config}: config.{key}")


def _require_own(folder: SweepFolder, file: Path, where: str) -> None:
    if file.is_relative_to(folder.path) or file.is_relative_to(os.path.realpath(folder.path)):
        try:
            folder.inside(file)
        except InputError as error:
            raise InputError(error.problem, where) from None
