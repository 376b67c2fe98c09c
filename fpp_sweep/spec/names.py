"""Names of records and folders: a baseline is named `baseline-tpt`, and tables show its label `tpt`."""

from __future__ import annotations

import re

from fpp_sweep.spec.errors import InputError

BASELINE_PREFIX = "baseline-"
FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def label_of(name: str) -> str:
    """Return a record's name as tables show it.

    >>> label_of("baseline-tpt"), label_of("trial-0002")
    ('tpt', 'trial-0002')
    """
    return name.removeprefix(BASELINE_PREFIX)


def require_folder_name(name: str) -> None:
    """Raise InputError unless the value of --name can name a folder."""
    if not FOLDER_NAME.fullmatch(name):
        raise InputError(f"--name {name!r}: letters, digits, dots, dashes and underscores only; it names a folder")
